"""The columnar mounter and encoders equal their scalar twins, on random tables, rows and damage."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.tidb.packed_time import in_zone as one_in_zone
from schemas.tidb.packed_time import pack_time
from schemas.tidb.table import TableVersion
from sorters.core.columnar.times import in_zone
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.encode.debezium.avro import DebeziumAvroEncoder
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.encode.wire.protocol import EncodeRefusedError, LargeRow
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import MountedColumns, mount
from sorters.core.mount.scalar import CorruptRowError
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.sources.examples import examples
from tests.support.topics.random_rows import random_change, random_table

ALWAYS, NEVER = 10**9, 0
ZONES: list[tzinfo] = [UTC, ZoneInfo("Asia/Shanghai"), ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")]
CANAL_OPTIONS: list[dict[str, Any]] = [
    {"enable_tidb_extension": True},
    {"only_output_updated_columns": True},
    {"content_compatible": True, "delete_only_output_handle_key_columns": True},
    {"enable_tidb_extension": True, "large": LargeRow('file:///a"b')},
    {"enable_tidb_extension": True, "output_row_key": True},
    {"enable_tidb_extension": True, "output_row_key": True, "large": LargeRow()},
]
OPEN_OPTIONS: list[dict[str, Any]] = [
    {},
    {"output_old_value": False, "delete_only_output_handle_key_columns": True},
    {"only_output_updated_columns": True},
    {"large": LargeRow()},
    {"large": LargeRow('file:///a"b')},
]
SIMPLE_OPTIONS: list[dict[str, Any]] = [{}, {"large": LargeRow()}, {"large": LargeRow('file:///a"b')}]
DEBEZIUM_OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_tidb_extension": True, "zone": ZoneInfo("America/New_York")},
    {"debezium_disable_schema": True, "output_old_value": False},
    {"enable_tidb_extension": True, "include_start_ts": True},
    {"include_start_ts": True},
]
DEBEZIUM_AVRO_OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_tidb_extension": True, "zone": ZoneInfo("America/New_York"), "glue": True},
    {"avro_decimal_handling_mode": "string", "avro_bigint_unsigned_handling_mode": "string"},
    {"avro_bigint_unsigned_handling_mode": "string", "output_old_value": False},
]
AVRO_OPTIONS: list[dict[str, Any]] = [
    {"enable_tidb_extension": True},
    {"avro_decimal_handling_mode": "string", "avro_bigint_unsigned_handling_mode": "string"},
    {"avro_include_before_value": True},
    {"avro_include_before_value": True, "enable_tidb_extension": True},
]

EncodedMessage = tuple[bytes | None, bytes | None]
Encode = Callable[[MountedColumns], list[EncodedMessage]]


def _fitting(options: list[dict[str, Any]], table: TableVersion) -> list[dict[str, Any]]:
    """Leave out what needs a handle key if the table has none: changefeeds that send such tables refuse it."""
    return [chosen for chosen in options if table.handle_columns or "large" not in chosen]


def encoders(table: TableVersion, rng: random.Random) -> list[Encode]:
    """Return the protocols, each with one set of options."""
    canal = CanalJsonEncoder(**rng.choice(_fitting(CANAL_OPTIONS, table)))
    opened = OpenProtocolEncoder(**rng.choice(_fitting(OPEN_OPTIONS, table)))
    avro = AvroEncoder(**rng.choice(AVRO_OPTIONS))
    ids = {text.key: number for number, text in enumerate(avro.schemas(table, "t"), 1)}

    def by_canal(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = canal.encode_rows(mounted, encoded_at_ms=5)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    def by_avro(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = avro.encode_rows(mounted, topic="t", schema_ids=ids)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    def by_open(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = opened.encode_rows(mounted)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    options = rng.choice(_fitting(SIMPLE_OPTIONS, table)) | {"location": "Asia/Kathmandu"}
    both = SimpleJsonEncoder(**options), SimpleAvroEncoder(**options)
    simple: SimpleJsonEncoder | SimpleAvroEncoder = rng.choice(both)

    def by_simple(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = simple.encode_rows(mounted, encoded_at_ms=5)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    debezium = DebeziumEncoder(**rng.choice(DEBEZIUM_OPTIONS))

    def by_debezium(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = debezium.encode_rows(mounted, encoded_at_ms=5)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    records = DebeziumAvroEncoder(**rng.choice(DEBEZIUM_AVRO_OPTIONS))
    record_ids = {text.key: number for number, text in enumerate(records.schemas(table, "t"), 1)}

    def by_records(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = records.encode_rows(mounted, topic="t", encoded_at_ms=5, schema_ids=record_ids)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    packets = CanalEncoder(delete_only_output_handle_key_columns=rng.random() < 0.5)

    def by_packets(mounted: MountedColumns) -> list[EncodedMessage]:
        encoded = packets.encode_rows(mounted)
        return list(zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True))

    return [by_canal, by_avro, by_open, by_simple, by_debezium, by_records, by_packets]


def outcome(
    table: TableVersion, changes: list[CommittedChange], encode: Encode, zone: tzinfo, small_rows: int
) -> list[EncodedMessage] | tuple[str, str]:
    """Return the messages, or the error's code and the row's key."""
    try:
        mounted = mount(table, row_changes(table.table_id, changes), zone=zone, small_rows=small_rows)
        messages = encode(mounted)
        for part in mounted.parts:
            part.check()
        return messages
    except (CorruptRowError, EncodeRefusedError) as error:
        assert error.fields["table"] == table.name
        return error.code, f"{error.fields['key']} at {error.fields['commit_ts']}"


def said(encode: Encode, mounted: MountedColumns) -> list[EncodedMessage] | str:
    """Return the messages, or the code of the refusal: which of several refused values comes first is left open."""
    try:
        return encode(mounted)
    except EncodeRefusedError as error:
        return error.code


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 40]))
def test_columnar_rows_of_selected_columns_equal_scalar_rows(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    kept = [f'"{spec.name}"' for spec in table.columns if spec.offset in table.handle_columns or rng.random() < 0.5]
    config = {"sink": {"column-selectors": [{"matcher": ["*.*"], "columns": kept or ["*"]}]}}
    _, selection = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", config), "default").select(table)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]

    def narrowed(small_rows: int) -> MountedColumns:
        mounted = mount(table, row_changes(table.table_id, changes), small_rows=small_rows)
        if selection is None:
            return mounted
        return replace(mounted, table=selection.table, parts=tuple(selection.of(part) for part in mounted.parts))

    for encode in encoders(table if selection is None else selection.table, rng):
        assert said(encode, narrowed(NEVER)) == said(encode, narrowed(ALWAYS))


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 3, 40, 100]), damage=st.booleans())
def test_columnar_rows_equal_scalar_rows_and_corrupt_rows_are_named(seed: int, count: int, damage: bool) -> None:
    rng = random.Random(seed)
    table, zone = random_table(rng), rng.choice(ZONES)
    changes = [random_change(rng, table, number, damage=damage) for number in range(count)]
    for encode in encoders(table, rng):
        alone = [outcome(table, [change], encode, zone, ALWAYS) for change in changes]
        broken = {error for error in alone if isinstance(error, tuple)}
        together = outcome(table, changes, encode, zone, NEVER)
        if broken:
            assert together in broken
        sound = [
            (change, messages) for change, messages in zip(changes, alone, strict=True) if isinstance(messages, list)
        ]
        expected = [message for _, messages in sound for message in messages]
        assert outcome(table, [change for change, _ in sound], encode, zone, NEVER) == expected


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**48))
def test_columnar_parts_taken_apart_and_split_equal_scalar_ones(seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(60)]
    rows = row_changes(table.table_id, changes)
    by_columns, by_rows = mount(table, rows, small_rows=NEVER), mount(table, rows, small_rows=ALWAYS)
    assert by_columns.kind.tolist() == by_rows.kind.tolist()
    for encode in encoders(table, rng):
        for left, right in zip(by_columns.parts, by_rows.parts, strict=True):
            chosen = np.array(sorted(rng.sample(range(len(left)), len(left) // 2)), np.int64)
            pieces = [(left.take(chosen), right.take(chosen))]
            if left.kind.name == "UPDATE":
                pieces += zip(left.split(chosen), right.split(chosen), strict=True)
            for left_part, right_part in pieces:
                made = [MountedColumns(table=table, count=len(rows), parts=(part,)) for part in (left_part, right_part)]
                assert said(encode, made[0]) == said(encode, made[1])


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**48), differing=st.sampled_from([0, 1]))
def test_columnar_updates_that_change_nothing_or_one_row_equal_scalar_ones(seed: int, differing: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(80)]
    changes = [replace(change, old_value=change.value) for change in changes if change.value]
    if differing and changes:
        row = rng.randrange(len(changes))
        changes[row] = replace(changes[row], old_value=random_change(rng, table, 1, damage=False).value)
    for encode in encoders(table, rng):
        by_columns, by_rows = (outcome(table, changes, encode, UTC, small_rows) for small_rows in (NEVER, ALWAYS))
        if isinstance(by_columns, tuple) and isinstance(by_rows, tuple):  # several rows may be refused
            assert by_columns[0] == by_rows[0] == EncodeRefusedError.code
        else:
            assert by_columns == by_rows


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_columnar_time_zones_equal_scalar_ones_at_every_hour_of_two_years(zone: tzinfo) -> None:
    packed = [
        pack_time(year, month, day, hour, 30, 59, 1)
        for year in (1975, 2024)
        for month in range(1, 13)
        for day in range(1, 29)
        for hour in range(24)
    ]
    moved = in_zone(np.array([*packed, 0], np.uint64), zone)
    assert moved.tolist() == [one_in_zone(moment, zone) for moment in [*packed, 0]]
