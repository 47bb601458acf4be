"""Rows as a sorter writes them into the topic of a database, or of Kafka."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import sorter_config
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords, sort_records
from sorters.core.rows.pipeline import Settings, run_version

DATABASE = "mysql://root@unused/"


def feed_to(uri: str, config: Mapping[str, Any]) -> CompiledFeed:
    """Compile a changefeed whose topic has one partition."""
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(0))
    compiled = compile_feed(sorter_config(load_changefeed(uri, dict(config)), info, "unused:1"), "default")
    return replace(compiled, partitions={compiled.default_topic: 1})


def sorted_rows(
    changes: RowChanges, table: TableVersion, config: Mapping[str, Any] | None = None, uri: str = DATABASE
) -> OutputRecords:
    """Return the records of rows of one table, in their order."""
    settings = Settings(encoded_at_ms=0, store_claim=None, on_corrupt=None)
    return sort_records(run_version(changes, table, feed_to(uri, config or {}), settings)).select(OUTPUT_SCHEMA.names)
