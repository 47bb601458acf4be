"""`tidebus dry-run`: what a changefeed would write, from a recording, with no Kafka and no Spark.

The rows go through the very steps of the Spark job (:mod:`sorters.core.rows.shared_pass`), the driver's part with it:
the schema store, the topics, the registered schemas, DDL events and watermarks. Instead of a registry and brokers there
are numbers: schemas are numbered from 1 in the order of their tables, topics have the partitions that were asked for.
"""

import base64
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compose.foresight.recorded import RecordedLog, read_recorded_log
from producers.pull.core.landing.packing import pack
from producers.pull.core.match.change_columns import ChangeColumns
from schemas.changes import Op, RowChanges
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import Ts, compose_ts, physical_ms
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.sink.position import PositionClass, RowOp, decode_position
from sorters.core.columnar.row_changes import rows_where
from sorters.core.encode.wire.protocol import CompanionEncoder, SchemaKey
from sorters.core.feed.companions import bootstrap_records, ddl_records, ddl_topics, watermark_records
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.route_check import MISFITS, check_routes
from sorters.core.feed.scope import tables_between, watermark_topics_at
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.mount.mounted_json import mounted_object
from sorters.core.mount.scalar import mount_row
from sorters.core.records.order import OutputRecords, join_records, sort_records
from sorters.core.rows.shared_pass import run_chunks
from sorters.core.rows.wanted_rows import by_version
from sorters.core.sql.ddl_event import ddl_events
from sorters.log.topic_admin import PARTITIONS_DEFAULT

log = logging.getLogger(__name__)

_SLICE_BYTES_MAX = 64 * 1024 * 1024
"""Of one table's rows at once: far below what a column's 31-bit offsets hold."""
_OPS = {RowOp.INSERT: "insert", RowOp.UPDATE: "update", RowOp.DELETE: "delete"}
_CLASSES = {PositionClass.DDL: "ddl", PositionClass.WATERMARK: "watermark", PositionClass.BOOTSTRAP: "bootstrap"}
Register = Callable[[str, str], int]
"""Takes subject and schema text and returns the id."""


def _log_corrupt(corrupt: CorruptRows) -> None:
    for row in corrupt.named:
        where = {"table": row.table, "key": row.key, "commit_ts": row.commit_ts}
        log.warning("row does not fit its checksum", extra=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A recording and a changefeed over it."""

    log: RecordedLog
    schemas: SchemaStore
    feed: CompiledFeed
    refused: Callable[[BusError], None]
    """Told of what would stop the changefeed: a row that the protocol cannot say, a DDL that loses a table its key. It
    may raise; if it returns, the dry run goes on past it, so that one look shows all of them."""
    watermark_every_ms: int | None = None
    """Of recorded time; None: one watermark at the end."""
    _misfits: set[str] = field(default_factory=set)
    """What was said of tables that the dispatcher rules do not fit."""

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every message, in order of positions.

        Raises:
            BusError: a row, a schema or a DDL that would stop the changefeed.
        """
        after_ts = self.log.start_ts
        for upto_ts in self._cuts():
            yield from _objects(sort_records(self.cut(after_ts, upto_ts)))
            after_ts = upto_ts

    def mounted(self) -> Iterator[dict[str, Any]]:
        """Yield every row of the changefeed's tables as the mounter hands it on, in (commit_ts, start_ts) order."""
        keyed: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for rows in self._rows(self.log.start_ts, self.log.end_ts):
            for table, group in by_version(rows, self.schemas):
                if not self.feed.contains(table.schema, table.table, eligible=table.eligible):
                    continue
                for at in range(len(group)):
                    row = mount_row(
                        table,
                        key=group.key[at].as_py(),
                        op=Op(int(group.op[at])),
                        value=group.value[at].as_py(),
                        old_value=group.old_value[at].as_py(),
                        commit_ts=Ts(int(group.commit_ts[at])),
                        start_ts=Ts(int(group.start_ts[at])),
                        txn_source=int(group.txn_source[at]),
                        zone=self.feed.zone,
                        with_checksum=True,
                    )
                    if row is not None:
                        order_key = (row.commit_ts, row.start_ts, row.physical_id, row.op, row.key)
                        keyed.append((order_key, mounted_object(row)))
        keyed.sort(key=lambda item: item[0])
        yield from (shown for _, shown in keyed)

    def _cuts(self) -> list[Ts]:
        end_ts = self.log.end_ts
        if self.watermark_every_ms is None:
            return [end_ts]
        start_ms, end_ms = physical_ms(self.log.start_ts), physical_ms(end_ts)
        between = range(start_ms + self.watermark_every_ms, end_ms, self.watermark_every_ms)
        return [*(compose_ts(ms) for ms in between), end_ts]

    def cut(self, after_ts: Ts, upto_ts: Ts) -> OutputRecords:
        """Return the records of ``(after_ts, upto_ts]``, in no order, with a column ``table``.

        Raises:
            BusError: see :meth:`records`.
        """
        encoded_at_ms = physical_ms(upto_ts)
        parts = [part for rows in self._rows(after_ts, upto_ts) for part in self._run(rows, encoded_at_ms)]
        parts += self._ddl(after_ts, upto_ts, encoded_at_ms)
        topics = watermark_topics_at(self.schemas, upto_ts, self.feed)
        watermarks = watermark_records(upto_ts, topics, self.feed, encoded_at_ms)
        at_start = after_ts == self.log.start_ts
        bootstraps = bootstrap_records(self.schemas, after_ts, upto_ts, self.feed, encoded_at_ms, at_start=at_start)
        return join_records(
            [*parts, *(_named(records, [None] * records.num_rows) for records in (watermarks, bootstraps))]
        )

    def _run(self, rows: RowChanges, encoded_at_ms: int) -> Iterator[OutputRecords]:
        """Run the pipeline; where it refuses, find the rows that it refuses, report them and go on with the others."""
        try:
            yield from [
                _named(records, [version.name] * records.num_rows)
                for version, group in by_version(rows, self.schemas)
                for records in run_chunks(
                    [group], self.schemas, self.feed, encoded_at_ms=encoded_at_ms, on_corrupt=_log_corrupt
                )
            ]
        except tuple(MISFITS) as error:
            yield from self._run_versions(rows, encoded_at_ms, error)
        except BusError as error:
            if error.action is not Action.STOP_CHANGEFEED:
                raise
            if len(rows) == 1:
                self.refused(error)
                return
            first_half = np.arange(len(rows)) < len(rows) // 2
            for half in (first_half, ~first_half):
                yield from self._run(rows_where(rows, half), encoded_at_ms)

    def _run_versions(self, rows: RowChanges, encoded_at_ms: int, error: BusError) -> Iterator[OutputRecords]:
        """Go on without the table version that the settings do not fit; it is reported once, not once a row."""
        groups = [group for _, group in by_version(rows, self.schemas)]
        if len(groups) > 1:
            for group in groups:
                yield from self._run(group, encoded_at_ms)
        elif str(error) not in self._misfits:
            self._misfits.add(str(error))
            self.refused(error)

    def _ddl(self, after_ts: Ts, upto_ts: Ts, encoded_at_ms: int) -> Iterator[OutputRecords]:
        for ts, names in _ddl_names(self.schemas, after_ts, upto_ts).items():
            try:
                records = ddl_records(self.schemas, Ts(ts - 1), ts, self.feed, encoded_at_ms)
            except BusError as error:
                if error.action is not Action.STOP_CHANGEFEED:
                    raise
                self.refused(error)
                continue
            positions = (decode_position(position.as_py()) for position in records.column("position"))
            yield _named(records, [names[position.key] for position in positions])

    def _rows(self, after_ts: Ts, upto_ts: Ts) -> Iterator[RowChanges]:
        for table_id, changes in self.log.changes.items():
            if not self.schemas.is_system(table_id):
                wanted = [change for change in changes if after_ts < change[0] <= upto_ts]
                if not wanted:
                    continue
                yield from pack(table_id, [ChangeColumns.of(*zip(*wanted, strict=True))], _SLICE_BYTES_MAX)


def prepare(
    folder: Path,
    config: ChangefeedConfig,
    *,
    refused: Callable[[BusError], None],
    register: Register | None = None,
    watermark_every_ms: int | None = None,
) -> DryRun:
    """Fold a recording and compile a changefeed over it; see :func:`prepared`.

    Raises:
        BusError: the recording or the changefeed is not usable.
    """
    log = read_recorded_log(folder)
    schemas = SchemaStore.empty()
    for record in log.ddl:
        schemas.apply(record)
    return prepared(log, schemas, config, refused=refused, register=register, watermark_every_ms=watermark_every_ms)


def prepared(
    log: RecordedLog,
    schemas: SchemaStore,
    config: ChangefeedConfig,
    *,
    refused: Callable[[BusError], None],
    register: Register | None = None,
    watermark_every_ms: int | None = None,
) -> DryRun:
    """Compile a changefeed over rows.

    Args:
        log: the rows, and between which ts they are.
        schemas: of their tables, up to the end of the log or further.
        config: the changefeed.
        refused: see :class:`DryRun`.
        register: stands in for the schema registry; None numbers distinct schemas from 1.
        watermark_every_ms: see :class:`DryRun`.

    Raises:
        DispatchError, ColumnSelectorError: the dispatcher rules or column selectors do not fit tables that there are
            when the log starts.
        BusError: the changefeed is not usable.
    """
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    check_routes(schemas, log.start_ts, feed)
    tables = list(tables_between(schemas, log.start_ts, log.end_ts, feed))
    topics = {feed.topic(stored.schema, stored.table) for stored in tables} | {feed.default_topic}
    for ts in _ddl_names(schemas, log.start_ts, log.end_ts):
        with suppress(BusError):  # reported in its turn
            topics |= ddl_topics(schemas, Ts(ts - 1), ts, feed)
    partitions = dict.fromkeys(sorted(topics), config.kafka.partition_num or PARTITIONS_DEFAULT)
    ids: dict[SchemaKey, int] = {}
    register = register or _numbering()
    for stored in tables:
        for schema in feed.row_schemas(schemas.decoded(stored)):
            ids[schema.key] = register(schema.subject, schema.text)
    if isinstance(feed.encoder, CompanionEncoder):
        texts = feed.encoder.companion_schemas()
        own = {text.key: register(text.subject, text.text) for text in texts}
        feed = replace(feed, encoder=feed.encoder.with_companions(own))
    compiled = replace(feed, partitions=partitions, schema_ids=ids)
    return DryRun(log=log, schemas=schemas, feed=compiled, refused=refused, watermark_every_ms=watermark_every_ms)


def json_line(shown: dict[str, Any]) -> str:
    """Return one line."""
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _numbering() -> Register:
    numbers: dict[str, int] = {}
    return lambda _, text: numbers.setdefault(text, len(numbers) + 1)


def _objects(records: OutputRecords) -> Iterator[dict[str, Any]]:
    for batch in records.to_batches(max_chunksize=4096):
        for row in batch.to_pylist():
            position = decode_position(row["position"])
            named = position.position_class is PositionClass.ROW
            yield {
                "topic": row["topic"],
                "partition": row["partition"],
                "commit_ts": position.commit_ts,
                "start_ts": position.start_ts,
                "table": row["table"],
                "op": _OPS[position.op] if named else _CLASSES[position.position_class],
                "key": _base64(row["key"]),
                "value": _base64(row["value"]),
            }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _ddl_names(schemas: SchemaStore, after_ts: Ts, upto_ts: Ts) -> dict[Ts, dict[bytes, str]]:
    """Return the DDL jobs' ts, ascending, with the tables of their events by the key of the event's position."""
    names: dict[Ts, dict[bytes, str]] = {}
    for change in schemas.changes_between(after_ts, upto_ts):
        for event in ddl_events(change):
            names.setdefault(event.commit_ts, {})[event.seq.to_bytes(4, "big")] = f"{event.schema}.{event.table}"
    return names


def _named(records: OutputRecords, tables: list[str] | list[None]) -> OutputRecords:
    return records.append_column("table", pa.array(tables, pa.string()))
