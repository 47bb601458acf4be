"""A raw record that is damaged and still decodes, or has another one's header, is found; and older ones are taken."""

import pickle
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import RowChanges
from schemas.errors import Action
from schemas.ids import RegionId, TableId
from schemas.rawlog.record_check import (
    CHECK_HEADER,
    NO_TABLE,
    RawRecord,
    RecordDamagedError,
    RowsCheck,
    Whose,
    check_headers,
)
from schemas.rawlog.region_batch import (
    RegionBatch,
    SharedRecord,
    decode_region_batch,
    encode_region_batch,
    read_batch_head,
)
from schemas.rawlog.row_parts import PART_OVERHEAD_BYTES, PartJoiner, cut_record

WHERE = ("tidebus.u.region-events", 3, 17)


def rows_of(count: int, seed: int = 0, value: bytes = b"v" * 30) -> RowChanges:
    ts = np.arange(seed + 10, seed + 10 + count, dtype=np.int64)
    return RowChanges(
        table_id=TableId(7),
        commit_ts=ts,
        start_ts=ts - 1,
        op=np.ones(count, np.int8),
        key=pa.array([b"key-%d" % (seed + at) for at in range(count)], pa.binary()),
        value=pa.array([value] * count, pa.binary()),
        old_value=pa.array([b""] * count, pa.binary()),
        txn_source=np.zeros(count, np.int64),
    )


def encoded(rows: RowChanges) -> bytes:
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)


def said_of(rows: RowChanges, record: bytes) -> bytes:
    ((name, said),) = check_headers(RowsCheck.of(rows), record, Whose.of(rows))
    assert name == CHECK_HEADER
    return said


def read(record: RawRecord) -> RowChanges:
    whole = PartJoiner().take(3, record)
    assert whole is not None
    return decode_region_batch(whole).rows


@given(st.integers(1, 30), st.data(), st.sampled_from([RawRecord, SharedRecord]))
def test_any_byte_that_is_another_is_found_and_named(count: int, data: st.DataObject, kind: type[RawRecord]) -> None:
    rows = rows_of(count)
    sent = encoded(rows)
    said = said_of(rows, sent)
    assert read(kind.known(sent, said, WHERE)).key.to_pylist() == rows.key.to_pylist()
    at, bit = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(0, 7))
    damaged = sent[:at] + bytes([sent[at] ^ 1 << bit]) + sent[at + 1 :]
    with pytest.raises(RecordDamagedError) as raised:
        read(kind.known(damaged, said, WHERE))
    fields = raised.value.fields
    assert (fields["topic"], fields["partition"], fields["offset"]) == WHERE
    assert (raised.value.code, raised.value.action) == ("rawlog.record_damaged", Action.STOP_CHANGEFEED)


def test_value_that_is_another_and_decodes_is_found_by_the_check_alone() -> None:
    rows = rows_of(3, value=b"balance=100")
    sent = encoded(rows)
    damaged = sent.replace(b"balance=100", b"balance=900", 1)
    assert read(RawRecord.known(damaged, None, WHERE)).value[0].as_py() == b"balance=900", "older: nothing is known"
    with pytest.raises(RecordDamagedError, match="bytes are not those"):
        read(RawRecord.known(damaged, said_of(rows, sent), WHERE))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_header_of_another_record_is_found(count: int, other_count: int, seed: int) -> None:
    mine, other = rows_of(count), rows_of(other_count, seed)
    if encoded(mine) == encoded(other):
        return
    with pytest.raises(RecordDamagedError):
        read(RawRecord.known(encoded(mine), said_of(other, encoded(other)), WHERE))


@pytest.mark.parametrize("name", ["commit_ts", "start_ts", "op", "key"])
def test_rows_that_were_encoded_other_than_they_were_packed_are_found_after_decoding(name: str) -> None:
    rows = rows_of(5)
    column = getattr(rows, name)
    swapped = column.take(pa.array([1, 0, 2, 3, 4])) if name == "key" else column[[1, 0, 2, 3, 4]]
    if name == "op":
        swapped = np.array([1, 1, 2, 1, 1], np.int8)
    sent = encoded(replace(rows, **{name: swapped}))
    with pytest.raises(RecordDamagedError, match="rows are not those"):
        read(RawRecord.known(sent, said_of(rows, sent), WHERE))
    fewer = encoded(replace(rows_of(4), commit_ts=rows.commit_ts[[0, 1, 2, 4]]))
    with pytest.raises(RecordDamagedError, match="rows are not those"):
        read(RawRecord.known(fewer, said_of(rows, fewer), WHERE))
    other = encoded(replace(rows, table_id=TableId(8)))
    with pytest.raises(RecordDamagedError, match="head is not that") as raised:
        read(RawRecord.known(other, said_of(rows, other), WHERE))
    assert raised.value.fields["table_id"] == 7


@given(st.binary(max_size=40))
def test_header_that_is_none_is_refused_and_one_with_more_in_it_is_read(said: bytes) -> None:
    rows = rows_of(2)
    sent = encoded(rows)
    real = said_of(rows, sent)
    if said.partition(b":")[0] != real.partition(b":")[0]:
        with pytest.raises(RecordDamagedError):
            read(RawRecord.known(sent, said, WHERE))
    assert len(read(RawRecord.known(sent, real + b":" + said, WHERE))) == 2


def parts_of(rows: RowChanges) -> list[RawRecord]:
    parts = cut_record(encoded(rows), PART_OVERHEAD_BYTES + 100, 9)
    return [RawRecord.known(part, said_of(rows, part), ("t", 0, at)) for at, part in enumerate(parts)]


def joined(parts: Sequence[RawRecord]) -> RowChanges:
    joiner = PartJoiner()
    (whole,) = [whole for part in parts if (whole := joiner.take(0, part)) is not None]
    return decode_region_batch(whole).rows


def test_each_part_of_a_row_is_checked_and_the_row_that_they_make() -> None:
    rows = rows_of(1, value=b"v" * 500)
    parts = parts_of(rows)
    assert len(parts) > 4
    assert joined(parts).value.to_pylist() == [b"v" * 500]
    bad = RawRecord.known(parts[2][:-3] + b"x" + parts[2][-2:], parts[2].said, parts[2].where)
    with pytest.raises(RecordDamagedError) as raised:
        joined([*parts[:2], bad, *parts[3:]])
    assert raised.value.fields["offset"] == 2
    others = [replaced(part, replace(rows, start_ts=rows.start_ts - 1)) for part in parts]
    with pytest.raises(RecordDamagedError, match="rows are not those"):
        joined(others)


def replaced(part: RawRecord, rows: RowChanges) -> RawRecord:
    return RawRecord.known(part, said_of(rows, part), part.where)


def test_head_is_held_as_well_so_that_no_row_is_skipped_by_a_damaged_one() -> None:
    rows = rows_of(3)
    sent = encoded(rows)
    other = bytearray(sent)
    other[5] ^= 2  # table_id
    assert read_batch_head(bytes(other)).table_id != 7
    said = said_of(rows, sent)
    whole = PartJoiner(lambda _: False).take(3, RawRecord.known(bytes(other), said, WHERE))
    assert whole is not None
    assert read_batch_head(whole).table_id == 7


OLDER = 3
"""Fields of the header before it said whose a record is."""


@pytest.mark.parametrize("kind", [RawRecord, SharedRecord])
@pytest.mark.parametrize("is_part", [False, True])
def test_damaged_record_whose_header_tells_whose_it_is_is_passed_over_by_who_looks_at_heads(
    kind: type[RawRecord], is_part: bool
) -> None:
    rows = rows_of(1, value=b"v" * 500)
    sent = parts_of(rows)[1] if is_part else encoded(rows)
    said = said_of(rows, sent)
    for at in range(len(sent)):
        record = kind.known(sent[:at] + bytes([sent[at] ^ 1]) + sent[at + 1 :], said, WHERE)
        whole = PartJoiner().take(3, record)
        assert whole is record
        head = read_batch_head(whole)
        assert (head.table_id, head.count, head.min_commit_ts, head.max_commit_ts) == (7, 1, 10, 10)
    assert whole is not None
    with pytest.raises(RecordDamagedError, match="bytes are not those") as raised:
        decode_region_batch(whole)
    names = ("topic", "partition", "offset", "table_id", "min_commit_ts", "max_commit_ts")
    assert [raised.value.fields[name] for name in names] == [*WHERE, 7, 10, 10]
    assert read_batch_head(pickle.loads(pickle.dumps(whole))) == head, "also in another process"


def test_damaged_record_whose_header_tells_nobody_whose_it_is_stops_all() -> None:
    rows = rows_of(3)
    sent = encoded(rows)
    damaged, fields = sent[:-1] + b"!", said_of(rows, sent).split(b":")
    foreign = [*fields[:OLDER], b"8", *fields[OLDER + 1 :]]
    for said in (b":".join(fields[:OLDER]), b":".join(foreign), b":".join(fields[:-1])):
        with pytest.raises(RecordDamagedError) as raised:
            PartJoiner(lambda _: False).take(3, RawRecord.known(damaged, said, WHERE))
        assert "table_id" not in raised.value.fields
        assert len(read(RawRecord.known(sent, said, WHERE))) == 3, "the record itself is what was sent"


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_foreign_record_is_kept_for_who_asks_for_it_and_refused_to_all_others(
    foreign: bytes, said: bytes | None
) -> None:
    record = SharedRecord.known(foreign, said, WHERE)
    joiner = PartJoiner(lambda _: False, keeps_unknown=True)
    try:
        PartJoiner().take(3, RawRecord.known(foreign, said, WHERE))
    except RecordDamagedError as error:
        due = error
    else:
        return  # by chance the head of a record
    assert joiner.take(3, record) is record
    assert record.is_unknown
    head = read_batch_head(record)
    assert (head.table_id, head.min_commit_ts, head.max_commit_ts) == (NO_TABLE, 0, 2**63 - 1), "within every cut"
    for read_it in (lambda: decode_region_batch(record), lambda: PartJoiner().take(3, record)):
        with pytest.raises(RecordDamagedError) as raised:
            read_it()
        assert (str(raised.value), raised.value.fields) == (str(due), due.fields)
        assert "table_id" not in due.fields
    assert joiner.take(3, record, may_begin=False) is None


def test_record_goes_between_processes_with_what_is_said_of_it() -> None:
    rows = rows_of(1)
    sent = encoded(rows)
    again = pickle.loads(pickle.dumps(RawRecord.known(sent, said_of(rows, sent), WHERE)))
    assert (again, again.said, again.where) == (sent, said_of(rows, sent), WHERE)


def test_header_is_as_the_format_says() -> None:
    rows = rows_of(2)
    crcs = (rows.commit_ts.tobytes(), rows.start_ts.tobytes(), b"\1\1", b"key-0key-1")
    four = b"".join(zlib.crc32(each).to_bytes(4, "little") for each in crcs)
    text = b"2:%08x:%08x:7:10:11" % (zlib.crc32(four), zlib.crc32(b"record"))
    assert said_of(rows, b"record") == text + b":%08x" % zlib.crc32(text)
