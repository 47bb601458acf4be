"""Random tables of a few forms, random changefeeds over them, and rows: what sharing of passes is tried with."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId, Ts
from schemas.tidb.mysql_types import MysqlFlag
from schemas.tidb.table import PartitionVersion, TableVersion
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.feed.feed import CompiledFeed, compile_feed
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table

FEEDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("kafka://h:1/t?protocol=canal-json&enable-tidb-extension=true", {}),
    ("kafka://h:1/t?protocol=canal-json&content-compatible=true", {}),
    (
        "kafka://h:1/t?protocol=canal-json&enable-tidb-extension=true&max-message-bytes=900",
        {"sink": {"kafka-config": {"large-message-handle": {"large-message-handle-option": "handle-key-only"}}}},
    ),
    ("kafka://h:1/t?protocol=open-protocol&max-batch-size=1", {}),
    ("kafka://h:1/t?protocol=open-protocol&max-message-bytes=700", {}),
    ("kafka://h:1/t?protocol=avro&enable-tidb-extension=true&schema-registry=http://r:1", {}),
    (
        "kafka://h:1/t?protocol=avro&schema-registry=http://r:1",
        {"filter": {"event-filters": [{"matcher": ["*.t1"], "ignore-event": ["insert"]}]}},
    ),
    ("kafka://h:1/t?protocol=avro&avro-include-before-value=true&schema-registry=http://r:1", {}),
    ("kafka://h:1/t?protocol=canal-json&enable-tidb-extension=true&output-row-key=true", {}),
    (
        "kafka://h:1/t?protocol=canal-json",
        {"filter": {"event-filters": [{"matcher": ["*.t1", "*.t2"], "ignore-update-only-columns": ["c1", "c2"]}]}},
    ),
    (
        "kafka://h:1/t?protocol=canal-json",
        {"sink": {"dispatchers": [{"matcher": ["s1.*"], "target-schema": "x", "target-table": "{schema}.{table}"}]}},
    ),
    ("kafka://h:1/t?protocol=simple", {}),
    ("kafka://h:1/t?protocol=debezium", {}),
    ("kafka://h:1/t?protocol=canal-json", {"sink": {"column-selectors": [{"matcher": ["*.t2"], "columns": ["*"]}]}}),
    ("kafka://h:1/t?protocol=canal-json", {"integrity": {"integrity-check-level": "correctness"}}),
)
DISPATCHERS: tuple[dict[str, str], ...] = (
    {},
    {"partition": "index-value"},
    {"partition": "ts"},
    {"partition": "table", "topic": "{schema}"},
    {"partition": "index-value", "topic": "{schema}_{table}"},
)


class Schemas:
    """Answers as a schema store does whose tables have one version each."""

    def __init__(self, tables: list[TableVersion]) -> None:
        self._tables = {physical_id: table for table in tables for physical_id in table.physical_ids}

    def boundaries_of(self, table_id: TableId) -> npt.NDArray[np.int64]:
        return np.zeros(1, np.int64)

    def lookup(self, table_id: TableId, commit_ts: Ts) -> TableVersion:
        return self._tables[table_id]

    def stored_of(self, table_id: TableId) -> tuple[TableVersion, ...]:
        return (self._tables[table_id],)


def tables_of(rng: random.Random) -> list[TableVersion]:
    """Return tables of three forms, two of which differ in nothing but one column's sign, in random order."""
    forms = [random_table(rng), random_table(rng)]
    last = forms[0].columns[-1]
    forms.append(
        replace(
            forms[0], columns=(*forms[0].columns[:-1], replace(last, mysql_flag=last.mysql_flag ^ MysqlFlag.UNSIGNED))
        )
    )
    tables = [
        replace(
            rng.choice(forms),
            schema=rng.choice(["s1", "s2"]),
            table=f"t{number}" if number else 'odd "name" ü',
            table_id=TableId(100 + number),
            version=Ts(rng.randrange(1, 9)),
            update_ts=Ts(rng.randrange(9)),
        )
        for number in range(12)
    ]
    part = (PartitionVersion(id=tables[-1].table_id, name="p"),)
    return [*tables[:-1], replace(tables[-1], table_id=TableId(99), partitions=part)]


def compiled(rng: random.Random, tables: list[TableVersion]) -> CompiledFeed:
    """Return a changefeed of random settings that knows all topics and schemas."""
    uri, config = rng.choice(FEEDS)
    rule = rng.choice(DISPATCHERS)
    rules = [*config.get("sink", {}).get("dispatchers", []), *([{"matcher": ["*.*"], **rule}] if rule else [])]
    sink = {**config.get("sink", {}), **({"dispatchers": rules} if rules else {})}
    if "topic" in rule and "avro" in uri:
        sink["dispatchers"][0]["topic"] = "{schema}_{table}"
    feed = compile_feed(load_changefeed(uri, {**config, "sink": sink}), "default")
    names = {feed.topic(table.schema, table.table) for table in tables}
    feed = replace(feed, partitions={name: 3 + len(name) % 3 for name in (*names, "t")}, force_replicate=True)
    if rng.random() < 0.25:  # topics that take less than the changefeed may send
        feed = replace(feed, topic_message_bytes={name: rng.choice([700, 10_000]) for name in sorted(names)})
    if rng.random() < 0.25:  # of sinks that are behind a topic of the bus's own
        form = rng.choice(["csv", "canal-json"])
        files = compile_feed(load_changefeed(f"file:///d?protocol={form}"), "default").encoder
        feed = replace(feed, encoder=rng.choice([SqlRowsEncoder(), files]), large_messages=None)
    schemas = {schema.key: 0 for table in tables for schema in feed.row_schemas(table)}
    return replace(feed, schema_ids={key: number for number, key in enumerate(schemas, 1)})


def chunks_of(rng: random.Random, tables: list[TableVersion], *, damage: bool) -> list[RowChanges]:
    chunks = []
    for number, table in enumerate(tables):
        physical_id = table.physical_ids[0]
        stand_in = replace(table, table_id=physical_id)
        broken = damage and rng.random() < 0.1
        changes = [random_change(rng, stand_in, at, damage=broken) for at in range(rng.choice([1, 2, 9, 40]))]
        moved = [replace(change, commit_ts=change.commit_ts + number) for change in changes]
        chunks.append(row_changes(physical_id, moved))
    return chunks


def moved(rng: random.Random, feed: CompiledFeed, uri_topic: str, tables: list[TableVersion]) -> CompiledFeed:
    """Return the same changefeed with rules, topics, partitions and limits of its own, and the schemas' ids as they
    are.
    """
    uri = f"kafka://h:1/{uri_topic}?protocol=canal-json"
    topic = rng.choice([uri_topic, uri_topic + "_{schema}_{table}"])
    rules = {"sink": {"dispatchers": [{"matcher": ["*.*"], **rng.choice(DISPATCHERS), "topic": topic}]}}
    others = compile_feed(load_changefeed(uri, rules), "default")
    other = replace(feed, dispatcher=others.dispatcher, default_topic=uri_topic, topic_message_bytes={})
    names = {other.topic(table.schema, table.table) for table in tables}
    partitions = {name: 1 if uri_topic == "u" else 2 + len(name) % 4 for name in (*names, uri_topic)}
    schemas = {schema.key: 0 for table in tables for schema in other.row_schemas(table)}
    return replace(other, partitions=partitions, schema_ids={key: number for number, key in enumerate(schemas, 1)})
