"""Rows of a routed table are those of a table that has the target's name; topic and partition stay as they were."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import join_rows
from sorters.core.encode.wire.protocol import EncodeRefusedError
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.records.order import OutputRecords, sort_records
from sorters.core.rows.pipeline import Settings, run_version
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table

URIS = (
    "kafka://h:1/t?protocol=canal-json&enable-tidb-extension=true",
    "kafka://h:1/t?protocol=canal",
    "kafka://h:1/t?protocol=open-protocol",
    "kafka://h:1/t?protocol=avro&enable-tidb-extension=true&schema-registry=http://r:1",
    "kafka://h:1/t?protocol=simple",
    "kafka://h:1/t?protocol=simple&encoding-format=avro",
    "kafka://h:1/t?protocol=debezium",
    "mysql://u@h:1/",
    "file:///d?protocol=csv",
    "file:///d?protocol=canal-json",
)
RULE = {"matcher": ["*.*"], "partition": "index-value"}
ROUTE = {"target-schema": "to_{schema}", "target-table": "{table}_in_{schema}"}


def routed(table: TableVersion) -> TableVersion:
    return replace(table, schema=f"to_{table.schema}", table=f"{table.table}_in_{table.schema}")


def compiled(uri: str, rule: dict[str, Any], tables: list[TableVersion]) -> CompiledFeed:
    feed = compile_feed(load_changefeed(uri, {"sink": {"dispatchers": [rule]}}), "default")
    ids = {text.key: 7 for table in tables for text in feed.row_schemas(table)}
    return replace(feed, schema_ids=ids, partitions={feed.default_topic: 5}, force_replicate=True)


def records(
    feed: CompiledFeed, chunks: list[RowChanges], tables: list[TableVersion], *, together: bool
) -> OutputRecords | str:
    given = Settings(encoded_at_ms=5, store_claim=None, on_corrupt=None)
    alike = None
    if together:
        number = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
        topics = tuple(feed.select(version)[0].topic for version in tables)
        pairs = zip(tables, topics, strict=True)
        parts = tuple(feed.encoder.topic_part(version, topic, feed.schema_ids) for version, topic in pairs)
        alike = AlikeTables(tuple(tables), topics, parts, number)
    try:
        return sort_records(run_version(join_rows(chunks), tables[0], feed, given, alike))
    except EncodeRefusedError as error:  # a time that debezium has no form for
        return str(error.fields["key"])


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**48), uri=st.sampled_from(URIS), count=st.sampled_from([2, 40]), together=st.booleans())
def test_rows_of_a_routed_table_are_those_of_a_table_of_that_name(
    seed: int, uri: str, count: int, together: bool
) -> None:
    rng = random.Random(seed)
    first = random_table(rng)
    tables = [first]
    if together:
        tables.append(replace(first, schema="s2", table='odd "name" ü', table_id=TableId(first.table_id + 1)))
    changes = [[random_change(rng, table, at, damage=False) for at in range(count)] for table in tables]
    chunks = [row_changes(table.table_id, rows) for table, rows in zip(tables, changes, strict=True)]
    targets = [routed(table) for table in tables]
    as_routed = records(compiled(uri, {**RULE, **ROUTE}, tables), chunks, tables, together=together)
    as_named = records(compiled(uri, RULE, targets), chunks, targets, together=together)
    as_before = records(compiled(uri, RULE, tables), chunks, tables, together=together)
    if isinstance(as_routed, str) or isinstance(as_named, str) or isinstance(as_before, str):
        assert as_routed == as_named == as_before
        return
    # The same rows in each: their positions say which is which.
    of_position = ["position", "key", "value"]
    assert sorted(map(str, as_routed.select(of_position).to_pylist())) == sorted(
        map(str, as_named.select(of_position).to_pylist())
    )
    at = ["position", "topic", "partition"]
    assert sorted(map(str, as_routed.select(at).to_pylist())) == sorted(map(str, as_before.select(at).to_pylist()))
