"""Random rows of random tables in every protocol, read back by other people's code: nothing of a value is lost.

Readers: the ``json`` module, fastavro, Confluent's AvroDeserializer on a registry in memory, and the protobuf library.
What a protocol makes of a type stands here once more, by the reference's tables and from the reader's side. Rows come
from the scalar mounter, which is held against TiCDC's by its own tests.
"""

import random

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.encode.wire.protocol import Encoder, SchemaIds
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from sorters.core.mount.scalar import MountedRow
from tests.support.recorded.mounting import row_changes
from tests.support.sources.examples import examples
from tests.support.topics.other_readers import PROTOCOLS, columns_of, comparable, has_no_calendar, mounted
from tests.support.topics.random_rows import random_change, random_table


def cells(row: MountedRow, table: TableVersion) -> list[tuple[ColumnVersion, Value]]:
    sides = (columns_of(side, table) or {} for side in (row.columns, row.pre_columns))
    return [cell for side in sides for cell in side.values()]


def registered(encoder: Encoder, table: TableVersion, registry: SchemaRegistryClient) -> SchemaIds:
    return {
        text.key: registry.register_schema(text.subject, Schema(text.text, "AVRO"))
        for text in encoder.schemas(table, "t")
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 2**48), small_rows=st.sampled_from([0, 10**9]))
def test_rows_are_read_back_by_others_as_they_were(protocol: str, seed: int, small_rows: int) -> None:
    uri, read, same = PROTOCOLS[protocol]
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(12)]
    rows = [mounted(table, change) for change in changes]
    keep = [at for at, row in enumerate(rows) if all(comparable(*cell) for cell in cells(row, table))]
    if protocol.startswith("debezium"):
        keep = [at for at in keep if not any(has_no_calendar(*cell) for cell in cells(rows[at], table))]
    if not keep:
        return
    encoder = compile_feed(load_changefeed(f"kafka://h:1/t?protocol={uri}"), "default").encoder
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    batch = mount(table, row_changes(table.table_id, [changes[at] for at in keep]), small_rows=small_rows)
    encoded = encoder.encode_rows(batch, topic="t", encoded_at_ms=5, schema_ids=registered(encoder, table, registry))
    for at, key, value in zip(keep, encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True):
        row, message = rows[at], read(key, value, registry)
        assert message.op == row.op.name.lower()
        for side, said in ((row.columns, message.new), (row.pre_columns, message.old)):
            wanted = columns_of(side, table)
            if wanted is None or said is None:
                # Avro leaves out the row before a change, and of a table without key all of one that is gone.
                assert wanted is said or protocol == "avro"
                continue
            if protocol == "avro":
                handle = [table.columns[offset].name for offset in table.handle_columns]
                wanted = {name: wanted[name] for name in (handle if message.new is None else wanted)}
                said = {name.replace("_", "<"): datum for name, datum in said.items()}
            assert said.keys() == wanted.keys()
            for name, (spec, there) in wanted.items():
                assert same(spec, there, said[name]), (name, spec.tp, there, said[name])
