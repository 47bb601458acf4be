"""What is said of table images comes out of records as it went in, and readers agree on what counts."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.peers.landing_codec import ReportDecoder, ReportEncoder
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import (
    FrontierRecord,
    LandingReport,
    decode_frontier,
    encode_frontier,
    follow_frontier,
)
from schemas.rawlog.images import (
    NO_IMAGES,
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageMode,
    ImageScan,
    ImageState,
    KeyRange,
    ScanResult,
    TableImage,
    holds_id,
    holds_key,
    merge_ids,
    merge_keys,
    missing_keys,
    without_id,
)

TS = st.integers(0, 2**63 - 1).map(Ts)
IDS = st.integers(0, 2**48).map(TableId)
NUMBERS = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.builds(KeyRange, st.binary(max_size=20), st.binary(max_size=20))
ID_RANGES = st.lists(st.builds(IdRange, IDS, IDS), max_size=3).map(tuple)
NAMES = ("default/a@1", "default/b@2", "tenant/a@3")
FEEDS = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
SCANS = st.builds(
    ImageScan, number=NUMBERS, capture=st.text(min_size=1).map(CaptureId), table_id=IDS, feeds=FEEDS, keys=KEYS,
    bytes_max=OFFSETS,
)  # fmt: skip
CHUNKS = st.builds(
    ImageChunk, ts=TS, number=NUMBERS, attempt=NUMBERS, table_id=IDS, feeds=FEEDS, keys=KEYS, partition=NUMBERS,
    offsets=st.tuples(OFFSETS, OFFSETS), rows=OFFSETS, bytes=OFFSETS,
)  # fmt: skip
STATES = st.builds(
    ImageState,
    version=st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)),
    feeds=st.tuples(
        *(st.builds(ImageFeed, feed=st.just(name), initial=ID_RANGES, backfill=ID_RANGES, resync=ID_RANGES)
          for name in NAMES)
    ),
    tables=st.lists(
        st.builds(TableImage, table_id=IDS, feeds=FEEDS, done=st.lists(KEYS, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    barriers=st.lists(
        st.builds(
            ImageBarrier, ts=TS, feeds=FEEDS, scans=st.lists(SCANS, max_size=2).map(tuple),
            low=st.lists(OFFSETS, max_size=3).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    chunks=st.lists(CHUNKS, max_size=2).map(tuple),
    cancelled=st.lists(TS, max_size=2).map(tuple),
)  # fmt: skip
RESULTS = st.builds(
    ScanResult, barrier_ts=TS, number=NUMBERS, attempt=NUMBERS, reached=st.binary(max_size=20), partition=NUMBERS,
    offsets=st.tuples(OFFSETS, OFFSETS), rows=OFFSETS, bytes=OFFSETS, failure=st.text(max_size=5),
)  # fmt: skip


def record(resolved_ts: int, owner_rev: int = 1, images: ImageState = NO_IMAGES) -> FrontierRecord:
    return FrontierRecord(
        owner_rev=owner_rev, resolved_ts=Ts(resolved_ts), high=(9,), low=(0,), ddl_high=0, repeat_high=(0,),
        images=images,
    )  # fmt: skip


@given(STATES)
def test_images_of_a_record_come_back_as_they_went_in(state: ImageState) -> None:
    value = encode_frontier(record(5, images=state))
    assert decode_frontier(value).images == state


def test_a_record_without_images_is_the_bytes_that_it_always_was() -> None:
    assert encode_frontier(record(5)) == (
        b'{"owner_rev":1,"resolved_ts":5,"high":[9],"low":[0],"ddl_high":0,"repeat_high":[0],"held":[]}'
    )


@given(STATES, st.data())
def test_images_that_are_none_are_refused_as_corrupt(state: ImageState, data: st.DataObject) -> None:
    raw = json.loads(encode_frontier(record(5, images=state)))
    field = data.draw(st.sampled_from(["version", "feeds", "tables", "barriers", "chunks"]))
    raw["images"][field] = data.draw(st.sampled_from([7, [7], [[7]], [{}], "seven", None]))
    with pytest.raises(CorruptDataError):
        decode_frontier(json.dumps(raw).encode())


def test_images_follow_their_own_version_and_not_the_resolved_ts() -> None:
    older, newer = ImageState(version=(1, 7)), ImageState(version=(1, 8))
    last = record(100, images=newer)
    # A new owner's opening record, which has not seen the last of its predecessor's; then one that never heard of any.
    after = follow_frontier(last, record(90, owner_rev=2, images=older))
    assert (after.resolved_ts, after.images) == (100, newer)
    after = follow_frontier(after, record(110, owner_rev=3))
    assert (after.resolved_ts, after.images) == (110, newer)
    own = ImageState(version=(4, 1))
    assert follow_frontier(after, record(105, owner_rev=4, images=own)).images == own


@given(st.none() | st.lists(RESULTS, max_size=3).map(tuple))
def test_scan_results_come_with_the_report(results: tuple[ScanResult, ...] | None) -> None:
    report = LandingReport(
        capture=CaptureId("c"), landed_ts={}, ends=(), chunks=(), floors=(), repeat_ends=(), scans=results
    )
    assert ReportDecoder(CaptureId("c")).decode(ReportEncoder().encode(report)).unpack() == report


SHORT = st.binary(max_size=2)


@given(st.lists(st.builds(KeyRange, SHORT, SHORT), max_size=6), SHORT, SHORT, SHORT)
def test_merged_and_missing_keys_divide_the_whole(ranges: list[KeyRange], start: bytes, end: bytes, key: bytes) -> None:
    merged = merge_keys(ranges)
    assert holds_key(merged, key) == holds_key(ranges, key)
    assert all(left.end < right.start for left, right in pairwise(merged))
    missing = missing_keys(KeyRange(start, end), ranges)
    assert holds_key(missing, key) == (start <= key < end and not holds_key(ranges, key))


SMALL = st.integers(1, 12).map(TableId)


@given(st.lists(st.builds(IdRange, SMALL, SMALL), max_size=5), SMALL, SMALL)
def test_ids_stay_what_they_were_without_the_one_taken_out(
    ranges: list[IdRange], gone: TableId, other: TableId
) -> None:
    left = without_id(merge_ids(ranges), gone)
    assert not holds_id(left, gone)
    assert other == gone or holds_id(left, other) == holds_id(ranges, other)


def test_a_feed_says_how_it_waits_for_a_table() -> None:
    feed = ImageFeed(
        feed="default/a@1",
        initial=(IdRange(TableId(1), TableId(5)),),
        backfill=(IdRange(TableId(7), TableId(7)),),
        resync=(IdRange(TableId(9), TableId(9)),),
    )
    modes = [feed.mode_of(TableId(table)) for table in (5, 6, 7, 9)]
    assert modes == [ImageMode.INITIAL, None, ImageMode.BACKFILL, ImageMode.RESYNC]
