"""How far the frontier reaches by the reports of several captures: by whoever has landed most of each span."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, LandingReport
from schemas.tidb.spans import TableSpan

SPANS = [TableSpan.of_table(TableId(number)) for number in range(45, 50)]
CAPTURES = [CaptureId(name) for name in "abc"]
LANDED = st.dictionaries(st.sampled_from(SPANS), st.integers(1, 60), max_size=len(SPANS))


@given(
    st.dictionaries(st.sampled_from(CAPTURES), LANDED),
    st.sets(st.sampled_from(SPANS)),
    st.sets(st.sampled_from(CAPTURES)),
    st.integers(0, 70),
)
def test_frontier_reaches_the_least_span_by_whoever_has_landed_most_of_it(
    reported: dict[CaptureId, dict[TableSpan, int]], spans: set[TableSpan], landing: set[CaptureId], ddl_ts: int
) -> None:
    reports = {
        capture: LandingReport(
            capture=capture,
            landed_ts={span: Ts(ts) for span, ts in landed.items()},
            ends=(7,),
            chunks=(),
            floors=(number,),
            repeat_ends=(0,),
        )
        for number, (capture, landed) in enumerate(reported.items(), 1)
    }
    record = advance(
        first_record(1, Ts(5), 1),
        FrontierInputs(reports, DdlReport(landed_ts=Ts(ddl_ts), end=0), spans, landing=landing),
    )
    ends = [max((landed.get(span, 0) for landed in reported.values()), default=0) for span in spans]
    everybody_told, everything_is_somewhere = landing <= reported.keys(), all(ends)
    if everybody_told and everything_is_somewhere:
        assert record.resolved_ts == max(5, min([ddl_ts, *ends]))
    else:
        assert record.resolved_ts == 5
    # The floors are 1, 2, …: the least of all, once everybody who may be landing is among them.
    assert record.low == ((1,) if everybody_told and reported else (0,))
