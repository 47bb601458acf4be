"""Pause, resume, update and remove on a real ZooKeeper, beside a sorter that writes its status."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from compose.stack.local import Addresses
from consumers.control.changefeeds.asked_images import TABLES_MAX, decode_asked
from consumers.control.changefeeds.image_requests import ImageRefusedError
from consumers.control.changefeeds.store import ChangefeedNotFoundError, ChangefeedRequest
from consumers.control.changefeeds.verbs import (
    ChangefeedControl,
    ConfigChange,
    ResumeRefusedError,
    UpdateRefusedError,
    state_of,
)
from consumers.control.log.raw_log import RetainedFrontier
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedError, ChangefeedStatus, ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import ServiceInfo, encode_service
from schemas.rawlog.images import ImageMode
from schemas.sink.topic import sink_topic
from sorters.log.failures import KafkaUnreachableError
from sorters.run.nodes.status import StatusBoard
from tests.support.control.changefeed_status import write_status
from tests.support.control.lasting_session import lasting_session

URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"
ERROR = ChangefeedError(code="sorter.dispatch_failed", message="no", time="2026-01-01T00:00:00Z")


@pytest.fixture
def paths(fresh_name: Callable[[str], str]) -> ZkPaths:
    return ZkPaths(fresh_name("cluster"))


@pytest.fixture
def control(stack: Addresses, paths: ZkPaths) -> Iterator[ChangefeedControl]:
    with lasting_session(stack.zookeeper_access) as session:
        control = ChangefeedControl(session, paths)
        request = ChangefeedRequest(
            upstream=UpstreamId("u"), sink_uri=URI, config={}, changefeed_id="cf", target_ts=Ts(900)
        )
        control.store.create(replace(request, start_ts=Ts(100)), RetainedFrontier(Ts(50), Ts(200)))
        yield control


@pytest.fixture
def board(stack: Addresses, paths: ZkPaths) -> Iterator[StatusBoard]:
    client = KazooClient(stack.zookeeper)
    client.start()
    yield StatusBoard(client, paths, "default", "cf")
    client.stop()
    client.close()


def opened(board: StatusBoard) -> Ts:
    info = board.info()
    assert info is not None
    return board.open(*info)


def wanted(control: ChangefeedControl) -> tuple[str, str]:
    info, status = control.store.get("cf"), control.store.status("cf")
    return info.desired_state, state_of(info, status)


def failed(control: ChangefeedControl, checkpoint: int = 150) -> None:
    write_status(
        control.store,
        "cf",
        ChangefeedStatus(state="failed", checkpoint_ts=Ts(checkpoint), resolved_ts=Ts(160), error=ERROR),
    )


def test_control_pause_and_resume_change_what_the_user_wants(control: ChangefeedControl) -> None:
    assert control.pause("cf").state == "stopped"
    assert wanted(control) == ("stopped", "stopped")
    assert control.store.get("cf").epoch == 1
    assert control.resume("cf").state == "normal"
    assert wanted(control) == ("normal", "normal")


def test_control_resume_of_a_failed_one_forgets_its_error_and_keeps_its_checkpoint(control: ChangefeedControl) -> None:
    failed(control)
    control.pause("cf")  # does nothing to a failed one
    assert wanted(control) == ("normal", "failed")
    control.resume("cf")
    status = control.store.status("cf")
    assert status == ChangefeedStatus(state="normal", checkpoint_ts=Ts(150), resolved_ts=Ts(160))


@pytest.mark.parametrize("code", ["apply.flow_broken", "apply.fence_went_back"])
def test_control_resume_after_a_broken_proof_asks_from_where(control: ChangefeedControl, code: str) -> None:
    text = f"[{code}] rows are lost (1) (partition=3, after_ts=140, upto_ts=155)"
    error = ChangefeedError(code=code, message=text, time="")
    write_status(
        control.store,
        "cf",
        ChangefeedStatus(state="failed", checkpoint_ts=Ts(150), resolved_ts=Ts(160), error=error),
    )
    with pytest.raises(ResumeRefusedError) as caught:
        control.resume("cf")
    assert caught.value.fields == {"changefeed": "cf", "checkpoint_ts": 150, "error": text}
    assert wanted(control) == ("normal", "failed")
    assert control.resume("cf", overwrite_checkpoint_ts=Ts(140)).checkpoint_ts == 140
    assert wanted(control) == ("normal", "normal")
    control.pause("cf")
    assert control.resume("cf").state == "normal", "the error is over"


def test_control_resume_with_another_checkpoint_is_where_the_sorter_goes_on(
    control: ChangefeedControl, board: StatusBoard
) -> None:
    assert opened(board) == 100
    board.report(checkpoint_ts=Ts(180))
    control.pause("cf")
    control.resume("cf", overwrite_checkpoint_ts=Ts(120))
    board.report(checkpoint_ts=Ts(190))  # the old run's last word comes late, and is not written
    assert control.store.status("cf") == ChangefeedStatus(
        state="normal", checkpoint_ts=Ts(120), resolved_ts=Ts(120), set_epoch=1
    )
    assert opened(board) == 120
    board.report(checkpoint_ts=Ts(130))
    assert control.store.status("cf").checkpoint_ts == 130  # type: ignore[union-attr]


def test_control_resume_from_where_it_began_begins_another_life_unless_an_older_service_is_there(
    control: ChangefeedControl, stack: Addresses, paths: ZkPaths
) -> None:
    """Such a service would go on with the topic of the former life, whose rows up to where it came are applied."""
    request = ChangefeedRequest(
        upstream=UpstreamId("u"), sink_uri="mysql://h/", config={}, changefeed_id="db", start_ts=Ts(100)
    )
    first = control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))
    control.pause("db")
    service = ServiceInfo(service="old", host="h", pid=1, version="0.1.0", started_at_s=0, master="local[1]")
    path = ServicePaths(paths).service("old")
    with lasting_session(stack.zookeeper_access) as session:
        session.client.create(path, encode_service(service), makepath=True)
        with pytest.raises(ResumeRefusedError, match="older version") as caught:
            control.resume("db", overwrite_checkpoint_ts=Ts(100))
        assert caught.value.fields == {"changefeed": "db", "overwrite_checkpoint_ts": 100, "services": "old"}
        assert control.store.get("db").desired_state == "stopped"
        control.resume("db", overwrite_checkpoint_ts=Ts(90))
        control.pause("cf")
        control.resume("cf", overwrite_checkpoint_ts=Ts(100))  # of a Kafka sink the life names nothing
        session.client.set(path, encode_service(replace(service, knows_lives=True)))
    control.pause("db")
    control.resume("db", overwrite_checkpoint_ts=Ts(100))
    again = control.store.get("db")
    assert (again.start_ts, again.life_epoch, first.life_epoch) == (100, 2, 0)
    assert sink_topic(again) == f"{sink_topic(first)}-2"
    control.pause("db")
    control.resume("db")
    assert sink_topic(control.store.get("db")) == sink_topic(again), "no checkpoint was set"


def test_control_keeps_up_to_which_ts_a_database_may_have_rows_and_only_raises_it(control: ChangefeedControl) -> None:
    control.pause("cf")
    control.resume("cf", overwrite_checkpoint_ts=Ts(120), safe_until_ts=Ts(500))
    assert control.store.get("cf").safe_until_ts == 500
    control.pause("cf")
    control.resume("cf")
    assert control.store.get("cf").safe_until_ts == 500
    control.pause("cf")
    control.resume("cf", overwrite_checkpoint_ts=Ts(120), safe_until_ts=Ts(600))
    assert control.store.get("cf").safe_until_ts == 600


def test_control_overwritten_checkpoint_above_the_target_is_refused(control: ChangefeedControl) -> None:
    control.pause("cf")
    with pytest.raises(ConfigError, match="below the changefeed's target-ts"):
        control.resume("cf", overwrite_checkpoint_ts=Ts(900))
    assert wanted(control) == ("stopped", "stopped")


def test_control_verbs_that_the_state_does_not_allow_write_nothing(control: ChangefeedControl) -> None:
    before = control.store.get("cf")
    control.resume("cf", overwrite_checkpoint_ts=Ts(1))
    assert control.store.get("cf") == before
    assert control.store.status("cf") is None


def test_control_remove_is_once(control: ChangefeedControl, board: StatusBoard) -> None:
    opened(board)
    board.report(checkpoint_ts=Ts(110))
    removed = control.remove("cf")
    assert removed is not None
    assert removed.state == "removed"
    board.report(checkpoint_ts=Ts(120))
    assert control.store.list() == []
    for verb in (control.remove, control.pause, control.resume):
        with pytest.raises(ChangefeedNotFoundError):
            verb("cf")


def test_control_remove_while_a_sorter_writes_leaves_nothing_to_a_later_one(
    control: ChangefeedControl, board: StatusBoard, stack: Addresses, paths: ZkPaths
) -> None:
    folder = paths.changefeed_info("default", "cf").rsplit("/", 1)[0]
    request = ChangefeedRequest(upstream=UpstreamId("u"), sink_uri=URI, config={}, changefeed_id="cf", start_ts=Ts(100))
    for _ in range(20):
        removed = threading.Event()

        def write(removed: threading.Event = removed) -> None:
            while not removed.is_set():
                board.begin(b"{}", Ts(0))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            control.remove("cf")
        finally:
            removed.set()
            writer.join()
        with lasting_session(stack.zookeeper_access) as session:
            assert session.client.exists(folder) is None
        control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))


def test_control_update_replaces_what_is_given_and_only_where_it_is_stopped(control: ChangefeedControl) -> None:
    change = ConfigChange(sink_uri=URI.replace("/t?", "/other?"), target_ts=Ts(800))
    with pytest.raises(UpdateRefusedError, match="pause it first"):
        control.configure("cf", change)
    control.pause("cf")
    changed = control.configure("cf", change)
    assert (changed.sink_uri, changed.target_ts, changed.start_ts) == (change.sink_uri, 800, 100)
    assert control.store.get("cf") == changed
    with pytest.raises(UpdateRefusedError, match="nothing to update"):
        control.configure("cf", change)


def test_control_update_asks_for_images_of_what_comes_in_or_changes_nothing(
    control: ChangefeedControl, stack: Addresses, paths: ZkPaths
) -> None:
    control.pause("cf")
    with lasting_session(stack.zookeeper_access) as session:

        def asked() -> list[int]:
            node = session.client.get(paths.changefeed_images("default", "cf"))[0]
            return sorted(decode_asked(node).requested[ImageMode.BACKFILL])

        control.configure("cf", ConfigChange(target_ts=Ts(800)), imaged=[TableId(7)])
        assert asked() == [7]
        control.configure("cf", ConfigChange(target_ts=Ts(900)), imaged=[TableId(9), TableId(8)])
        assert asked() == [7, 8, 9]
        before = control.store.get("cf")
        with pytest.raises(ImageRefusedError):
            many = [TableId(number) for number in range(TABLES_MAX + 1)]
            control.configure("cf", ConfigChange(target_ts=Ts(950)), imaged=many)
        assert (control.store.get("cf"), asked()) == (before, [7, 8, 9])


@pytest.mark.parametrize(
    "change", [ConfigChange(target_ts=Ts(100)), ConfigChange(config={"no-such-key": 1}), ConfigChange(sink_uri="x://")]
)
def test_control_update_that_is_not_allowed_changes_nothing(control: ChangefeedControl, change: ConfigChange) -> None:
    control.pause("cf")
    before = control.store.get("cf")
    with pytest.raises(ConfigError):
        control.configure("cf", change)
    assert control.store.get("cf") == before


def test_control_that_raced_with_the_sorter_takes_its_newest_checkpoint(
    control: ChangefeedControl, board: StatusBoard
) -> None:
    opened(board)
    failed(control, 150)
    read: Any = control._read
    raced = iter([True])

    def read_then_race(*names: str) -> Any:
        nodes = read(*names)
        if next(raced, False):
            failed(control, 170)
        return nodes

    control._read = read_then_race  # type: ignore[method-assign, assignment]
    control.resume("cf")
    assert control.store.status("cf").checkpoint_ts == 170  # type: ignore[union-attr]


def test_status_board_writes_over_a_sorter_that_should_be_gone(control: ChangefeedControl, board: StatusBoard) -> None:
    opened(board)
    board.report(checkpoint_ts=Ts(170))
    write_status(control.store, "cf", ChangefeedStatus(state="normal", checkpoint_ts=Ts(160), resolved_ts=Ts(160)))
    board.fail(KafkaUnreachableError("no answer"), 0)
    status = control.store.status("cf")
    assert status is not None
    assert (status.state, status.checkpoint_ts) == ("normal", 170), "what follows from it is the owner's to say"
    assert status.failure is not None
    assert (status.failure.epoch, status.failure.code, status.failure.may_heal) == (0, KafkaUnreachableError.code, True)
