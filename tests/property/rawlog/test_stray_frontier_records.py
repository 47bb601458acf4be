"""Records of the frontier topic that no owner has written: every reader stands where it would stand without them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.control.core.frontier.frontier import first_record
from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.tail import decoded_frontier
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, encode_frontier, follow_frontier
from sorters.log import frontier_reader
from sorters.log.failures import HistoryLostError
from sorters.log.frontier_reader import FrontierReader

FIRST = 7
"""The offset of the first record that is left."""
STRAYS = (b"", b"hello, wrong topic", b"{}", b'{"resolved_ts":1}', b"\x00\xff", b"null", b'["owner_rev"]')


@dataclass
class Topic:
    """Stands for a reader of the topic's one partition."""

    values: Sequence[bytes]
    topic: str = "tidebus.u.frontier"

    def bounds(self) -> tuple[int, int]:
        return FIRST, FIRST + len(self.values)

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for offset in range(start, min(end, FIRST + len(self.values))):
            yield offset, self.values[offset - FIRST]


def record(ts: int) -> FrontierRecord:
    return replace(first_record(1, Ts(ts), 2), low=(ts, ts), high=(ts + 5, ts + 5))


def reader_of(values: Sequence[bytes]) -> FrontierReader:
    reader: Any = FrontierReader.__new__(FrontierReader)
    reader._reader = Topic(values)
    return reader  # type: ignore[no-any-return]


def topic_of(values: Sequence[bytes]) -> FrontierTopic:
    topic: Any = FrontierTopic.__new__(FrontierTopic)
    topic._reader, topic._topic = Topic(values), "tidebus.u.frontier"
    return topic  # type: ignore[no-any-return]


def followed(records: Sequence[FrontierRecord]) -> FrontierRecord | None:
    stands: FrontierRecord | None = None
    for each in records:
        stands = follow_frontier(stands, each)
    return stands


@given(
    ts=st.lists(st.integers(1, 40), min_size=1, max_size=9, unique=True).map(sorted),
    strays=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(STRAYS)), max_size=9),
    after_ts=st.integers(0, 41),
    log_start=st.integers(0, 41),
)
def test_readers_stand_where_they_would_without_what_no_owner_has_written(
    ts: list[int], strays: list[tuple[int, bytes]], after_ts: int, log_start: int
) -> None:
    records = [record(each) for each in ts]
    values = list(map(encode_frontier, records))
    for at, stray in strays:
        values.insert(min(at, len(values)), stray)
    reader, topic = reader_of(values), topic_of(values)
    assert topic.newest() == followed(records)
    usable = [each for each in records if each.low[0] >= log_start]
    assert topic.oldest_usable((log_start, log_start)) == (usable[0] if usable else None)
    before = [each for each in records if each.resolved_ts <= after_ts]
    if not before:
        with pytest.raises(HistoryLostError):
            reader.find(Ts(after_ts))
        return
    start = reader.find(Ts(after_ts))
    assert reader.record_before(start) == followed(before)
    rest = [each for each in reader.read(start, reader.end()) if each is not NOBODYS]
    assert rest == records[len(before) :]
    assert followed([followed(before) or NOBODYS, *reader.read(start, reader.end())]) == followed(records)


@given(
    said=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=14),
    after_ts=st.integers(0, 41),
    look_back=st.integers(1, 5),
)
@example(said=[(1, 75), (1, 80), (1, 85), (1, 90), (1, 85), (1, 95), (1, 100), (1, 105)], after_ts=85, look_back=3)
def test_topic_goes_back_then_who_begins_at_a_ts_stands_no_higher(
    said: list[tuple[int, int]], after_ts: int, look_back: int
) -> None:
    """Owners that did not hear that a record had landed say once more where they stood; replaced ones come late."""
    values = [encode_frontier(replace(record(ts), owner_rev=revision)) for revision, ts in said]
    reader = reader_of(values)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(frontier_reader, "LOOK_BACK_RECORDS", look_back)
        try:
            start = reader.find(Ts(after_ts))
        except HistoryLostError:
            assert said[0][1] > after_ts
            return
        assert FIRST < start <= reader.end()
        assert reader.record_before(start).resolved_ts <= after_ts


def test_stray_record_is_said_once_with_its_offset(caplog: pytest.LogCaptureFixture) -> None:
    assert [decoded_frontier(b"hello", "t", 9) for _ in range(3)] == [NOBODYS] * 3
    (said,) = caplog.records
    assert (said.levelno, said.__dict__["topic"], said.__dict__["offset"]) == (logging.ERROR, "t", 9)


def test_record_of_an_owner_that_does_not_decode_is_passed_over_by_nobody() -> None:
    value = encode_frontier(record(9))
    topic = topic_of([value, value[:-3]])
    with pytest.raises(CorruptDataError) as error:
        topic.newest()
    assert (error.value.fields["topic"], error.value.fields["offset"]) == ("tidebus.u.frontier", FIRST + 1)
