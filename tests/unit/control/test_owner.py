"""What an owner makes of answers that do not come, with a frontier topic and a lease in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import pytest

from consumers.control.core.frontier.frontier import FrontierInputs
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.owner.owner import Owner
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId, TableId, Ts, compose_ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport, follow_frontier
from schemas.tidb.spans import TableSpan

SPANS = tuple(TableSpan.of_table(TableId(number)) for number in (1, 2, 3))


@dataclass(slots=True)
class Topic:
    """``fates``: of the next records; "answered" when there are none left."""

    records: list[FrontierRecord] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def publish(self, record: FrontierRecord) -> int:
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate != "lost":
            self.records.append(record)
        self.meanwhile()
        if fate != "answered":
            raise FrontierUnavailableError("no answer")
        return len(self.records) - 1

    def newest(self) -> FrontierRecord | None:
        published = None
        for record in self.records:
            published = follow_frontier(published, record)
        return published


@dataclass(slots=True)
class Lease:
    is_over: bool = False

    def check_lease(self) -> None:
        if self.is_over:
            raise LeaseLostError("over")


def ms(at: int) -> Ts:
    return compose_ts(1_700_000_000_000 + at)


def tick(owner: Owner, *at_ms: int) -> FrontierRecord | None:
    """Let the tables have landed so far."""
    capture = CaptureId("a")
    landed_ts = dict(zip(SPANS, map(ms, at_ms), strict=True))
    report = LandingReport(capture=capture, landed_ts=landed_ts, ends=(5,), chunks=(), floors=(5,), repeat_ends=(0,))
    return owner.tick(FrontierInputs({capture: report}, DdlReport(landed_ts=ms(10**6), end=0), SPANS))


def stands(topic: Topic, table: int) -> list[Ts]:
    """Return where a changefeed of one table stands after each record."""
    places = list(accumulate(topic.records, follow_frontier))
    return [
        min([published.resolved_ts, *(held.ts for held in published.held if TableId(table) in held.tables)])
        for published in places
    ]


def begun(topic: Topic, lease: Lease) -> Owner:
    owner = Owner(topic, lease, 1, 1, held_lag_s=1.0, clock=lambda: 0.0)
    owner.start(lambda: ms(0))
    return owner


@pytest.mark.parametrize("fate", ["there", "lost"])
def test_owner_whose_record_was_not_acknowledged_goes_on_from_where_readers_stand(fate: str) -> None:
    """Readers have followed table 2 to 3 s. Then it lags, and would be held with table 1, which lags for longer."""
    topic = Topic()
    owner = begun(topic, Lease())
    topic.fates = [fate]
    with pytest.raises(FrontierUnavailableError):
        tick(owner, 1000, 3000, 3000)
    tick(owner, 1000, 3000, 9000)
    tick(owner, 1000, 3000, 9000)
    assert owner.published == topic.newest()
    assert owner.published.resolved_ts == ms(9000)
    for table in (1, 2, 3):
        assert stands(topic, table) == sorted(stands(topic, table))


def test_owner_as_long_as_nothing_is_acknowledged_says_so_and_then_goes_on() -> None:
    topic = Topic()
    owner = begun(topic, Lease())
    topic.fates = ["there", "lost", "lost"]
    for _ in range(3):
        with pytest.raises(FrontierUnavailableError):
            tick(owner, 3000, 3000, 3000)
    tick(owner, 4000, 4000, 4000)
    assert owner.published.resolved_ts == ms(4000)
    assert owner.published == topic.newest()


def test_owner_whose_lease_ended_while_its_record_was_on_its_way_tells_nobody_of_it() -> None:
    topic, lease = Topic(), Lease()
    owner = begun(topic, lease)
    topic.meanwhile = lambda: setattr(lease, "is_over", True)
    with pytest.raises(LeaseLostError):
        tick(owner, 3000, 3000, 3000)
    assert owner.published.resolved_ts == ms(0)
