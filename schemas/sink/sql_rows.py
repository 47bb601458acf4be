"""Messages from a sorter to the processors of a database sink: rows as SQL literals, DDL, watermarks.

A row message's **key** is its table's form: JSON with schema, table, the columns that a row literal holds and the
handle key's columns, and for rows of a table image the table's unique keys; all rows of a message have one form. Its
**value** is, for n rows, 1 to :data:`ROWS_MAX`:

==========  ======  ==========================================================================================
heads       n * 25  commit_ts 8, start_ts 8, op 1 (:class:`schemas.sink.position.RowOp`, and :data:`LOOSE`), key bytes
4,
                    row bytes 4; big-endian
keys                of one column the literal itself: ``7,``; of several ``(`a`=7 AND `b`='x') OR ``
rows                ``(7,'x',NULL),``: the columns of the form; nothing for a DELETE
==========  ======  ==========================================================================================

A form without key columns is of a table that has no key. A key literal of a DELETE is then a condition over all
columns, ``(`a`<=>7)/*74…*/ OR ``, and one row for which it holds goes; of an INSERT it is the comment alone. The raw
key in it tells rows apart that hold the same.

A form without columns is of a *resync*: each key literal is a condition, ``(`a`>7 AND `a` NOT IN (9)) OR ``, and the
op DELETE. Whatever row of the table it holds for goes, at that place of the order.

So a message of one row is its head, key and row, and each literal ends as it does within a list of them: neighbours are
a part of a statement as they stand in the message, and a processor looks at the heads alone, all at once.

A form with :attr:`TableForm.notes` is of a table whose keys a resync may have noted (:class:`ResyncStep`): its rows are
written over whatever is there, and what is noted of their keys is struck off.

A joined message carries the position of its last row (:mod:`schemas.sink.position`). DDL events and watermarks have no
key and a JSON value; DDL events go to every partition, since each must stop there.

The format on a page: docs/formats/sink-topic.md §2.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.json_text import read_json
from schemas.sink.position import RowOp

HEADS = np.dtype([("commit_ts", ">u8"), ("start_ts", ">u8"), ("op", "u1"), ("key", ">u4"), ("row", ">u4")])
HEAD_BYTES = HEADS.itemsize
_HEAD = struct.Struct(">qqBII")
ROWS_MAX = 1024
"""Of a message. It bounds where a reader looks for the end of the heads."""
LOOSE = 0x80
"""Beside the op: the row holds an ENUM's error value (0), which a server takes only outside strict mode."""
KEY_END, ROW_END = b",", b","
CONDITION_END = b" OR "
"""What literals end with: keys of one column, rows; keys of several columns."""
_VERSION, _IMAGE_VERSION, _RANGE_VERSION, _KEYLESS_VERSION, _NOTED_VERSION, _OVERWRITING_VERSION = range(2, 8)
"""Of a form: of changes; that tells unique keys; whose key literals are conditions; without key, of a table image or
not; that says whose notes of keys its rows are struck off; whose rows go over whatever is there, whatever it is."""
_OP_MAX = max(RowOp)
IntArray = npt.NDArray[np.int64]
NO_TABLE = TableId(0)


class ResyncStep(StrEnum):
    """What a DDL event without a statement has a database do for a resync, while all partitions stand still."""

    NOTE = "note"
    """Note the keys of all rows that the table has. From here on each row that is written strikes its key off."""
    FORGET = "forget"
    """Forget what is noted: the table is resynced in a way in which nothing can be deleted by it."""
    DELETE = "delete"
    """Delete the rows whose keys are left, and the notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """What a statement needs of a table beside the literals."""

    schema: str
    table: str
    version: Ts
    """finished_ts of the DDL that made the table so."""
    columns: tuple[str, ...]
    """Of a row literal: those of the table without generated ones; none: see :attr:`is_range`."""
    key: tuple[str, ...]
    """Of a key literal: the handle key; none: see :attr:`is_keyless`."""
    uniques: tuple[tuple[str, ...], ...] | None = None
    """Columns of all unique keys, of rows of a table image: the destination's table is held against them. None: of
    changes, which go where the rows before them went."""
    notes: TableId = NO_TABLE
    """The table by whose id its keys are noted, if they are: it is being resynced."""
    overwrites: bool = False
    """Rows go over whatever is there, as in safe mode: not all that upstream took away was taken away there, too."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def key_end(self) -> bytes:
        """What each key literal ends with."""
        return KEY_END if len(self.key) == 1 and not self.is_range else CONDITION_END

    @property
    def is_keyless(self) -> bool:
        """Whether the table has no key, so that rows may hold the same; each statement is one row's then."""
        return not self.key

    @property
    def is_range(self) -> bool:
        """Whether key literals are conditions, for rows that an image lacks."""
        return not self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlDdl:
    """A DDL event."""

    commit_ts: Ts
    ddl_type: int
    """TiDB's action type."""
    schema: str
    table: str
    """Empty for a DDL on a schema."""
    pre_schema: str
    pre_table: str
    """Names before a rename, and the plain table of an EXCHANGE PARTITION; empty where there is none."""
    referred: tuple[tuple[str, str], ...] = ()
    """Schema and table of what it reads and does not change, such as after LIKE; empty also of a former release."""
    query: str
    plain_backslashes: bool = False
    """A backslash within its strings means itself: the sorter has written the statement anew. False: of a release that
    sent what users wrote."""
    sql_mode: int = 0
    """Bits of upstream's sql_mode that say how the statement is read beside that, as TiDB has them."""
    clock: str = ""
    """What CURRENT_TIMESTAMP was, where it has filled a new TIMESTAMP of old rows: ``YYYY-MM-DD hh:mm:ss[.f]`` in UTC.
    Sorters of a release before wrote a DATETIME's here too, which is in no zone that they knew."""
    local_clock: str = ""
    """The same where it has filled a new DATETIME, as upstream's session saw it, in whatever zone that had."""
    table_id: TableId = NO_TABLE
    """Of the table, as upstream has it; of a partitioned one its own."""
    ended: tuple[TableId, ...] = ()
    """Tables that it makes others of, so that what is noted of their keys tells nothing any more."""
    step: ResyncStep | None = None
    """What is to be done in place of the statement, which is for people then."""
    key: tuple[str, ...] = ()
    """Of such a step: the columns of the handle key."""
    key_types: tuple[str, ...] = ()
    """Their types as SQL."""

    @property
    def name(self) -> str:
        """What it is about, for people."""
        return f"{self.schema}.{self.table}" if self.table else self.schema


@dataclass(frozen=True, slots=True)
class SqlRow:
    """One row by itself; what is fast goes by columns."""

    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    """Literals without what ends them in a list."""
    row: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class SqlRows:
    """A row message of n rows as columns."""

    value: bytes
    """The message: keys and rows stand in it."""
    commit_ts: IntArray
    start_ts: IntArray
    op: npt.NDArray[np.uint8]
    """With LOOSE."""
    key_at: IntArray
    """Where each key begins, and behind it where the last one ends: n + 1."""
    row_at: IntArray

    def __len__(self) -> int:
        return len(self.op)

    @property
    def is_read(self) -> npt.NDArray[np.bool_]:
        """Of each row: a table image has it; a transaction begins before it commits."""
        is_read: npt.NDArray[np.bool_] = self.commit_ts == self.start_ts
        return is_read

    def txn(self, row: int) -> tuple[int, int]:
        """Return commit_ts and start_ts of a row's transaction."""
        return int(self.commit_ts[row]), int(self.start_ts[row])

    def literal_bytes(self, first: int, ends: IntArray | int) -> Any:
        """Return how long the literals of the rows from ``first`` to each of ``ends`` are."""
        return (self.key_at[ends] - self.key_at[first]) + (self.row_at[ends] - self.row_at[first])

    def literal_starts(self, of_keys: bool) -> IntArray:
        """Return ``key_at`` or ``row_at``."""
        return self.key_at if of_keys else self.row_at

    def key(self, row: int) -> bytes:
        """Return a row's key literal, with what ends it."""
        return self.value[self.key_at[row] : self.key_at[row + 1]]

    def row(self, row: int, form: TableForm) -> SqlRow:
        """Return one row; ``form`` is the message's."""
        literal = self.value[self.row_at[row] : self.row_at[row + 1]]
        return SqlRow(
            commit_ts=int(self.commit_ts[row]),
            start_ts=int(self.start_ts[row]),
            op=int(self.op[row]),
            key=self.key(row).removesuffix(form.key_end),
            row=literal.removesuffix(ROW_END),
        )


def encode_form(form: TableForm) -> bytes:
    """Return a row message's key."""
    parts: list[Any] = [_form_version(form), form.schema, form.table, form.version, form.columns, form.key]
    if form.overwrites:
        # Within the sixth item: a processor of a release before that unpacks six refuses it by the version.
        parts[-1] = form.key, form.uniques, form.notes
    elif form.uniques is not None or form.notes:
        parts += [form.uniques, form.notes] if form.notes else [form.uniques]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def _form_version(form: TableForm) -> int:
    if form.overwrites:
        return _OVERWRITING_VERSION
    if form.is_keyless:
        return _KEYLESS_VERSION
    if form.notes:
        return _NOTED_VERSION
    if form.uniques is not None:
        return _IMAGE_VERSION
    return _RANGE_VERSION if form.is_range else _VERSION


def decode_form(key: bytes) -> TableForm:
    """Read a row message's key.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        version, *parts = read_json(key.decode("utf-8", "surrogateescape"))
        if is_overwriting := version == _OVERWRITING_VERSION:
            *parts, (handle, uniques, notes) = parts
            parts += handle, uniques, notes, True
        schema, table, ts, columns, handle, *more = parts
        uniques = tuple(tuple(map(str, unique)) for unique in more[0]) if more and more[0] is not None else None
        form = TableForm(
            schema=schema,
            table=table,
            version=Ts(int(ts)),
            columns=tuple(columns),
            key=tuple(handle),
            uniques=uniques,
            notes=TableId(int(more[1])) if len(more) > 1 else NO_TABLE,
            overwrites=len(more) > 2 and bool(more[2]),
        )
        # Builds since the release before told what overwrites behind a form of any other version.
        if version != _form_version(form if is_overwriting else replace(form, overwrites=False)):
            raise ValueError(f"version {version}, ours is {_VERSION}: sorter and processors are of one release")
        return form
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptDataError("form of a row message does not decode", key=key[:200], reason=repr(error)) from error


def encode_rows(form: TableForm, rows: Sequence[SqlRow]) -> bytes:
    """Return the value of a message of these rows."""
    keys = [row.key + form.key_end for row in rows]
    literals = [row.row and row.row + ROW_END for row in rows]
    heads = np.zeros(len(rows), HEADS)
    for at, (row, key, literal) in enumerate(zip(rows, keys, literals, strict=True)):
        heads[at] = row.commit_ts, row.start_ts, row.op, len(key), len(literal)
    return heads.tobytes() + b"".join(keys) + b"".join(literals)


def decode_rows(value: bytes) -> SqlRows:
    """Read the value of a row message.

    Raises:
        CorruptDataError: heads, keys and rows do not add up to it.
    """
    if (alone := _single_row(value)) is not None:
        return alone
    guess = np.frombuffer(value, HEADS, min(len(value) // HEAD_BYTES, ROWS_MAX))
    key_bytes, row_bytes = guess["key"].astype(np.int64), guess["row"].astype(np.int64)
    # How many rows there are is where what their heads speak of, and the heads themselves, come to the whole length.
    ends = np.cumsum(key_bytes + row_bytes + HEAD_BYTES)
    count = int(np.searchsorted(ends, len(value))) + 1
    if count > len(ends) or int(ends[count - 1]) != len(value):
        raise CorruptDataError("row message does not add up", bytes=len(value))
    heads = guess[:count]
    if (heads["op"] & ~np.uint8(LOOSE)).max() > _OP_MAX:
        raise CorruptDataError("row message has an unknown op", bytes=len(value))
    key_at, row_at = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    key_at[0] = count * HEAD_BYTES
    np.cumsum(key_bytes[:count], out=key_at[1:])
    key_at[1:] += key_at[0]
    row_at[0] = key_at[-1]
    np.cumsum(row_bytes[:count], out=row_at[1:])
    row_at[1:] += row_at[0]
    return SqlRows(
        value, heads["commit_ts"].astype(np.int64), heads["start_ts"].astype(np.int64), heads["op"], key_at, row_at
    )


def _single_row(value: bytes) -> SqlRows | None:
    """Read a message of one row, the commonest where tables are many; None: it is none."""
    if len(value) < HEAD_BYTES:
        return None
    commit_ts, start_ts, op, key_bytes, row_bytes = _HEAD.unpack_from(value)
    row_at = HEAD_BYTES + key_bytes
    if row_at + row_bytes != len(value):
        return None
    if op & ~LOOSE > _OP_MAX:
        raise CorruptDataError("row message has an unknown op", bytes=len(value))
    starts = np.array((HEAD_BYTES, row_at, len(value)), np.int64)
    return SqlRows(
        value,
        np.array((commit_ts,), np.int64),
        np.array((start_ts,), np.int64),
        np.array((op,), np.uint8),
        starts[:2],
        starts[1:],
    )


def encode_ddl(ddl: SqlDdl) -> bytes:
    """Return a DDL message's value."""
    parts = {
        "ddl": ddl.query,
        "commit_ts": ddl.commit_ts,
        "type": ddl.ddl_type,
        "schema": ddl.schema,
        "table": ddl.table,
        "pre_schema": ddl.pre_schema,
        "pre_table": ddl.pre_table,
        "referred": ddl.referred,
        "plain_backslashes": ddl.plain_backslashes,
        "sql_mode": ddl.sql_mode,
        "clock": ddl.clock,
        "local_clock": ddl.local_clock,
        "table_id": ddl.table_id,
        "ended": ddl.ended,
        "step": ddl.step or "",
        "key": ddl.key,
        "key_types": ddl.key_types,
    }
    return json.dumps(parts).encode()


def decode_ddl(value: bytes) -> SqlDdl:
    """Read a DDL message's value.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = read_json(value)
        return SqlDdl(
            commit_ts=Ts(int(raw["commit_ts"])),
            ddl_type=int(raw["type"]),
            schema=raw["schema"],
            table=raw["table"],
            pre_schema=raw["pre_schema"],
            pre_table=raw["pre_table"],
            referred=tuple((str(schema), str(table)) for schema, table in raw.get("referred", ())),
            query=raw["ddl"],
            plain_backslashes=bool(raw["plain_backslashes"]),
            sql_mode=int(raw.get("sql_mode", 0)),
            clock=raw["clock"],
            local_clock=str(raw.get("local_clock", "")),
            table_id=TableId(int(raw.get("table_id", NO_TABLE))),
            ended=tuple(TableId(int(table)) for table in raw.get("ended", ())),
            step=ResyncStep(raw["step"]) if raw.get("step") else None,
            key=tuple(map(str, raw.get("key", ()))),
            key_types=tuple(map(str, raw.get("key_types", ()))),
        )
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise CorruptDataError("ddl message does not decode", value=value[:200], reason=repr(error)) from error


def encode_watermark(ts: Ts) -> bytes:
    """Return a watermark's value, for people: machines read the position."""
    return b'{"watermark":%d}' % ts
