"""Reports that cannot be true, and a raw log that gets partitions while everybody works on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from consumers.control.core.frontier.held_tables import Holding
from consumers.control.core.frontier.reports import heard
from consumers.control.core.peers.landing_codec import ReportDecoder, ReportEncoder
from consumers.control.core.peers.message_codec import decode_message
from consumers.control.owner.heard_reports import HeardReports
from consumers.control.owner.ts_bound import ANCHOR_S, TsBound
from consumers.control.peers.interface import Side, upstream_feed
from producers.errors import PdUnreachableError
from producers.pull.core.landing.book import LandingBook
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId, compose_ts
from schemas.rawlog.frontier import (
    Chunk,
    DdlReport,
    FrontierRecord,
    HeldTables,
    LandingReport,
    TopicIds,
    decode_frontier,
    encode_frontier,
    follow_frontier,
)
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import frontier_for
from sorters.core.cut.cut_plan import plan_cuts
from tests.support.control.local_peers import LocalNet
from tests.support.control.reign_cluster import FakeOwner

A, B = CaptureId("a"), CaptureId("b")
SPAN = TableSpan.of_table(TableId(1))
FUTURE = Ts(1 << 61)
DDL = DdlReport(landed_ts=Ts(10**6), end=0)


def report(**changed: object) -> LandingReport:
    right = LandingReport(
        capture=A, landed_ts={SPAN: Ts(100)}, ends=(5, 5), chunks=(), floors=(5, 5), repeat_ends=(0, 0)
    )
    return replace(right, **changed)  # type: ignore[arg-type]


def inputs(
    reports: Mapping[CaptureId, LandingReport], spans: Sequence[TableSpan], landing: Sequence[CaptureId]
) -> FrontierInputs:
    return FrontierInputs(reports=reports, ddl=DDL, spans=spans, landing=landing)


FORGED = {
    "short vectors": report(ends=(5,)),
    "no vectors": report(ends=(), floors=(5,), repeat_ends=()),
    "very long vectors": report(ends=(5,) * 10**6, floors=(5,) * 10**6, repeat_ends=(0,) * 10**6),
    "offset below zero": report(floors=(-1, 5)),
    "chunk of no partition": report(chunks=(Chunk(2, 0, Ts(7)),)),
    "chunk of partition -1": report(chunks=(Chunk(-1, 0, Ts(7)),)),
    "chunk beyond the end": report(chunks=(Chunk(0, 5, Ts(7)),)),
    "landed in the future": report(landed_ts={SPAN: FUTURE}),
}


@pytest.mark.parametrize("name", FORGED)
def test_report_that_cannot_be_is_not_heard_and_moves_nothing(name: str) -> None:
    judged = heard({A: FORGED[name], B: report(capture=B)}, 2, lambda ts: ts < FUTURE)
    assert judged.reports.keys() == {B} and judged.refused.keys() == {A}
    assert "\n" not in judged.refused[A] and len(judged.refused[A]) < 200
    before = first_record(1, Ts(1), 2)
    assert advance(before, inputs(judged.reports, [SPAN], [A, B])).resolved_ts == 1


def test_owner_outlives_a_forged_report_and_says_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    net, feed, owner, counted = LocalNet(), upstream_feed(UpstreamId("u")), FakeOwner(), [3]
    peers = net.join(A)
    for side in Side:
        peers.take(feed, side)
    peers.resolve({A: ""})
    desk = HeardReports(peers, feed, owner, lambda: counted[0], lambda ts: ts < FUTURE, lambda: 100.0)
    for name in ("short vectors", "landed in the future", "very long vectors"):
        caplog.clear()
        desk.refused = {}
        peers.report(feed, A, FORGED[name])
        assert desk.of([A]) == {} and desk.refused.keys() == {A}
        desk.of([A])  # it is said once
        said = [vars(record) for record in caplog.records]
        assert [(line["code"], A in line["error"]) for line in said] == [("frontier.report_refused", True)]
    peers.report(feed, A, report())
    assert desk.of([A]).keys() == {A} and not desk.refused
    assert owner.partitions == 3, "Kafka was asked, not believed the report"


def test_ts_is_past_by_pds_clock_and_pd_is_asked_seldom() -> None:
    now, asked = [1000.0], [0]

    def ask() -> Ts:
        asked[0] += 1
        if asked[0] == 3:
            raise PdUnreachableError("away")
        return compose_ts(round(now[0] * 1000))

    bound = TsBound(ask, lambda: now[0])
    assert not bound.is_past(FUTURE) and asked[0] == 1
    for _ in range(1000):
        now[0] += 0.05
        assert bound.is_past(compose_ts(round(now[0] * 1000) - 200))
        assert not bound.is_past(compose_ts(round(now[0] * 1000) + 5000)) or asked[0] < 1000
    assert asked[0] <= 60
    asked[0] = 2
    now[0] += 2 * ANCHOR_S
    assert bound.is_past(compose_ts(round(now[0] * 1000) - 200)), "PD is away: by what it said last"
    assert not bound.is_past(FUTURE)


def test_reports_are_heard_of_an_upstream_whose_pd_has_answered_once_and_is_slow_then() -> None:
    now = [1000.0]

    def ask() -> Ts:
        raise PdUnreachableError("slow")

    bound = TsBound(ask, lambda: now[0])
    bound.anchor(compose_ts(round(now[0] * 1000)))
    now[0] += 30
    assert bound.is_past(compose_ts(round(now[0] * 1000)))
    assert not bound.is_past(FUTURE)


@given(st.binary(max_size=200))
def test_any_bytes_of_a_peer_are_a_message_or_refused(content: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [decode_message, ReportDecoder(A).decode, decode_frontier]
    for read in readers:
        try:
            read(content)
        except CorruptDataError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000


@given(st.data())
def test_any_change_to_a_reports_bytes_is_a_report_or_refused(data: st.DataObject) -> None:
    content = bytearray(ReportEncoder().encode(report(chunks=(Chunk(1, 2, Ts(7)),))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        packed = ReportDecoder(A).decode(bytes(content)).unpack()
    except CorruptDataError:
        return
    judged = heard({A: packed}, 2, lambda ts: ts < FUTURE)
    advance(first_record(1, Ts(1), 2), inputs(judged.reports, [SPAN], [A]))


# -- partitions that come


def test_old_and_new_captures_land_in_a_log_that_has_grown() -> None:
    """One capture knows two partitions, one three; rows of both are within what the owner publishes."""
    before = replace(first_record(1, Ts(10), 2), high=(4, 4), low=(3, 4))
    old, new = LandingBook(A, 2, before), LandingBook(B, 3, before)
    spans = TableSpan.of_table(TableId(1)), TableSpan.of_table(TableId(2))
    for book, span, partition, offset in ((old, spans[0], 1, 4), (new, spans[1], 2, 0)):
        book.assign(span, Ts(10))
        sent = book.sent(span, partition, Ts(15), may_repeat=False)
        book.acked(sent, offset)
        book.resolved(span, Ts(20))
    reports = {A: old.report(), B: new.report()}
    narrow = heard(reports, 2, lambda _: True)
    assert narrow.is_wider and narrow.reports.keys() == {A}
    assert advance(before, inputs(narrow.reports, spans, [A, B])).resolved_ts == 10, "it waits for the other"
    wide = heard(reports, 3, lambda _: True)
    record = advance(before.widened(3), inputs(wide.reports, spans, [A, B]))
    # B knows that partition 1 ends at 4, and A lands in no third one.
    assert (record.resolved_ts, record.high, record.low) == (20, (4, 5, 1), (4, 4, 1))
    for book in (old, new):
        book.published(record)
        assert len(book.report().ends) in (2, 3)
    (cut,) = plan_cuts(frontier_for(before, lambda _: True), [frontier_for(record, lambda _: True)], Ts(10))
    assert (cut.start, cut.end) == ((3, 4, 0), (4, 5, 1)), "the new partition is read from its beginning"


def test_reader_that_saw_fewer_partitions_follows_records_with_more() -> None:
    held = HeldTables(tables=(TableId(3),), ts=Ts(5), low=(1,))
    ids = TopicIds(events="e", ddl="d")
    last = replace(first_record(1, Ts(9), 1), high=(7,), low=(2,), held=(held,), topic_ids=ids)
    newer = replace(first_record(2, Ts(8), 2), high=(6, 3))
    followed = follow_frontier(last, newer)
    assert (followed.high, followed.low, followed.resolved_ts) == ((7, 3), (2, 0), 9)
    assert followed.held[0].low == (1, 0) and followed.topic_ids == ids
    assert follow_frontier(newer, replace(last, owner_rev=3)).high == (7, 3)
    assert frontier_for(followed, lambda _: True).low == (1, 0)
    assert Holding(1).after(followed).low_of(replace(held, ts=Ts(9))) == (2, 0)


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.text(max_size=5),
)
def test_frontier_records_come_back_whole_and_widen(first: list[int], second: list[int], name: str) -> None:
    made: list[FrontierRecord] = []
    for high in (first, second):
        zeros = (0,) * len(high)
        made.append(
            FrontierRecord(
                owner_rev=1,
                resolved_ts=Ts(1),
                high=tuple(high),
                low=zeros,
                ddl_high=0,
                repeat_high=zeros,
                topic_ids=TopicIds(events=name, ddl=""),
            )
        )
    assert [decode_frontier(encode_frontier(record)) for record in made] == made
    wide = max(map(len, (first, second)))
    assert len(follow_frontier(*made).high) == wide == len(made[0].widened(wide).low)
