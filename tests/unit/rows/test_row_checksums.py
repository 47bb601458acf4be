"""The row checksum in a changefeed: what verifies, what a corrupt row does, and what its messages say."""

import json
import struct
import zlib

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_checksum import MountedChecksum, mounted_checksum
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount.corrupt_rows import NAMED_MAX, CorruptChecksumError, CorruptRow, CorruptRows
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.cut.worker import CutCounts
from sorters.spark.tasks.cut_answers import counts_as_json, sum_of_counts
from tests.support.control.changefeed_config import AVRO, CANAL
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE_ID, BAD = TableId(112), 5
COLUMNS = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v", tp=15, flen=20)]
SUM_OF_AB = zlib.crc32(struct.pack("<QI", 7, 2) + b"ab")
"""The column checksum of (7, "ab")."""
COUNTS = pytest.mark.parametrize("count", [SMALL_ROWS // 2, 3 * SMALL_ROWS], ids=["scalar", "columnar"])


def store() -> SchemaStore:
    columns = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    return snapshot(("d", 1, [table_info(TABLE_ID, "t", columns=columns)]))


def table() -> TableVersion:
    return next(iter(store().tables_at(Ts(10))))


def summed(text: bytes, mark: int, *sums: int) -> bytes:
    """Return a row whose one column besides the key is ``text``, with a checksum part."""
    row = encode_row_v2({2: text})
    return row[:1] + b"\x02" + row[2:] + bytes((mark,)) + b"".join(struct.pack("<I", checksum) for checksum in sums)


def of_handle(handle: int, text: bytes) -> bytes:
    row = summed(text, 2)
    return row + struct.pack("<I", zlib.crc32(row + row_key(TABLE_ID, handle)[11:]))


def feed(uri: str, level: str = "warn") -> CompiledFeed:
    text = f"[integrity]\nintegrity-check-level = 'correctness'\ncorruption-handle-level = '{level}'"
    compiled = compile_feed(load_changefeed(uri, text), "default", {"topic-a": 1})
    ids = {schema.key: 1 for schema in compiled.encoder.schemas(table(), "topic-a")}
    compiled.schema_ids.update(ids)  # type: ignore[attr-defined] # a dict, made by this call alone
    return compiled


def inserts(count: int) -> list[CommittedChange]:
    """Return rows of which one has other bytes than its checksum is of."""
    return [
        CommittedChange(
            100 + n,
            99 + n,
            row_key(TABLE_ID, n),
            "put",
            of_handle(n, b"ab").replace(b"ab", b"aB") if n == BAD else of_handle(n, b"ab"),
            b"",
            0,
        )
        for n in range(count)
    ]


SIMPLE = CANAL.replace("canal-json", "simple")
STRINGS = "&enable-tidb-extension=true&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string"


@pytest.mark.parametrize("uri", [CANAL, SIMPLE, AVRO + STRINGS], ids=["canal-json", "simple", "avro"])
@COUNTS
def test_corrupt_row_with_handle_level_warn_is_told_and_written(uri: str, count: int) -> None:
    corrupt: list[CorruptRows] = []
    rows = row_changes(TABLE_ID, inserts(count))
    records = records_of(rows, store(), feed(uri), encoded_at_ms=1, on_corrupt=corrupt.append)
    assert records.num_rows == count
    assert corrupt == [CorruptRows(1, (CorruptRow("d.t", row_key(TABLE_ID, BAD).hex(), 100 + BAD),))]


@COUNTS
def test_corrupt_row_with_handle_level_error_stops_the_changefeed_naming_it(count: int) -> None:
    rows = row_changes(TABLE_ID, inserts(count))
    with pytest.raises(CorruptChecksumError) as caught:
        records_of(rows, store(), feed(CANAL, "error"), encoded_at_ms=1)
    fields = caught.value.fields
    assert caught.value.code == "mount.corrupt_checksum"
    assert (fields["table"], fields["key"], fields["commit_ts"], fields["corrupt_rows"]) == (
        "d.t",
        row_key(TABLE_ID, BAD).hex(),
        100 + BAD,
        1,
    )


@COUNTS
def test_corrupt_row_of_a_changefeed_that_does_not_verify_passes(count: int) -> None:
    compiled = compile_feed(
        load_changefeed(CANAL, "[integrity]\ncorruption-handle-level = 'error'"), "d", {"topic-a": 1}
    )
    rows = row_changes(TABLE_ID, inserts(count))
    assert records_of(rows, store(), compiled, encoded_at_ms=1).num_rows == count


@COUNTS
def test_corrupt_row_in_simple_says_so_and_keeps_the_checksum_that_it_carries(count: int) -> None:
    records = records_of(row_changes(TABLE_ID, inserts(count)), store(), feed(SIMPLE), encoded_at_ms=1)
    sums = {}
    for value in records.column("value").to_pylist():
        message = json.loads(value)
        sums[int(message["data"]["id"])] = message["checksum"]
    carried = struct.unpack("<I", of_handle(BAD, b"ab")[-4:])[0]
    assert sums.pop(BAD) == {"version": 2, "corrupted": True, "current": carried, "previous": 0}
    expected = {n: zlib.crc32(struct.pack("<QI", n, 2) + b"ab") for n in range(count) if n != BAD}
    assert sums == {
        n: {"version": 2, "corrupted": False, "current": checksum, "previous": 0} for n, checksum in expected.items()
    }


def verified(new: bytes, old: bytes = b"") -> MountedChecksum | None:
    """Verify rows that were mounted as (7, "ab")."""
    columns = (7, b"ab")
    key = row_key(TABLE_ID, 7)
    return mounted_checksum(table(), key, (columns if new else None, new), (columns if old else None, old))


def over_key(handle_only: bool) -> bytes:
    row = summed(b"ab", 2 if handle_only else 1)
    key = row_key(TABLE_ID, 7)
    return row + struct.pack("<I", zlib.crc32(row + (key[11:] if handle_only else key)))


def test_row_of_the_reference_with_a_checksum_of_its_handle_verifies() -> None:
    row = bytes.fromhex("800201000000020200616202281a7230")
    checksum = mounted_checksum(table(), row_key(TABLE_ID, 1), ((1, b"ab"), row), (None, b""))
    assert checksum is not None
    assert (checksum.version, checksum.corrupted) == (2, False)
    moved = mounted_checksum(table(), row_key(TABLE_ID, 2), ((2, b"ab"), row), (None, b""))
    assert moved == MountedChecksum(current=0x30721A28, previous=0, version=2, corrupted=True)


@pytest.mark.parametrize(
    ("row", "version", "corrupted"),
    [
        (summed(b"ab", 0, SUM_OF_AB), 0, False),
        (summed(b"ab", 8, 1, SUM_OF_AB), 0, False),
        (summed(b"ab", 8, SUM_OF_AB, 1), 0, False),
        (summed(b"ab", 0, 1), 0, True),
        (summed(b"ab", 8, 1, 2), 0, True),
        (over_key(handle_only=False), 1, False),
        (over_key(handle_only=True), 2, False),
    ],
)
def test_row_of_each_checksum_version_passes_on_the_checksum_of_its_columns(
    row: bytes, version: int, corrupted: bool
) -> None:
    assert verified(row) == MountedChecksum(current=SUM_OF_AB, previous=0, version=version, corrupted=corrupted)


def test_old_row_with_a_column_checksum_that_does_not_fit_counts_as_sound() -> None:
    old = summed(b"ab", 0, 1)
    assert verified(b"", old) == MountedChecksum(current=0, previous=SUM_OF_AB, version=0)
    assert verified(over_key(handle_only=True), old) == MountedChecksum(
        current=SUM_OF_AB, previous=SUM_OF_AB, version=2
    )


def test_old_row_with_a_byte_checksum_that_does_not_fit_is_corrupt() -> None:
    old = summed(b"ab", 2, 5)
    assert verified(b"", old) == MountedChecksum(current=0, previous=5, version=2, corrupted=True)


def test_row_without_checksum_has_none() -> None:
    assert verified(encode_row_v2({2: b"ab"})) is None
    assert verified(b"\x08\x04\x02\x04ab") is None


def test_row_with_an_unknown_checksum_version_does_not_decode() -> None:
    with pytest.raises(CorruptDataError):
        verified(summed(b"ab", 3, 1))


def test_corrupt_rows_of_many_tasks_add_up_and_name_the_first() -> None:
    parts = [CorruptRows(15, tuple(CorruptRow("d.t", "", at * 100 + n) for n in range(15))) for at in range(3)]
    counts = [CutCounts(rows=10, raw_bytes=7, corrupt=corrupt, cpu_s=0.25) for corrupt in parts]
    total = sum_of_counts(map(counts_as_json, counts))
    assert (total.rows, total.raw_bytes, total.corrupt.count, total.by_spark) == (30, 21, 45, True)
    assert total.cpu_s == 0.75, "what Spark's tasks took is the changefeed's load"
    assert [row.commit_ts for row in total.corrupt.named] == [*range(15), *range(100, 100 + NAMED_MAX - 15)]
