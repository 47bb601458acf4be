"""Records of the images topic: what a scan lands comes back whole, or not at all."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import Op
from schemas.errors import BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.image_batch import (
    HEAD_BYTES_MAX,
    ImageBatch,
    ImageRows,
    ScanName,
    decode_image_columns,
    encode_image_batch,
    read_image_record,
)
from schemas.rawlog.image_chunk import ImageChunkBrokenError, read_chunk
from schemas.rawlog.images import ImageChunk, KeyRange

TABLE = TableId(5)
SCAN = ScanName(Ts(1 << 58), 3, 1)
START, END = b"a", b"z"
ROWS = st.dictionaries(
    st.binary(min_size=1, max_size=9).map(lambda key: b"k" + key), st.binary(max_size=40), max_size=30
)


def image_rows(rows: Sequence[tuple[bytes, bytes]]) -> ImageRows:
    """Return columns."""
    return ImageRows(
        key=pa.array([key for key, _ in rows], pa.binary()), value=pa.array([value for _, value in rows], pa.binary())
    )


def landed(
    batches: Sequence[Sequence[tuple[bytes, bytes]]], scan: ScanName = SCAN, bytes_max: int = 1 << 20
) -> list[bytes]:
    """Return the records of a scan of [START, END) whose batches have these rows."""
    records, at = list[bytes](), START
    for sequence, rows in enumerate(batches):
        last = sequence == len(batches) - 1
        end = END if last else rows[-1][0] + b"\0"
        batch = ImageBatch(
            scan=scan, table_id=TABLE, sequence=sequence, last=last, start=at, end=end, rows=image_rows(rows)
        )
        records += encode_image_batch(batch, 7, bytes_max)
        at = end
    return records


def chunk_of(rows: dict[bytes, bytes], scan: ScanName = SCAN) -> ImageChunk:
    """Return what a frontier record says of it."""
    return ImageChunk(
        ts=scan.barrier_ts,
        number=scan.number,
        attempt=scan.attempt,
        table_id=TABLE,
        feeds=("f",),
        keys=KeyRange(START, END),
        partition=0,
        offsets=(0, 1),
        rows=len(rows),
        bytes=sum(len(key) + len(value) for key, value in rows.items()),
    )


def given_back(records: Sequence[bytes], chunk: ImageChunk) -> dict[bytes, bytes]:
    """Return the rows that a reader gets."""
    rows: dict[bytes, bytes] = {}
    for batch in read_chunk(records, chunk):
        rows |= dict(zip(batch.key.to_pylist(), batch.value.to_pylist(), strict=True))
    return rows


def batches_of(rows: dict[bytes, bytes], size: int) -> list[list[tuple[bytes, bytes]]]:
    """Return rows in key order, so many a batch."""
    ordered = sorted(rows.items())
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


@given(ROWS, st.integers(1, 7), st.integers(0, 60))
def test_chunk_of_any_rows_and_batches_with_others_between_comes_back(
    rows: dict[bytes, bytes], size: int, part_bytes: int
) -> None:
    bytes_max = HEAD_BYTES_MAX + 1 + part_bytes
    own = landed(batches_of(rows, size), bytes_max=bytes_max)
    others = landed([[(b"x", b"other")]], scan=SCAN._replace(attempt=0))
    mixed = [*others, *(record for pair in zip(own, others * len(own), strict=False) for record in pair)]
    assert given_back(mixed, chunk_of(rows)) == rows
    assert all(len(record) <= bytes_max for record in own)


@given(
    st.dictionaries(st.binary(min_size=1, max_size=5).map(lambda key: b"k" + key), st.binary(max_size=9), min_size=4),
    st.data(),
)
def test_chunk_with_a_record_lost_repeated_or_moved_is_refused(rows: dict[bytes, bytes], data: st.DataObject) -> None:
    records = landed(batches_of(rows, 1))
    at = data.draw(st.integers(0, len(records) - 1))
    kind = data.draw(st.sampled_from(["lost", "repeated", "swapped"]))
    if kind == "lost":
        broken = [*records[:at], *records[at + 1 :]]
    elif kind == "repeated":
        broken = [*records[: at + 1], *records[at:]]
    else:
        at = min(at, len(records) - 2)
        broken = [*records[:at], records[at + 1], records[at], *records[at + 2 :]]
    with pytest.raises(ImageChunkBrokenError):
        given_back(broken, chunk_of(rows))


@given(ROWS.filter(bool), st.data())
def test_chunk_with_one_byte_changed_is_refused(rows: dict[bytes, bytes], data: st.DataObject) -> None:
    record = bytearray(landed([sorted(rows.items())])[0])
    at = data.draw(st.integers(5, len(record) - 1))
    record[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        seen = given_back([bytes(record)], chunk_of(rows))
    except BusError as error:
        assert isinstance(error, ImageChunkBrokenError | CorruptDataError)
    else:
        # A varint may be written in more than one way, and `last` is any byte that is 1.
        assert seen == rows


@pytest.mark.parametrize(
    "change", [{"rows": 3}, {"bytes": 1}, {"keys": KeyRange(START, b"zz")}, {"table_id": TableId(6)}]
)
def test_chunk_that_is_not_what_the_record_tells_of_is_refused(change: dict[str, object]) -> None:
    rows = {b"k1": b"v", b"k2": b"w"}
    with pytest.raises(ImageChunkBrokenError):
        given_back(landed([sorted(rows.items())]), replace(chunk_of(rows), **change))  # type: ignore[arg-type]


def test_chunk_without_rows_needs_no_record() -> None:
    assert given_back([], chunk_of({})) == {}


@given(st.binary(max_size=200))
def test_image_record_of_any_bytes_is_read_or_refused(record: bytes) -> None:
    for value in (record, b"\0\0\0\0\7" + record):
        try:
            head, columns = read_image_record(value)
            decode_image_columns(head, columns)
        except CorruptDataError:
            pass


def test_image_rows_as_changes_are_puts_at_the_barrier_ts() -> None:
    changes = image_rows([(b"k1", b"v"), (b"k2", b"w")]).changes(TABLE, SCAN.barrier_ts)
    assert changes.commit_ts.tolist() == changes.start_ts.tolist() == [SCAN.barrier_ts] * 2
    assert changes.op.tolist() == [Op.PUT, Op.PUT]
    assert (changes.key.to_pylist(), changes.value.to_pylist()) == ([b"k1", b"k2"], [b"v", b"w"])
    assert (changes.old_value.to_pylist(), changes.txn_source.tolist()) == ([b"", b""], [0, 0])
