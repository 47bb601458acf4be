"""Row checksums: the columnar way equals the scalar one, on random tables, rows, versions, zones and wrong sums."""

import random
import struct
import zlib
from dataclasses import replace
from datetime import tzinfo

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import BusError
from schemas.tidb.table import TableVersion
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.encode.wire.protocol import EncodeRefusedError, LargeRow
from sorters.core.mount import MountedColumns, mount
from sorters.core.mount.scalar import mount_row
from tests.property.rows.test_columnar_twins import ALWAYS, NEVER, ZONES
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.random_rows import random_change, random_table

HANDLE_AT = 11


def summed(rng: random.Random, table: TableVersion, change: CommittedChange, *, damage: bool) -> CommittedChange:
    """Give the row values of a change checksums; most fit."""
    return replace(
        change,
        value=with_sum(rng, table, change.key, change.value, damage=damage) if change.value else b"",
        old_value=with_sum(rng, table, change.key, change.old_value, damage=damage) if change.old_value else b"",
    )


def with_sum(rng: random.Random, table: TableVersion, key: bytes, row: bytes, *, damage: bool) -> bytes:
    version = rng.choice([None, 0, 0, 1, 2, 2])
    if version is None:
        return row
    extra = rng.random() < 0.3
    covered = bytes((row[0], row[1] | 2)) + row[2:] + bytes((version | 8 * extra,))
    if version == 0:
        sums = [column_sum(table, key, row), rng.randrange(1 << 32)]
        rng.shuffle(sums)
    else:
        sums = [zlib.crc32(covered + (key if version == 1 else key[HANDLE_AT:])), 5]
    if rng.random() < 0.1:
        sums[0] ^= 1 << rng.randrange(32)
    whole = covered + struct.pack("<II", *sums)[: 8 if extra else 4]
    if damage and rng.random() < 0.05:
        return rng.choice([whole[: -rng.randrange(1, 6)], row[:1] + bytes((row[1] | 2,)) + row[2:] + b"\x03" * 5])
    return whole


def column_sum(table: TableVersion, key: bytes, row: bytes) -> int:
    """Sum up the values that the scalar mounter gives, which has its own oracle."""
    mounted = mount_row(table, key=key, op=1, value=row, old_value=b"", commit_ts=1, start_ts=1)  # type: ignore[arg-type]
    assert mounted is not None
    assert mounted.columns is not None
    data = b""
    for column in sorted(table.columns, key=lambda column: column.id):
        match mounted.columns[column.offset]:
            case None:
                pass
            case int() as number:
                data += struct.pack("<Q", number & (1 << 64) - 1)
            case float() as number:
                data += struct.pack("<d", number)
            case tuple() as vector:
                data += struct.pack(f"<I{len(vector)}f", len(vector), *vector)
            case value:
                text = value if isinstance(value, bytes) else value.encode()
                data += struct.pack("<I", len(text)) + text
    return zlib.crc32(data)


def mounted_or_error(
    table: TableVersion, changes: list[CommittedChange], zone: tzinfo, small_rows: int
) -> MountedColumns | str:
    try:
        rows = row_changes(table.table_id, changes)
        return mount(table, rows, zone=zone, with_checksum=True, small_rows=small_rows)
    except BusError as error:
        return str(error)


def checksums_of(mounted: MountedColumns) -> list[tuple[int, ...] | None]:
    """Return what is said of each row, in the order of the rows."""
    checksums: list[tuple[int, ...] | None] = [None] * len(mounted)
    for part in mounted.parts:
        sums = part.checksums
        if sums is None:
            continue
        for index, row in enumerate(part.rows.tolist()):
            if sums.present[index]:
                fields = (sums.current, sums.previous, sums.version, sums.corrupted)
                checksums[row] = tuple(int(field[index]) for field in fields)
    return checksums


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 3, 40, 100]), damage=st.booleans())
def test_columnar_checksums_equal_scalar_ones_and_cut_off_ones_are_named(seed: int, count: int, damage: bool) -> None:
    rng = random.Random(seed)
    table, zone = random_table(rng), rng.choice(ZONES)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    changes = [summed(rng, table, change, damage=damage) for change in changes]
    alone = [mounted_or_error(table, [change], zone, ALWAYS) for change in changes]
    errors = {outcome for outcome in alone if isinstance(outcome, str)}
    together = mounted_or_error(table, changes, zone, NEVER)
    if errors:
        assert together in errors
    sound = [(change, outcome) for change, outcome in zip(changes, alone, strict=True) if not isinstance(outcome, str)]
    both = mounted_or_error(table, [change for change, _ in sound], zone, NEVER)
    assert not isinstance(both, str)
    assert checksums_of(both) == [fields for _, outcome in sound for fields in checksums_of(outcome)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_columnar_messages_with_checksums_split_or_whole_equal_scalar_ones(seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [summed(rng, table, random_change(rng, table, n, damage=False), damage=False) for n in range(60)]
    rows = row_changes(table.table_id, changes)
    by_columns, by_rows = (mount(table, rows, with_checksum=True, small_rows=small) for small in (NEVER, ALWAYS))
    avro = AvroEncoder(enable_tidb_extension=True, row_checksum=True)
    ids = {schema.key: 7 for schema in avro.schemas(table, "t")}

    def said(mounted: MountedColumns) -> list[object]:
        both: tuple[SimpleJsonEncoder | SimpleAvroEncoder, ...] = SimpleJsonEncoder(), SimpleAvroEncoder()
        both += tuple(simple.for_large(LargeRow()) for simple in both)
        messages: list[object] = [simple.encode_rows(mounted, encoded_at_ms=5).values.to_pylist() for simple in both]
        try:
            messages.append(avro.encode_rows(mounted, topic="t", schema_ids=ids).values.to_pylist())
        except EncodeRefusedError as error:
            messages.append(error.code)
        return messages

    for left, right in zip(by_columns.parts, by_rows.parts, strict=True):
        chosen = np.array(sorted(rng.sample(range(len(left)), len(left) // 2)), np.int64)
        pieces = [(left, right), (left.take(chosen), right.take(chosen))]
        if left.kind.name == "UPDATE":
            pieces += zip(left.split(chosen), right.split(chosen), strict=True)
        for left_part, right_part in pieces:
            made = [MountedColumns(table=table, count=len(rows), parts=(part,)) for part in (left_part, right_part)]
            assert said(made[0]) == said(made[1])
