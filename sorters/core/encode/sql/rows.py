"""The encoder of database sinks: rows as SQL literals, for the processors that write them
(:mod:`schemas.sink.sql_rows`).

A processor puts literals together and never looks into one, so what a value means is decided here, with the table's
schema at hand, and columnar.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ddl.job import DdlType
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import (
    CONDITION_END,
    HEAD_BYTES,
    KEY_END,
    LOOSE,
    ROW_END,
    ROWS_MAX,
    SqlDdl,
    TableForm,
    encode_ddl,
    encode_form,
    encode_watermark,
)
from schemas.sink.storage_rows import HEAD_BYTES as STORAGE_HEAD_BYTES
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.encode.sql.conditions import column_keys, scalar_keys
from sorters.core.encode.sql.create_table import sql_type
from sorters.core.encode.sql.literals import column_literals, value_literal
from sorters.core.encode.sql.session_schema import with_schemas
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    RowEncoder,
    SchemaIds,
    in_row_order,
)
from sorters.core.encode.wire.row_heads import HeadedJoiner, headed_rows
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import ROW_OPS, MountedColumns, MountedPart, RowKind
from sorters.core.sql.ddl_event import DdlEvent
from sorters.core.sql.statement import KEPT_MODES, check_statement, plain_statement
from sorters.core.sql.tokens import UnsupportedSqlError, quote_name


class DdlUnsafeError(BusError):
    """A DDL may be more than one statement, or another one, to the destination; ``fields`` say how to pass it."""

    code, action = "sink.ddl_unsafe", Action.STOP_CHANGEFEED


ROWS_PER_MESSAGE = 512
"""A message of short rows has some 100 KiB then: its form and its position weigh nothing beside them."""
assert ROWS_PER_MESSAGE <= ROWS_MAX
assert HEAD_BYTES == STORAGE_HEAD_BYTES, "rows of both sinks are joined by the same lines"


@dataclass(frozen=True, slots=True)
class SqlRowsEncoder(RowEncoder):
    """Has no options of users: what the sink is told is for the processor."""

    overwrites: bool = False
    """See :class:`~schemas.sink.sql_rows.TableForm`."""

    @property
    def takes_alike_tables(self) -> bool:
        return True

    @property
    def joiner(self) -> HeadedJoiner:
        return HeadedJoiner(ROWS_PER_MESSAGE)

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int = 0, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch, one row a message. Nothing in it depends on topic or encode time."""
        return in_row_order(mounted, [self._part(part) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a DDL event.

        Raises:
            DdlUnsafeError: its text may be more than one statement at the destination, or another than upstream.
        """
        pre = event.pre
        query, sql_mode = _statement(event)
        clock, local_clock = _clocks(event)
        ddl = SqlDdl(
            commit_ts=event.commit_ts,
            ddl_type=event.ddl_type,
            schema=event.schema,
            table=event.table,
            pre_schema=pre.schema if pre is not None else "",
            pre_table=pre.table if pre is not None else "",
            referred=event.referred if isinstance(event, DdlEvent) else (),
            query=query,
            plain_backslashes=True,
            sql_mode=sql_mode,
            clock=clock,
            local_clock=local_clock,
            **_of_resync(event),
        )
        return EncodedMessage(None, encode_ddl(ddl))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a watermark."""
        return EncodedMessage(None, encode_watermark(ts))

    def _part(self, part: MountedPart) -> Messages:
        keys, rows = _scalar_literals(part) if part.is_scalar else _column_literals(part)
        values = headed_rows(part, keys, rows, ops=_ops(part))
        return join(len(part), [_forms(part, self.overwrites)]), values


def _statement(event: DdlMessage) -> tuple[str, int]:
    """Return the statement to run, and the bits of the sql_mode that it is to be read in beside plain backslashes."""
    if isinstance(event, DdlEvent) and event.step is not None:
        return f"resync: {event.step} keys", 0  # for people
    restored = isinstance(event, DdlEvent) and event.restored
    sql_mode = event.sql_mode if isinstance(event, DdlEvent) and not restored else 0
    try:
        query = with_schemas(event) if isinstance(event, DdlEvent) else None
        if query is not None:
            sql_mode = 0
        else:
            query = event.query if restored else plain_statement(event.query, sql_mode)
        check_statement(query)
    except UnsupportedSqlError as error:
        raise DdlUnsafeError(
            "a ddl cannot be sent as one statement that every server reads as tidb did; skip it by its start_ts in "
            "filter.ignore-txn-start-ts and run at the destination what it is to do",
            table=f"{event.schema}.{event.table}" if event.table else event.schema,
            start_ts=getattr(event, "start_ts", None),
            commit_ts=event.commit_ts,
            query=event.query[:4000],
            reason=str(error),
        ) from error
    return query, sql_mode & KEPT_MODES


def _of_resync(event: DdlMessage) -> dict[str, Any]:
    """Return what a destination that has noted keys of a table must know of a DDL, or what it is to do with them."""
    if not isinstance(event, DdlEvent):
        return {}
    pre, post = event.pre, event.post
    if event.step is not None:
        assert post is not None, "a resync is of a table that is there"
        table = post.decode()
        columns = [table.columns[offset] for offset in table.handle_columns]
        names, types = tuple(column.name for column in columns), tuple(map(sql_type, columns))
        return {"table_id": post.table_id, "step": event.step, "key": names, "key_types": types}
    of_before = () if pre is None or (post is not None and post.table_id == pre.table_id) else (pre.table_id,)
    of_after = (post.table_id,) if post is not None and event.type is DdlType.EXCHANGE_PARTITION else ()
    return {"table_id": event.table_id, "ended": (*of_before, *of_after)}


def _clocks(event: DdlMessage) -> tuple[str, str]:
    """Return the moment that a DDL has written into rows that were there, the origin default of columns it added: that
    of a TIMESTAMP, which TiDB keeps in UTC, and that of a DATETIME, by the clock of the session. '': it has none.
    """
    clock = local_clock = ""
    if event.pre is None or event.post is None:
        return clock, local_clock
    known = {column.id for column in event.pre.decode().all_columns}
    for column in event.post.decode().all_columns:
        is_now = (column.default or "").upper().startswith("CURRENT_TIMESTAMP")
        if column.id in known or not is_now or not column.origin_default:
            continue
        # Of columns with more digits and with less the former tell all of the moment.
        if column.tp is MysqlType.TIMESTAMP:
            clock = max(clock, column.origin_default, key=len)
        else:
            local_clock = max(local_clock, column.origin_default, key=len)
    return clock, local_clock


def _forms(part: MountedPart, overwrites: bool) -> Segment:
    """Return the form of each row; one of a table image tells the table's unique keys beside."""

    def encoded(table: TableVersion, uniques: tuple[tuple[str, ...], ...] | None) -> bytes:
        return encode_form(replace(form_of(table), uniques=uniques, overwrites=overwrites))

    is_read = part.is_read
    of_changes: Segment = part.of_table(lambda table: encoded(table, None))
    if not is_read.any():
        return of_changes
    of_images: Segment = part.of_table(lambda table: encoded(table, _unique_columns(table)))
    if is_read.all():
        return of_images
    return pc.if_else(pa.array(is_read), of_images, of_changes).cast(pa.binary())


def _unique_columns(table: TableVersion) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each unique key; a row's integer key, which is no index to TiDB, first."""
    key = tuple(table.columns[offset].name for offset in table.key_columns) if table.pk_is_handle else ()
    uniques = [index.column_names for index in table.indexes if index.unique or index.primary]
    return tuple(unique for unique in (key, *uniques) if unique)


def is_keyless(table: TableVersion) -> bool:
    """Tell whether a table has no key by which a row is found: its updates must come as deletes and inserts."""
    return not table.handle_columns


def form_of(table: TableVersion) -> TableForm:
    """Return how rows of a table are written."""
    return TableForm(
        schema=table.schema,
        table=table.table,
        version=table.version,
        columns=tuple(column.name for column in _written(table)),
        key=tuple(table.columns[offset].name for offset in table.handle_columns),
    )


def _written(table: TableVersion) -> list[ColumnVersion]:
    """The destination computes generated columns itself, and takes no values for them."""
    return [column for column in table.columns if not column.generated]


def _ops(part: MountedPart) -> npt.NDArray[np.uint8]:
    """Return what a processor is to do with each row. One of a table image may be there already, so it is as an update:
    inserted, or written over what there is.
    """
    ops = np.full(len(part), ROW_OPS[part.kind], np.uint8)
    ops[part.is_read] = RowOp.UPDATE
    return ops | _loose(part)


def _loose(part: MountedPart) -> npt.NDArray[np.uint8]:
    """Return the LOOSE flag of each row."""
    flags = np.zeros(len(part), np.uint8)
    if part.kind is not RowKind.DELETE:
        for spec in _written(part.table):
            if spec.tp is MysqlType.ENUM:
                column = part.new_columns()[spec.offset]
                is_error = column.numbers == 0
                flags[is_error if column.valid is None else is_error & column.valid] = LOOSE
    return flags


def _key_heads(table: TableVersion) -> list[bytes]:
    """Return what stands before the value of each column of the key, and behind the last, what ends it included."""
    names = [
        quote_name(table.columns[offset].name).encode("utf-8", "surrogateescape") for offset in table.handle_columns
    ]
    if len(names) == 1:
        return [b"", KEY_END]
    return [(b" AND " if number else b"(") + name + b"=" for number, name in enumerate(names)] + [b")" + CONDITION_END]


def _column_literals(part: MountedPart) -> tuple[BinaryArray, BinaryArray]:
    table, count = part.table, len(part)
    columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
    made: dict[int, Any] = {}

    def literal(spec: ColumnVersion) -> BinaryArray:
        if spec.offset not in made:
            column: Column = columns[spec.offset]
            made[spec.offset] = column_literals(column)
        return made[spec.offset]

    segments: list[Segment]
    if is_keyless(table):
        keys = column_keys(part, _written(table), literal)
    else:
        *heads, tail = _key_heads(table)
        segments = []
        for head, offset in zip(heads, table.handle_columns, strict=True):
            segments += [head, literal(table.columns[offset])]
        keys = join(count, [*segments, tail])
    if part.kind is RowKind.DELETE:
        return keys, pa.repeat(pa.scalar(b"", pa.binary()), count)
    segments = []
    for number, spec in enumerate(_written(table)):
        segments += [b"," if number else b"(", literal(spec)]
    return keys, join(count, [*segments, b")" + ROW_END])


def _scalar_literals(part: MountedPart) -> tuple[BinaryArray, BinaryArray]:
    table = part.table
    data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
    assert data is not None
    if is_keyless(table):
        keys = scalar_keys(part, _written(table))
    else:
        keys = pa.array([_key_literal(table, row) for row in data], pa.binary())
    rows = [b"" if part.kind is RowKind.DELETE else _row_literal(table, row) for row in data]
    return keys, pa.array(rows, pa.binary())


def _key_literal(table: TableVersion, row: Sequence[Value]) -> bytes:
    *heads, tail = _key_heads(table)
    values = (value_literal(table.columns[offset], row[offset]) for offset in table.handle_columns)
    return b"".join(head + value for head, value in zip(heads, values, strict=True)) + tail


def _row_literal(table: TableVersion, row: Sequence[Value]) -> bytes:
    return b"(%s)%s" % (b",".join(value_literal(spec, row[spec.offset]) for spec in _written(table)), ROW_END)
