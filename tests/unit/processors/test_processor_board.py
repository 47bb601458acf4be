"""What a processor asks of ZooKeeper while it looks at its changefeed again and again."""

from typing import cast

import pytest

from consumers.control.changefeeds.processor_nodes import (
    AppliedNode,
    ProcessorInfo,
    encode_applied,
    encode_processor,
)
from consumers.processors.board import ProcessorBoard
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.sink.topic import life_of
from tests.support.control.memory_zookeeper import MemoryZooKeeper

PATHS = ZkPaths("c")
INFO_PATH = PATHS.changefeed_info("default", "cf")
STATUS_PATH, APPLIED_PATH = PATHS.changefeed_status("default", "cf"), PATHS.changefeed_applied("default", "cf")
LOCK_PATH, FOLDER = PATHS.changefeed_processor("default", "cf"), PATHS.changefeed_processors("default", "cf")


def board_of(server: MemoryZooKeeper) -> ProcessorBoard:
    return ProcessorBoard(cast(Session, server), PATHS, "default", "cf")


def info(target_ts: Ts | None = None, epoch: int = 0) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="cf",
        upstream=UpstreamId("u"),
        sink_uri="mysql://h/",
        start_ts=Ts(1),
        target_ts=target_ts,
        epoch=epoch,
    )


def applied(checkpoint_ts: int) -> bytes:
    return encode_applied(AppliedNode(life=life_of(info()), checkpoint_ts=Ts(checkpoint_ts)))


def test_board_looks_cost_a_request_for_each_node_that_has_changed() -> None:
    server = MemoryZooKeeper()
    board = board_of(server)
    assert board.look() is None
    server.write({INFO_PATH: encode_changefeed_info(info())})
    first = board.look()
    assert first is not None
    assert (first.info, first.status, first.runs) == (info(), None, True)
    asked = len(server.asked)
    for number in range(5):
        server.write({APPLIED_PATH: applied(number)})  # by itself, again and again
        assert board.look() is first
    assert len(server.asked) == asked
    stopped = ChangefeedStatus(state="failed", checkpoint_ts=Ts(5), resolved_ts=Ts(5))
    server.write({STATUS_PATH: encode_changefeed_status(stopped)})
    second = board.look()
    assert second is not None
    assert (second.status, second.runs, second.edition) == (stopped, False, first.edition)
    assert server.asked[asked:] == [("get", STATUS_PATH)]
    server.write({INFO_PATH: encode_changefeed_info(info(epoch=1))})
    third = board.look()
    assert third is not None
    assert (third.info.epoch, third.edition != first.edition) == (1, True)
    server.write({INFO_PATH: None})
    assert board.look() is None


def test_board_first_look_sees_a_changefeed_that_its_server_has_not_heard_of() -> None:
    server = MemoryZooKeeper()
    server.unheard = {INFO_PATH: encode_changefeed_info(info())}
    wanted = board_of(server).look()
    assert wanted is not None
    assert wanted.info == info()


def test_board_looks_at_what_is_applied_where_there_is_a_target() -> None:
    server = MemoryZooKeeper()
    server.write({INFO_PATH: encode_changefeed_info(info(Ts(9))), APPLIED_PATH: applied(8)})
    board = board_of(server)
    before = board.look()
    server.write({APPLIED_PATH: applied(9)})
    after = board.look()
    assert before is not None
    assert after is not None
    assert (before.finished, after.finished) == (False, True)


def test_board_passes_over_a_node_among_processors_that_no_session_holds(caplog: pytest.LogCaptureFixture) -> None:
    server = MemoryZooKeeper()
    board = board_of(server)
    known = ProcessorInfo(processor=CaptureId("p"), capture=CaptureId("c"), version="1", peer_address="p:1")
    server.write({f"{FOLDER}/p": encode_processor(known), f"{FOLDER}/stray": b"garbage"})
    for _ in range(2):
        assert board.processors() == {"p": known}
    assert [vars(record)["path"] for record in caplog.records] == [f"{FOLDER}/stray"]
    server.sessions[f"{FOLDER}/alive"] = 7
    server.write({f"{FOLDER}/alive": b"garbage"})
    with pytest.raises(CorruptDataError) as caught:  # it may have partitions: nobody counts without it
        board.processors({known.processor: known})
    assert caught.value.fields["path"] == f"{FOLDER}/alive"


def test_board_knows_who_leads_and_who_is_there_without_asking_again() -> None:
    server = MemoryZooKeeper()
    board = board_of(server)
    assert (board.leader_revision(), board.processors()) == (None, {})
    first, second = (
        ProcessorInfo(processor=CaptureId(name), capture=CaptureId("c"), version="1", peer_address=f"{name}:1")
        for name in ("p-1", "p-2")
    )
    server.write(
        {LOCK_PATH: b"p-1", f"{FOLDER}/p-2": encode_processor(second), f"{FOLDER}/p-1": encode_processor(first)}
    )
    revision = board.leader_revision()
    assert revision is not None
    known = board.processors(is_exact=False)
    assert [*known.values()] == [first, second]
    asked = len(server.asked)
    assert (board.leader_revision(), board.processors(known, is_exact=False)) == (revision, known)
    assert len(server.asked) == asked
    server.write({LOCK_PATH: None})
    assert board.leader_revision() is None
    server.write({LOCK_PATH: b"p-2", f"{FOLDER}/p-1": None})
    later = board.leader_revision()
    assert later is not None
    assert later > revision
    server.events_late = True
    server.write({f"{FOLDER}/p-1": encode_processor(first)})
    assert [*board.processors(is_exact=False)] == ["p-2"]
    assert [*board.processors(is_exact=True)] == ["p-1", "p-2"], "nobody may be missing"
