"""An owner's tick without Kafka, PD and ZooKeeper: its steps, a broker that is away, a DDL that does not fit."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from consumers.control.core.frontier.frontier import first_record
from consumers.control.core.frontier.span_split import SplitSettings
from consumers.control.owner.reign_parts import ReignOptions
from schemas.ddl.job import DdlDecodeError, DdlType, undecodable_record
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.spans import TableSpan, incomplete_tables
from tests.support.control.reign_cluster import CAPTURE, Cluster, FakeDdl, FakeOwner, FakePuller
from tests.support.recorded.ddl_jobs import job, table_info
from tests.support.recorded.recording import committed_changes
from tests.support.recorded.schema_feed import ddl_records


def reign(
    records: list[DdlRecord], published: FrontierRecord | None = None, options: ReignOptions | None = None
) -> tuple[Cluster, FakeOwner, FakePuller, FakeDdl]:
    owner, ddl = FakeOwner(), FakeDdl(records)
    owner.published = published or owner.published
    cluster = Cluster(owner, ddl, options)
    return cluster, owner, cluster.captures[CAPTURE].puller, ddl


def test_reign_tables_are_pulled_from_their_ddl_before_the_frontier_can_pass_it() -> None:
    records = list(ddl_records(committed_changes()))
    cluster, owner, puller, ddl = reign(records)
    for record in records:
        ddl.landed = puller.landed = record.ts
        cluster.tick()
        assert owner.published.resolved_ts <= record.ts
        assert all(start <= record.ts for start in puller.starts.values())
        assert owner.seen[-1] == set(puller.starts)
    cluster.tick()
    cluster.tick()
    assert owner.published.resolved_ts == records[-1].ts
    assert len(puller.starts) == 28
    assert puller.heard[-1] == owner.published


def test_reign_broker_away_publishes_nothing_tells_the_puller_nothing_and_goes_on() -> None:
    cluster, owner, puller, ddl = reign([DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})])
    ddl.landed, owner.away = Ts(9), True
    cluster.tick()
    heard = len(puller.heard)
    cluster.tick()
    assert (owner.published.resolved_ts, len(puller.heard)) == (0, heard)
    owner.away = False
    cluster.tick()
    assert (owner.published.resolved_ts, puller.heard[-1].resolved_ts) == (9, 9)


def test_reign_without_snapshot_publishes_nothing() -> None:
    cluster, owner, _, ddl = reign([])
    ddl.landed = Ts(9)
    cluster.tick()
    assert owner.seen == []


OLD, NEW = TableId(70), TableId(71)
JOB_TABLE = {"cols": [{"id": 2, "name": {"O": "job_meta", "L": "job_meta"}}]}


def creation(finished_ts: int, table_id: int) -> DdlRecord:
    info = table_info(table_id, f"t{table_id}")
    return job(finished_ts, DdlType.CREATE_TABLE, schema_id=1, table_id=table_id, table_info=info)


def unread(record: DdlRecord, *, readable: bool) -> DdlRecord:
    """Return a job as a version lands it that cannot read its row; ``readable``: the one under test can."""
    meta = json.dumps(record.payload).encode() if readable else b"\xff"
    row = encode_row_v2({2: meta})
    error = DdlDecodeError("no", reason="too new")
    return undecodable_record(b"k", row, JOB_TABLE, start_ts=record.start_ts, commit_ts=record.ts, error=error)


def snapshot() -> list[DdlRecord]:
    schema = DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": {"O": "d", "L": "d"}})
    return [schema, DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})]


UNREADABLE = unread(creation(20, NEW), readable=False)
MISFIT = replace(creation(20, NEW), payload={"id": 20, "type": int(DdlType.CREATE_TABLE)})


@pytest.mark.parametrize("record", [UNREADABLE, MISFIT], ids=["row", "job"])
def test_reign_bad_ddl_job_is_held_and_the_frontier_goes_on(
    record: DdlRecord, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, owner, puller, ddl = reign([*snapshot(), creation(10, OLD), record])
    ddl.landed = puller.landed = Ts(10)
    cluster.tick()
    ddl.landed = puller.landed = Ts(30)
    cluster.tick()
    cluster.tick()
    assert (owner.published.resolved_ts, set(puller.starts)) == (30, {TableSpan.of_table(OLD)})
    assert [(held.ts, held.start_ts, held.schema) for held in owner.published.held_ddl] == [(20, 19, "")]
    assert [line.levelname for line in caplog.records if "ddl job" in line.message] == ["ERROR"]


def test_reign_job_that_an_earlier_owner_could_not_read_its_table_is_pulled_from_the_job_on() -> None:
    held = HeldDdl(ts=Ts(20), start_ts=Ts(19), low=(0,))
    published = replace(first_record(2, Ts(30), 1), held_ddl=(held,))
    cluster, owner, puller, ddl = reign(
        [*snapshot(), creation(10, OLD), unread(creation(20, NEW), readable=True)], published
    )
    ddl.landed, puller.landed = Ts(40), Ts(0)
    cluster.tick()
    assert puller.starts == {TableSpan.of_table(OLD): 30, TableSpan.of_table(NEW): 20}
    assert (owner.published.resolved_ts, owner.published.held_ddl) == (30, (held,)), "held until its rows have landed"
    assert owner.published.repeat_high == owner.published.high
    puller.landed = Ts(35)
    cluster.tick()
    assert (owner.published.resolved_ts, owner.published.held_ddl) == (35, ())


def test_reign_job_that_an_earlier_owner_could_read_and_this_one_cannot_ends_it() -> None:
    published = first_record(2, Ts(30), 1)
    cluster, owner, _, ddl = reign([*snapshot(), unread(creation(20, NEW), readable=False)], published)
    ddl.landed = Ts(40)
    with pytest.raises(DdlDecodeError, match="key=6b, commit_ts=20"):
        cluster.tick()
    assert owner.published == published


def test_reign_table_that_an_earlier_owner_held_is_pulled_from_its_own_ts_until_its_end_is_published() -> None:
    drop = job(25, DdlType.DROP_TABLE, schema_id=1, table_id=OLD)
    records = [*snapshot(), creation(10, OLD), creation(12, NEW), drop]
    held = HeldTables(tables=(OLD,), ts=Ts(20), low=(0,))
    published = replace(first_record(2, Ts(30), 1), held=(held,))
    cluster, owner, puller, ddl = reign(list(records), published)
    ddl.landed, puller.landed = Ts(40), Ts(0)
    cluster.tick()
    assert puller.starts == {TableSpan.of_table(OLD): 20, TableSpan.of_table(NEW): 30}
    puller.landed = Ts(35)
    cluster.tick()
    cluster.tick()
    assert (owner.published.resolved_ts, owner.published.held) == (35, ())
    assert set(puller.starts) == {TableSpan.of_table(NEW)}
    gone = replace(published, held=(replace(held, ts=Ts(25)),))
    cluster, owner, puller, ddl = reign(list(records), gone)
    ddl.landed = Ts(40)
    cluster.tick()
    assert set(puller.starts) == {TableSpan.of_table(NEW)}, "all its rows are published, though another may be held"


SPLIT = ReignOptions(split=SplitSettings(enable_table_across_nodes=True, region_threshold=10), split_look_s=0.0)


def tick_until(cluster: Cluster, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        cluster.tick()


def test_reign_large_table_begins_in_spans_and_no_frontier_is_published_before_it() -> None:
    cluster, owner, puller, ddl = reign([*snapshot(), creation(10, OLD)], options=SPLIT)
    puller.regions[OLD] = [row_key(OLD, number) for number in range(20)]
    puller.counting.clear()
    ddl.landed = puller.landed = Ts(30)
    for _ in range(3):
        cluster.tick()
    assert (puller.starts, owner.published.resolved_ts) == ({}, 0)
    puller.counting.set()
    tick_until(cluster, lambda: owner.published.resolved_ts == 30)
    assert (len(puller.starts), incomplete_tables(puller.starts)) == (3, [])
    cluster.close()


def test_reign_table_that_grows_is_split_from_the_published_frontier_and_one_that_shrinks_is_joined() -> None:
    cluster, owner, puller, ddl = reign([*snapshot(), creation(10, OLD)], options=SPLIT)
    ddl.landed = puller.landed = Ts(30)
    tick_until(cluster, lambda: owner.published.resolved_ts == 30)
    assert list(puller.starts) == [TableSpan.of_table(OLD)]
    puller.regions[OLD] = [row_key(OLD, number) for number in range(20)]
    tick_until(cluster, lambda: len(puller.starts) == 3)
    assert set(puller.starts.values()) == {30}
    assert incomplete_tables(puller.starts) == []
    puller.regions.clear()
    ddl.landed = puller.landed = Ts(40)
    tick_until(cluster, lambda: list(puller.starts) == [TableSpan.of_table(OLD)] and owner.published.resolved_ts == 40)
    cluster.close()
