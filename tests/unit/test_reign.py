"""An owner's tick without Kafka, PD and ZooKeeper: its steps, a broker that is away, a DDL that does not fit."""

from typing import Any

import pytest

from compose.reign import Reign, ReignOptions
from consumers.core.frontier import advance, first_record
from consumers.frontier_topic import FrontierUnavailableError
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from tests.support.recording import committed_changes
from tests.support.schema_feed import ddl_records

CAPTURE = CaptureId("a")


class FakeOwner:
    """Publishes by the real arithmetic, unless the broker is away."""

    def __init__(self) -> None:
        self.place, self.away, self.seen = first_record(1, Ts(0), 1), False, list[set[TableId]]()

    def tick(self, reports: Any, ddl: Any, tables: Any, *, repeats_possible: bool) -> FrontierRecord | None:
        if self.away:
            raise FrontierUnavailableError("away")
        self.seen.append(set(tables))
        record = advance(self.place, reports, ddl, tables, repeats_possible=repeats_possible)
        moved, self.place = record != self.place, record
        return record if moved else None


class FakePuller:
    """Lands every table up to ``landed`` at once."""

    def __init__(self) -> None:
        self.starts, self.landed, self.heard = dict[TableId, Ts](), Ts(0), list[FrontierRecord]()

    def assign(self, tables: dict[TableId, Ts]) -> None:
        self.starts.update(tables)

    def remove(self, tables: set[TableId]) -> None:
        for table in list(tables):
            del self.starts[table]

    def published(self, record: FrontierRecord) -> None:
        self.heard.append(record)

    def report(self) -> LandingReport:
        landed = {table: max(start, self.landed) for table, start in self.starts.items()}
        return LandingReport(capture=CAPTURE, landed_ts=landed, ends=(0,), chunks=(), floors=(0,), repeat_ends=(0,))


class FakeDdl:
    """Hands out records up to a ts."""

    def __init__(self, records: list[DdlRecord]) -> None:
        self.records, self.landed = records, Ts(0)

    def report(self) -> DdlReport:
        return DdlReport(landed_ts=self.landed, end=0)

    def take(self) -> list[DdlRecord]:
        ready = [record for record in self.records if record.ts <= self.landed]
        self.records = self.records[len(ready) :]
        return ready


def reign(records: list[DdlRecord]) -> tuple[Reign, FakeOwner, FakePuller, FakeDdl]:
    owner, puller, ddl = FakeOwner(), FakePuller(), FakeDdl(records)
    made: Any = Reign(CAPTURE, owner, puller, ddl, ReignOptions(), had_predecessor=False)  # type: ignore[arg-type]
    return made, owner, puller, ddl


def test_reign_tables_are_pulled_from_their_ddl_before_the_frontier_can_pass_it() -> None:
    records = list(ddl_records(committed_changes()))
    one, owner, puller, ddl = reign(records)
    for record in records:
        ddl.landed = puller.landed = record.ts
        one.tick()
        assert owner.place.resolved_ts <= record.ts
        assert all(start <= record.ts for start in puller.starts.values())
        assert owner.seen[-1] == set(puller.starts)
    one.tick()
    one.tick()
    assert owner.place.resolved_ts == records[-1].ts
    assert len(puller.starts) == 28
    assert puller.heard[-1] == owner.place


def test_reign_broker_away_publishes_nothing_tells_the_puller_nothing_and_goes_on() -> None:
    one, owner, puller, ddl = reign([DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})])
    ddl.landed, owner.away = Ts(9), True
    one.tick()
    heard = len(puller.heard)
    one.tick()
    assert (owner.place.resolved_ts, len(puller.heard)) == (0, heard)
    owner.away = False
    one.tick()
    assert (owner.place.resolved_ts, puller.heard[-1].resolved_ts) == (9, 9)


def test_reign_without_snapshot_publishes_nothing() -> None:
    one, owner, _, ddl = reign([])
    ddl.landed = Ts(9)
    one.tick()
    assert owner.seen == []


def test_reign_ddl_that_does_not_decode_stops_before_the_frontier_moves() -> None:
    broken = DdlRecord(kind="job", ts=Ts(8), payload={"id": 1, "type": 3})
    one, owner, _, ddl = reign([DdlRecord(kind="snapshot_end", ts=Ts(5), payload={}), broken])
    ddl.landed = Ts(9)
    with pytest.raises(BusError) as caught:
        one.tick()
    assert caught.value.code
    assert owner.place.resolved_ts == 0
