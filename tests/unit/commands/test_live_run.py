"""When a run's time is over, and what its changefeeds are."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compose.local import live_run
from compose.local.data_folder import data_folder
from compose.local.first_frontier import FirstFrontier
from compose.local.live_run import START_S, Deadline, all_passed, demo_changefeed
from compose.local.monitor import BusView, FeedView, Monitor
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest, NoFrontierError
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.log.raw_log import RawLogUnavailableError, RetainedFrontier
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedState, ChangefeedStatus, ZkPaths

PARTS = Addresses(kafka="127.0.0.1:9092", zookeeper="127.0.0.1:2181", schema_registry="http://127.0.0.1:8081")


def test_deadline_counts_from_when_everything_flows() -> None:
    now = [0.0]
    deadline = Deadline(90.0, lambda: now[0])
    now[0] = 100.0
    assert not deadline.is_over(False)
    assert not deadline.is_over(True)
    now[0] = 189.0
    assert not deadline.is_over(True)
    now[0] = 190.0
    assert deadline.is_over(False)


def test_deadline_when_nothing_ever_flows_ends_all_the_same() -> None:
    now = [0.0]
    deadline = Deadline(10.0, lambda: now[0])
    now[0] = START_S + 1
    assert not deadline.is_over(False)
    now[0] += 10
    assert deadline.is_over(False)


def _feed(name: str, checkpoint_ts: int, state: ChangefeedState) -> FeedView:
    ts = Ts(checkpoint_ts)
    status = ChangefeedStatus(
        state="normal", checkpoint_ts=ts, resolved_ts=ts, error=None, rows_total=0, batch_rows=0, batch_s=0.0
    )
    return FeedView(changefeed_id=name, status=status, rows_per_s=0.0, rows_total=0, lag_s=None, state=state)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_end_of_a_run_does_not_wait_for_a_changefeed_that_cannot_come(state: ChangefeedState) -> None:
    def view(*feeds: FeedView) -> BusView:
        return BusView(
            rows_in_per_s=0.0, rows_in_total=0, frontier=None, frontier_lag_s=None, feeds=tuple(feeds), topics=()
        )

    assert all_passed(view(_feed("runs", 100, "normal"), _feed("does not", 50, state)), Ts(100))
    assert not all_passed(view(_feed("runs", 99, "normal"), _feed("does not", 50, state)), Ts(100))
    assert not all_passed(view(), Ts(0))


def test_monitor_of_a_zookeeper_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compose.local.monitor.CONNECT_TIMEOUT_S", 0.2)
    nowhere = Addresses(kafka="127.0.0.1:1", zookeeper="127.0.0.1:1", schema_registry="")
    with (
        pytest.raises(ZooKeeperUnreachableError, match="check --zookeeper"),
        Monitor(nowhere, ZkPaths(), UpstreamId("u"), lambda: Ts(1), ()),
    ):
        pass


@pytest.mark.parametrize(("starts", "said"), [(False, "before everything had started"), (True, "stopped at once")])
def test_run_that_is_interrupted_says_how_far_it_was(
    *, starts: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bus(contextlib.nullcontext[None]):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def __enter__(self) -> None:
            if not starts:
                raise live_run.Interrupted

    class Session:
        def __init__(self, *_: object) -> None:
            raise live_run.Interrupted

    monkeypatch.setattr(live_run, "LocalBus", Bus)
    monkeypatch.setattr(live_run, "_Session", Session)
    options = live_run.LiveRunOptions(data_dir=tmp_path, upstream=UpstreamId("u"))
    assert live_run.live_run(options) == 130
    assert said in capsys.readouterr().out


def test_first_changefeed_waits_until_the_frontier_topic_has_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    away = FrontierUnavailableError("kafka does not serve the frontier topic", topic="t", reason="Leader not available")
    answers: list[Any] = [RawLogUnavailableError("there is no raw log"), away, away, NoFrontierError("none"), away]
    said, created = list[str](), list[ChangefeedRequest]()

    def window(*_: object) -> RetainedFrontier:
        answer = answers.pop(0) if answers else RetainedFrontier(Ts(5), Ts(9))
        if isinstance(answer, RetainedFrontier):
            return answer
        raise answer

    class Bus:
        addresses = PARTS

        def create_changefeed(self, request: ChangefeedRequest) -> None:
            created.append(request)

    monkeypatch.setattr("compose.local.first_frontier.retained_frontier", window)
    first = FirstFrontier(Bus(), demo_changefeed("avro", PARTS, UpstreamId("u")), said.append)  # type: ignore[arg-type]
    assert [first.create() for _ in range(3)] == [False] * 3
    assert said == [f"waits for the frontier topic: {away}"] and "Leader not available" in said[0]
    assert first.complaint() == f"no frontier could be read: {away}"
    assert [first.create() for _ in range(3)] == [False, False, True]
    assert ([request.start_ts for request in created], len(said)) == ([5], 1)


def test_first_changefeed_that_is_not_allowed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConfigError("no")

    monkeypatch.setattr("compose.local.first_frontier.retained_frontier", refused)
    bus: Any = SimpleNamespace(addresses=PARTS)
    with pytest.raises(ConfigError):
        FirstFrontier(bus, demo_changefeed("avro", PARTS, UpstreamId("u")), print).create()


def test_demo_changefeeds_are_allowed_and_name_every_tables_topic() -> None:
    for protocol, topic in (("canal-json", "canal_{schema}_{table}"), ("avro", "avro_{schema}_{table}")):
        request = demo_changefeed(protocol, PARTS, UpstreamId("u"))
        config = load_changefeed(request.sink_uri, request.config)
        assert config.protocol == protocol
        assert [rule.topic for rule in config.sink.dispatchers] == [topic]


def test_data_folder_of_an_earlier_run_is_emptied_unless_kept(tmp_path: Path) -> None:
    with data_folder(tmp_path / "run", keep=False) as folder:
        (folder / "kafka").mkdir()
        (folder / "kafka" / "topics").touch()
    with data_folder(folder, keep=True):
        assert (folder / "kafka" / "topics").exists()
    with data_folder(folder, keep=False):
        assert not (folder / "kafka").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_data_folder_of_a_run_that_lives_is_nobody_elses(tmp_path: Path, keep: bool) -> None:
    with data_folder(tmp_path / "run", keep=False) as folder:
        (folder / "topics").touch()
        with pytest.raises(ConfigError, match="another run uses this data folder"), data_folder(folder, keep=keep):
            pass
        assert (folder / "topics").exists()


def test_data_folder_of_somebody_else_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds files that are not of a run"):
        data_folder(tmp_path, keep=False).__enter__()
    assert (tmp_path / "thesis.tex").exists()
