"""What captures say to each other comes out as it went in."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.peers.landing_codec import ReportDecoder, ReportEncoder
from consumers.control.core.peers.message_codec import decode_message, encode_message
from consumers.control.core.replication.messages import (
    AddTableRequest,
    AddTableResponse,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveTableRequest,
    RemoveTableResponse,
    Standing,
    Stats,
    TableState,
    TableStatus,
)
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, TableId, Ts
from schemas.proto import schedulepb_pb2
from schemas.rawlog.frontier import Chunk, LandingReport
from schemas.rawlog.pull_figures import PullFigures, StalledSpan
from schemas.sink_figures import BUCKETS_MAX, NO_FIGURES, SinkFigures, Spread
from schemas.tidb.spans import TableSpan

TABLE_IDS = st.integers(0, 2**63 - 1).map(TableId)
TSS = st.integers(0, 2**63 - 1).map(Ts)
KEYS = st.binary(min_size=1, max_size=30)
SPANS = TABLE_IDS.map(TableSpan.of_table) | st.builds(TableSpan, TABLE_IDS, KEYS, KEYS)
CHECKPOINTS = st.builds(Checkpoint, TSS, TSS, TSS)
STATS = st.builds(
    Stats,
    region_count=st.integers(0, 2**64 - 1),
    barrier_ts=TSS,
    stage_checkpoints=st.dictionaries(st.sampled_from(["puller-ingress", "sink"]), CHECKPOINTS),
)
SPREADS = st.builds(Spread, st.lists(st.integers(0, 2**63), max_size=BUCKETS_MAX + 1).map(tuple), TSS)
SINK_FIGURES = st.builds(SinkFigures, SPREADS, SPREADS, SPREADS, SPREADS, files=TSS, file_bytes=TSS)
STANDINGS = st.builds(
    Standing,
    ddl=st.binary(max_size=30),
    offset=st.integers(0, 2**63 - 1),
    barrier_ts=TSS,
    rows_total=TSS,
    windows_proven=TSS,
    windows_unproven=TSS,
    sink=st.just(NO_FIGURES) | SINK_FIGURES,
)
STATUSES = st.builds(
    TableStatus, SPANS, st.sampled_from(TableState), CHECKPOINTS, st.none() | STATS, st.none() | STANDINGS
)
BARRIERS = st.builds(
    Barrier, TSS, st.dictionaries(TABLE_IDS, TSS, max_size=3), TSS, st.binary(max_size=30), schemas_ts=TSS
)
BODIES = st.one_of(
    st.builds(AddTableRequest, SPANS, st.booleans(), CHECKPOINTS),
    st.builds(RemoveTableRequest, SPANS),
    st.builds(AddTableResponse, STATUSES),
    st.builds(RemoveTableResponse, STATUSES),
    st.builds(
        Heartbeat,
        st.lists(SPANS, max_size=5).map(tuple),
        st.booleans(),
        st.booleans(),
        st.none() | BARRIERS,
        st.booleans(),
    ),
    st.builds(HeartbeatResponse, st.lists(STATUSES, max_size=5).map(tuple), st.sampled_from(Liveness)),
)
CAPTURES = st.text("abc-0123", min_size=1).map(CaptureId)
HEADERS = st.builds(
    Header, st.text(max_size=10), st.integers(0, 2**63 - 1), st.text(max_size=10), st.integers(0, 2**64 - 1)
)
MESSAGES = st.builds(Message, HEADERS, CAPTURES, CAPTURES, st.integers(0, 2**63 - 1), BODIES)


@given(MESSAGES)
def test_message_when_sent_comes_as_it_was(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(SPANS, SINK_FIGURES)
def test_figures_of_a_partition_come_as_a_processor_counted_them(span: TableSpan, figures: SinkFigures) -> None:
    at = Standing(ddl=b"", offset=0, barrier_ts=Ts(0), rows_total=1, windows_proven=0, windows_unproven=0, sink=figures)
    status = TableStatus(span, TableState.REPLICATING, Checkpoint(Ts(1), Ts(1), Ts(1)), None, at)
    response = HeartbeatResponse((status,), Liveness.ALIVE)
    message = Message(Header("1.0.0", 1, "", 1), CaptureId("a"), CaptureId("b"), 1, response)
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=60))
def test_message_when_it_is_none_is_refused(content: bytes) -> None:
    with contextlib.suppress(CorruptDataError):
        decode_message(content)


@pytest.mark.parametrize(
    "raw",
    [
        schedulepb_pb2.Message(),
        schedulepb_pb2.Message(msg_type=schedulepb_pb2.MessageType.ValueType(9)),
        schedulepb_pb2.Message(msg_type=schedulepb_pb2.MsgDispatchTableRequest),
        schedulepb_pb2.Message(
            msg_type=schedulepb_pb2.MsgHeartbeatResponse,
            heartbeat_response=schedulepb_pb2.HeartbeatResponse(liveness=7),
        ),
    ],
    ids=["nothing", "unknown type", "no body", "unknown liveness"],
)
def test_message_of_a_kind_that_we_do_not_know_is_refused(raw: schedulepb_pb2.Message) -> None:
    with pytest.raises(CorruptDataError):
        decode_message(raw.SerializeToString())


def test_whole_table_has_no_keys_on_the_wire_and_a_part_has_encoded_ones() -> None:
    """TiCDC's convention; what a memcomparable key looks like is written in docs/formats/tidb-encoding.md §1."""
    raw = schedulepb_pb2.Message()
    spans = (TableSpan.of_table(TableId(7)), TableSpan(TableId(7), b"t", b"u"))
    heartbeat = Message(Header("1.0.0", 1, "", 1), CaptureId("a"), CaptureId("b"), 1, Heartbeat(spans))
    raw.ParseFromString(encode_message(heartbeat))
    assert [(span.start_key, span.end_key) for span in raw.heartbeat.spans] == [
        (b"", b""),
        (b"t\0\0\0\0\0\0\0\xf8", b"u\0\0\0\0\0\0\0\xf8"),
    ]


POOL = [TableSpan.of_table(TableId(number)) for number in range(1, 30)] + [
    TableSpan(TableId(99), bytes([start]), bytes([start + 1])) for start in range(1, 6)
]
OFFSETS = st.integers(0, 2**62)
VECTORS = st.lists(OFFSETS, min_size=2, max_size=2).map(tuple)
NEAR = st.integers(450_000_000_000_000_000, 450_000_000_000_000_003).map(Ts)
REPORTS = st.builds(
    LandingReport,
    capture=st.just(CaptureId("a")),
    landed_ts=st.one_of(
        st.dictionaries(st.sampled_from(POOL), NEAR), st.dictionaries(st.sampled_from(POOL), TSS | NEAR)
    ),
    ends=VECTORS,
    chunks=st.lists(st.builds(Chunk, st.integers(0, 1), OFFSETS, TSS), max_size=3).map(tuple),
    floors=VECTORS,
    repeat_ends=VECTORS,
)


@given(st.lists(REPORTS, min_size=1, max_size=6))
def test_reports_of_a_stream_come_as_they_were(reports: list[LandingReport]) -> None:
    encoder, decoder = ReportEncoder(), ReportDecoder(CaptureId("a"))
    packed = [decoder.decode(encoder.encode(report)) for report in reports]
    # Unpacked last: a report that waits must not change with those after it.
    assert [waiting.unpack() for waiting in packed] == reports
    assert [list(waiting.unpack().landed_ts) for waiting in packed] == [list(report.landed_ts) for report in reports]


@pytest.mark.parametrize("distinct", [1, 200, 300])
@pytest.mark.parametrize("step", [1, 1 << 40])
def test_report_of_many_spans_at_some_distinct_ts_comes_as_it_was(distinct: int, step: int) -> None:
    spans = [TableSpan.of_table(TableId(number)) for number in range(1, 1000)]
    base = 450_000_000_000_000_000
    encoder, decoder = ReportEncoder(), ReportDecoder(CaptureId("a"))
    for turn in range(3):
        landed = {span: Ts(base + turn + number % distinct * step) for number, span in enumerate(spans)}
        report = LandingReport(
            capture=CaptureId("a"), landed_ts=landed, ends=(1,), chunks=(), floors=(1,), repeat_ends=(0,)
        )
        assert decoder.decode(encoder.encode(report)).unpack() == report


def test_report_when_little_has_moved_costs_little() -> None:
    spans = [TableSpan.of_table(TableId(number)) for number in range(1, 10_001)]
    landed = {span: Ts(450_000_000_000_000_000 + number) for number, span in enumerate(spans)}
    encoder, sizes = ReportEncoder(), []
    for span in (spans[0], spans[1]):
        landed = {**landed, span: Ts(450_000_000_000_100_000)}
        report = LandingReport(
            capture=CaptureId("a"), landed_ts=landed, ends=(1,), chunks=(), floors=(1,), repeat_ends=(0,)
        )
        sizes.append(len(encoder.encode(report)))
    assert sizes[0] > 10_000 > 100 > sizes[1]


FIGURES = st.builds(
    PullFigures,
    rows=st.integers(0, 1 << 60),
    regions=st.integers(0, 1 << 30),
    spilled_bytes=st.integers(0, 1 << 50),
    troubles=st.dictionaries(st.sampled_from(["not_leader", "stream_broken"]), st.integers(1, 1 << 40)),
    stalls=st.lists(
        st.builds(StalledSpan, st.integers(1, 99).map(lambda number: TableSpan.of_table(TableId(number))), st.text())
    ).map(tuple),
    broker_reason=st.text(),
)


@given(st.lists(st.none() | FIGURES, max_size=6))
def test_report_figures_come_as_they_were_and_cost_nothing_while_they_stand(reported: list[PullFigures | None]) -> None:
    encoder, decoder, newest = ReportEncoder(), ReportDecoder(CaptureId("a")), None
    for figures in reported:
        report = LandingReport(
            capture=CaptureId("a"), landed_ts={}, ends=(1,), chunks=(), floors=(1,), repeat_ends=(0,), figures=figures
        )
        newest = figures or newest
        assert decoder.decode(encoder.encode(report)).unpack().figures == newest
        again = encoder.encode(report)
        assert len(again) < 12
        assert decoder.decode(again).unpack().figures == newest
