"""The two frontier records of a prologue, and when they may be published."""

import pytest

from producers.pull.core.landing.prologue import prologue_frontier
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, LandingReport
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import frontier_for
from sorters.core.cut.cut_plan import plan_cuts


def report(*landed: int) -> LandingReport:
    return LandingReport(
        capture=CaptureId("c"),
        landed_ts={TableSpan.of_table(TableId(number)): Ts(ts) for number, ts in enumerate(landed, 1)},
        ends=(7, 0, 3),
        chunks=(),
        floors=(7, 0, 3),
        repeat_ends=(5, 0, 0),
    )


@pytest.mark.parametrize(("landed", "ddl"), [((49, 60), 60), ((60, 50), 49)])
def test_nothing_is_published_before_everything_up_to_the_end_has_landed(landed: tuple[int, ...], ddl: int) -> None:
    assert prologue_frontier(Ts(10), Ts(50), report(*landed), DdlReport(landed_ts=Ts(ddl), end=4)) is None


@pytest.mark.parametrize("landed", [(50, 60), ()])
def test_one_cut_between_the_two_reads_all_that_has_landed_for_the_interval(landed: tuple[int, ...]) -> None:
    records = prologue_frontier(Ts(10), Ts(50), report(*landed), DdlReport(landed_ts=Ts(50), end=4))
    assert records is not None
    first, last = (frontier_for(record, lambda _: True) for record in records)
    (cut,) = plan_cuts(first, [last], Ts(10), target_ts=Ts(50))
    assert (cut.after_ts, cut.upto_ts, cut.start, cut.end) == (10, 50, (0, 0, 0), (7, 0, 3))
    assert (cut.ddl_end, cut.may_repeat) == (4, True)
    (rest,) = plan_cuts(first, [last], Ts(30), target_ts=Ts(50))
    assert (rest.after_ts, rest.upto_ts, rest.start, rest.end) == (30, 50, (0, 0, 0), (7, 0, 3))
