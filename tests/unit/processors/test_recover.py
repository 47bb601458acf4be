"""What ``tidebus recover`` decides and says, without a broker."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compose.operator import recover as recovers
from compose.operator.recover import (
    RecoverOptions,
    RecoverReport,
    as_json,
    closing_lines,
    opening_lines,
    recover,
    shown,
)
from consumers.processors.core.backoff import Backoff
from consumers.processors.core.recovery import CapturesAliveError, check_alone, check_sink, target_of
from consumers.processors.recovery import Applied, Stored
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables, encode_frontier
from schemas.rawlog.topics import raw_topics
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.last_frontier import HeldBack, LastFrontier, last_frontier
from sorters.log.failures import HistoryLostError
from sorters.run.recovery import Beyond, HeldByKafka
from tests.support.recorded.ddl_jobs import snapshot, table_info

R = Ts(1_000)
STORE = snapshot(("d", 1, [table_info(11, "a"), table_info(12, "b"), table_info(13, "c")]))


def feed(*rules: str, ignored: tuple[int, ...] = ()) -> CompiledFeed:
    config = {"filter": {"rules": list(rules), "ignore-txn-start-ts": list(ignored)}}
    return compile_feed(load_changefeed("kafka://h:9092/t?protocol=canal-json", config), "default")


def record(held: tuple[HeldTables, ...] = (), held_ddl: tuple[HeldDdl, ...] = ()) -> FrontierRecord:
    return FrontierRecord(
        owner_rev=3, resolved_ts=R, high=(9,), low=(8,), ddl_high=5, repeat_high=(0,), held=held, held_ddl=held_ddl
    )


def test_last_frontier_without_held_tables_is_consistent_at_its_resolved_ts() -> None:
    assert last_frontier(record(), STORE, feed("*.*")) == LastFrontier(
        owner_rev=3, resolved_ts=R, consistent_ts=R, held=(), low=(8,)
    )


def test_last_frontier_is_lowered_by_held_tables_of_the_changefeed_only_and_names_those() -> None:
    groups = (
        HeldTables(tables=(TableId(11), TableId(12)), ts=Ts(700), low=(4,)),
        HeldTables(tables=(TableId(13),), ts=Ts(400), low=(2,)),
    )
    frontier = last_frontier(record(groups), STORE, feed("d.a"))
    assert (frontier.consistent_ts, frontier.low) == (700, (4,))
    assert frontier.held == (HeldBack(ts=Ts(700), tables=("d.a",)),)
    everything = last_frontier(record(groups), STORE, feed("*.*"))
    assert (everything.consistent_ts, everything.low) == (400, (2,))
    assert [(held.ts, held.tables) for held in everything.held] == [(400, ("d.c",)), (700, ("d.a", "d.b"))]


def test_last_frontier_ends_before_a_ddl_that_could_not_be_read_unless_it_is_ignored() -> None:
    job = HeldDdl(ts=Ts(600), start_ts=Ts(590), low=(3,), schema="d", table="a", table_id=TableId(11))
    frontier = last_frontier(record(held_ddl=(job,)), STORE, feed("d.a"))
    assert frontier.consistent_ts == 599
    assert frontier.held == (HeldBack(ts=Ts(599), tables=("d.a",), ddl_start_ts=Ts(590)),)
    assert last_frontier(record(held_ddl=(job,)), STORE, feed("d.b")).consistent_ts == R
    assert last_frontier(record(held_ddl=(job,)), STORE, feed("d.a", ignored=(590,))).consistent_ts == R


def info(sink_uri: str = "mysql://u:secret@h/", target_ts: int | None = None) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="f",
        upstream=UpstreamId("u"),
        sink_uri=sink_uri,
        start_ts=Ts(100),
        target_ts=None if target_ts is None else Ts(target_ts),
    )


@pytest.mark.parametrize(
    ("consistent", "done", "target", "expected"),
    [(900, 500, None, 900), (900, 950, None, 950), (50, 0, None, 100), (900, 500, 600, 600), (900, 500, 2000, 900)],
    ids=["frontier", "sorter was further", "nothing yet", "own target", "own target beyond"],
)
def test_target_is_the_last_consistent_ts_and_never_behind_what_is_written(
    consistent: int, done: int, target: int | None, expected: int
) -> None:
    assert target_of(info(target_ts=target), Ts(consistent), Ts(done)) == expected


def test_recover_is_refused_while_captures_run_the_changefeed_and_only_then() -> None:
    running: tuple[ChangefeedState, ...] = ("normal", "warning", "pending")
    for state in running:
        with pytest.raises(CapturesAliveError, match="c1 at host, c2 at host"):
            check_alone(info(), state, ["c1 at host", "c2 at host"])
        check_alone(info(), state, [])
    at_rest: tuple[ChangefeedState, ...] = ("stopped", "failed", "finished")
    for state in at_rest:
        check_alone(info(), state, ["c1 at host"])
    with pytest.raises(ConfigError, match="being removed"):
        check_alone(info(), "removed", [])


@pytest.mark.parametrize("uri", ["kafka://h:9092/t?protocol=canal-json", "file:///tmp/x?protocol=csv"])
def test_recover_of_no_database_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="MySQL or TiDB"):
        check_sink(info(uri), load_changefeed(uri))
    check_sink(info(), load_changefeed("mysql://u@h/"))


class PassingError(BusError):
    code, action = "test.passing", Action.RETRY


class LastingError(BusError):
    code, action = "test.lasting", Action.STOP_CHANGEFEED


def test_patience_waits_longer_each_time_begins_anew_with_progress_and_ends() -> None:
    patience, error = Backoff(10.0, first_s=1.0, most_s=3.0), PassingError("away")
    assert [patience.wait_s(error, at) for at in (0.0, 1.0, 3.0)] == [1.0, 2.0, 3.0]
    assert patience.wait_s(error, 9.9) == 3.0
    assert patience.wait_s(error, 10.0) is None
    patience.progress()
    assert patience.wait_s(error, 50.0) == 1.0
    assert Backoff(10.0).wait_s(LastingError("row refused"), 0.0) is None


def report(applied: Applied | None, held: tuple[HeldBack, ...] = (), changes: int = 0) -> RecoverReport:
    last = LastFrontier(owner_rev=3, resolved_ts=R, consistent_ts=Ts(700), held=held, low=(8,))
    beyond = Beyond(changes=changes, tables=("d.a",) if changes else (), max_commit_ts=Ts(1_020), all_seen=False)
    return RecoverReport(
        changefeed="default/f",
        destination="mysql://***@h/",
        state="normal",
        before_ts=Ts(100),
        held=HeldByKafka(frontier=last, beyond=beyond),
        target_ts=Ts(700),
        applied=applied,
    )


def test_report_names_the_consistent_ts_what_is_held_and_what_is_not_applied() -> None:
    held = (HeldBack(ts=Ts(700), tables=("d.a", "d.b")), HeldBack(ts=Ts(800), tables=(), ddl_start_ts=Ts(790)))
    done = report(Applied(checkpoint_ts=Ts(700), rows=5, ddls=1), held, changes=2)
    opening = "\n".join(opening_lines(done))
    assert f"held: d.a, d.b: whole only up to {shown(Ts(700))}" in opening
    assert "ignore-txn-start-ts = [790]" in opening
    closing = closing_lines(done)
    assert closing[0].startswith(f"recovered: the destination shows what the upstream had at {shown(Ts(700))}")
    assert closing[1] == "checkpoint-ts:700, resolved-ts:1000"
    assert closing[2].startswith("not applied: at least 2 row changes of d.a")
    printed = as_json(done)
    assert (printed["checkpoint_ts"], printed["consistent_ts"], printed["resolved_ts"]) == (700, 700, R)
    assert (printed["rows"], printed["ddls"], printed["recovered"]) == (5, 1, True)


def test_report_of_a_dry_run_says_that_nothing_was_written() -> None:
    lines = closing_lines(report(None))
    assert lines[0].startswith("dry run: nothing was written; the destination can be brought to 700 ")
    assert lines[1] == "checkpoint-ts:100, resolved-ts:1000"
    assert as_json(report(None))["recovered"] is False


def test_dry_run_refuses_what_the_raw_log_no_longer_reaches_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": "played", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    topics = raw_topics(UpstreamId("u"))
    for topic in (topics.ddl, topics.region_events):
        producer.list_topics(topic, timeout=10)
    for ts in (500, 1_000):
        frontier = FrontierRecord(owner_rev=1, resolved_ts=Ts(ts), high=(0,), low=(0,), ddl_high=0, repeat_high=(0,))
        producer.produce(topics.frontier, encode_frontier(frontier), partition=0)
    assert producer.flush(20) == 0
    options = RecoverOptions(
        changefeed_id="cf",
        kafka=KafkaAccess(f"{broker.host}:{broker.port}"),
        zookeeper=ZooKeeperAccess("none:1"),
        data_dir=tmp_path,
        dry_run=True,
    )

    def dry_run(start_ts: int) -> RecoverReport:
        info = ChangefeedInfo(
            changefeed_id="cf", upstream=UpstreamId("u"), sink_uri="mysql://root@h:1/", start_ts=Ts(start_ts)
        )
        feed = Stored(info=info, created_zxid=1, status=None, applied_ts=Ts(0))
        monkeypatch.setattr(recovers, "stored", lambda *_: feed)
        return recover(options, print)

    monkeypatch.setattr(recovers, "Session", lambda _: nullcontext())
    with pytest.raises(HistoryLostError, match="raw log starts above the checkpoint"):
        dry_run(499)
    assert dry_run(500).target_ts == 1_000
    assert dry_run(1_000).target_ts == 1_000
