"""The first messages that a changefeed would write, of rows that the raw log has: shown before it is created.

A dry run of some raw records: those after the changefeed's start ts, or the newest where it starts from now on. What it
reads and shows is bounded, for an API request waits for it.
"""

import base64
import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from compose.foresight.dry_run import prepared
from compose.foresight.explain import raw_log_schemas
from compose.foresight.recorded import RecordedLog
from edges.kafka.access import KafkaAccess
from edges.kafka.offsets import TopicReader
from producers.pull.core.match.change_columns import Change
from schemas.changes import Op, RowChanges
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from schemas.rawlog.row_parts import PartJoiner
from schemas.rawlog.topics import RawTopics, raw_topics
from sorters.core.columnar.row_changes import rows_between
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.log.frontier_reader import FrontierReader
from sorters.log.raw_topic_reader import raw_topic_reader

RECORDS_MAX: Final = 64
"""Raw records that are read, of all partitions together (but one a partition at the least)."""
READ_BYTES_MAX: Final = 32 * 1024 * 1024
MESSAGES_MAX: Final = 20
TEXT_CHARS_MAX: Final = 2_000
BINARY_BYTES_SHOWN: Final = 64
REFUSALS_MAX: Final = 5
Keyed = tuple[Ts, TableId, Change]


def first_messages(
    kafka: KafkaAccess, upstream: UpstreamId, config: ChangefeedConfig, start_ts: Ts | None
) -> dict[str, Any]:
    """Return ``messages``, at most :data:`MESSAGES_MAX`, in the order of commits; ``refused``, what would stop the
    changefeed; ``is_rows``, whether they are rows and no messages, since the sink takes none; ``rows``, of how many row
    changes they are, and ``records``, raw records that were looked at.

    Schemas have numbers from 1 in place of a registry's ids, and topics as many partitions as were asked for.

    Args:
        start_ts: the first rows above it; None: the newest rows that there are.

    Raises:
        NoFrontierError, StartTsError: the raw log is empty, or does not reach back to ``start_ts``.
        BusError: Kafka does not answer, or the settings do not fit the tables.
    """
    schemas, newest_ts = raw_log_schemas(kafka, upstream, None)
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    looked_at, rows = _rows(kafka.config(), raw_topics(upstream), schemas, feed, start_ts, newest_ts)
    shown = sorted(rows)[:MESSAGES_MAX] if start_ts is not None else sorted(rows)[-MESSAGES_MAX:]
    refused: list[str] = []
    messages: list[dict[str, Any]] = []
    if shown:
        changes: dict[TableId, list[Change]] = defaultdict(list)
        for _, table_id, change in shown:
            changes[table_id].append(change)
        log = RecordedLog(dict(changes), (), Ts(shown[0][0] - 1), shown[-1][0])
        messages, refused = messages_of(log, schemas, config)
    return {
        "messages": messages[:MESSAGES_MAX],
        "refused": refused[:REFUSALS_MAX],
        "rows": len(shown),
        "records": looked_at,
        "is_newest": start_ts is None,
        "is_rows": not config.uri.brokers,
    }


def messages_of(
    log: RecordedLog, schemas: SchemaStore, config: ChangefeedConfig
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a changefeed would write of rows, and what would stop it.

    Raises:
        BusError: the settings do not fit the tables.
    """
    refused: list[str] = []
    run = prepared(log, schemas, config, refused=lambda error: refused.append(str(error)))
    records = list(run.records())  # what the sorter would refuse is found whatever is shown
    if config.uri.brokers:
        return [_shown(record) for record in records if record["op"] not in ("watermark", "bootstrap")], refused
    return [_shown_row(row, run.feed) for row in run.mounted()], refused


def _rows(
    kafka: Mapping[str, Any],
    topics: RawTopics,
    schemas: SchemaStore,
    feed: CompiledFeed,
    start_ts: Ts | None,
    newest_ts: Ts,
) -> tuple[int, set[Keyed]]:
    """Return how many raw records were looked at, and the rows of the changefeed in them, each once."""
    with contextlib.closing(raw_topic_reader(kafka, topics.region_events)) as events:
        ranges = _ranges(kafka, topics, events, start_ts)
        looked_at, size = 0, 0
        rows: set[Keyed] = set()
        joiner = PartJoiner()
        for partition, _, record in events.read_all(ranges):
            looked_at, size = looked_at + 1, size + len(record)
            whole = joiner.take(partition, record)
            if whole is not None and _is_wanted(schemas, feed, read_batch_head(whole).table_id, newest_ts):
                rows.update(_of(rows_between(decode_region_batch(whole).rows, start_ts or Ts(0), newest_ts)))
            if size > READ_BYTES_MAX:
                break
    return looked_at, rows


def _ranges(
    kafka: Mapping[str, Any], topics: RawTopics, events: TopicReader, start_ts: Ts | None
) -> dict[int, tuple[int, int]]:
    """Return the offsets of each raw partition that are read."""
    with contextlib.closing(FrontierReader(kafka, topics.frontier)) as frontier:
        newest = frontier.record_before(frontier.end())
        first = None if start_ts is None else frontier.record_before(frontier.find(start_ts))
    each = max(1, RECORDS_MAX // max(len(newest.high), 1))
    ranges = {}
    for partition, high in enumerate(newest.high):
        oldest, _ = events.bounds(partition)
        if first is None:
            ranges[partition] = max(oldest, high - each), high
        else:
            low = first.low[partition] if partition < len(first.low) else 0
            ranges[partition] = max(oldest, low), min(max(oldest, low) + each, high)
    return ranges


def _is_wanted(schemas: SchemaStore, feed: CompiledFeed, table_id: TableId, ts: Ts) -> bool:
    if schemas.is_system(table_id):
        return False
    table = schemas.table_at(table_id, ts)
    return table is not None and feed.contains(table.schema, table.table, eligible=table.eligible)


def _of(rows: RowChanges) -> Iterator[Keyed]:
    """Yield the first and the last rows of a record: no more of them can be shown."""
    numbers = range(len(rows))
    for number in sorted({*numbers[:MESSAGES_MAX], *numbers[-MESSAGES_MAX:]}):
        commit_ts = Ts(int(rows.commit_ts[number]))
        change = (
            commit_ts,
            Ts(int(rows.start_ts[number])),
            Op(int(rows.op[number])),
            rows.key[number].as_py(),
            rows.value[number].as_py(),
            rows.old_value[number].as_py(),
            int(rows.txn_source[number]),
        )
        yield commit_ts, rows.table_id, change


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as a page shows it: a text where it is one, else how it begins."""
    named = {name: record[name] for name in ("topic", "partition", "table", "op", "commit_ts")}
    return named | {side: _side(record[side]) for side in ("key", "value")}


def _shown_row(row: Mapping[str, Any], feed: CompiledFeed) -> dict[str, Any]:
    """Return a row for a sink that takes no messages, under its name there: values as TiDB's texts, before a DELETE."""
    schema, table = feed.routes.name(row["schema"], row["table"])
    columns = row["columns"] if row["columns"] is not None else row["pre_columns"]
    text = json.dumps({column["name"]: column["value"] for column in columns or ()}, ensure_ascii=False)
    named = {"topic": None, "partition": None, "table": f"{schema}.{table}", "op": row["op"]}
    value = {"text": text[:TEXT_CHARS_MAX], "bytes": len(text.encode())}
    return named | {"commit_ts": row["commit_ts"], "key": None, "value": value}


def _side(encoded: str | None) -> dict[str, Any] | None:
    if encoded is None:
        return None
    raw = base64.b64decode(encoded)
    with contextlib.suppress(UnicodeDecodeError):
        text = raw.decode()
        if text.isprintable():
            return {"text": text[:TEXT_CHARS_MAX], "bytes": len(raw)}
    return {"hex": raw[:BINARY_BYTES_SHOWN].hex(), "bytes": len(raw)}
