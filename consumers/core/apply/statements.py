"""Rows to statements: what a batch of whole transactions comes to, table by table, as few statements as it takes.

A batch begins and ends between upstream transactions, and is applied in one transaction, so that what lies between its
ends is nobody's business: of each key only its last state counts. Within a table the order of statements is then

    DELETE of keys that went (and, outside safe mode, of those that went and came back)
    INSERT … ON DUPLICATE KEY UPDATE of keys that were there and stay     } safe mode: REPLACE
    INSERT of keys that came                                              } of both

No unique key can be in the way of a row that is new in the final state: who held it has been deleted, or has a row of
its own in the batch. The sorter splits updates that change a key into a delete and an insert, so an UPDATE leaves every
unique key as it was. Outside safe mode a key that came although it was there is an error of the destination, and shall
be: something else has written there. Safe mode takes any state of the destination for what was there: it is for a
destination that has some of the rows already.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from schemas.position import RowOp
from schemas.sql_rows import LOOSE, SqlRow, TableForm

STATEMENT_BYTES_MAX = 1024 * 1024
"""Of one statement, about: well below the least max_allowed_packet that is common (4 MiB), and long enough."""
_DELETE, _INSERT = int(RowOp.DELETE), int(RowOp.INSERT)
_OPS = LOOSE - 1


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and the rows it is made of, to name one if it fails."""

    form: TableForm
    sql: bytes
    rows: tuple[SqlRow, ...]
    loose: bool = False
    """To be run outside strict mode: its rows hold an ENUM's error value, and nothing else that does not fit."""


@dataclass(slots=True)
class _Table:
    """The net effect on one table, by key literal."""

    form: TableForm
    before: dict[bytes, bool] = field(default_factory=dict)
    """Whether the key was there before the batch."""
    last: dict[bytes, SqlRow] = field(default_factory=dict)
    went: set[bytes] = field(default_factory=set)
    """Keys that were deleted at some point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementSettings:
    """How statements are made."""

    safe_mode: bool = False
    rows_max: int = 1024
    """Rows of one statement."""


def statements(rows: Iterable[tuple[TableForm, SqlRow]], settings: StatementSettings) -> Iterator[Statement]:
    """Yield the statements of a batch; ``rows`` are in upstream's order.

    Rows of one table under two forms (a DDL that changes no column) stay apart only if the columns differ, and then in
    their order.
    """
    for table in _net(rows):
        yield from _of_table(table, settings)


def _net(rows: Iterable[tuple[TableForm, SqlRow]]) -> list[_Table]:
    tables: list[_Table] = []
    open_tables: dict[str, _Table] = {}
    known: TableForm | None = None
    table: _Table | None = None
    for form, row in rows:
        if form is not known or table is None:
            known, table = form, open_tables.get(form.name)
            if table is None or (table.form.columns, table.form.key) != (form.columns, form.key):
                table = open_tables[form.name] = _Table(form)
                tables.append(table)
        op, key = row[2] & _OPS, row[3]
        if key not in table.before:
            table.before[key] = op != _INSERT
        if op == _DELETE:
            table.went.add(key)
        table.last[key] = row
    return tables


def _of_table(table: _Table, settings: StatementSettings) -> Iterator[Statement]:
    form, head = table.form, _insert_head(table.form)
    deletes, upserts, inserts = [], [], []
    for key, row in table.last.items():
        if row[2] & _OPS == _DELETE:
            if settings.safe_mode or table.before[key]:
                deletes.append(row)
        elif settings.safe_mode or not table.before[key]:
            inserts.append(row)
        elif key in table.went:
            deletes.append(row)
            inserts.append(row)
        else:
            upserts.append(row)
    delete_head, separator, tail = _delete_parts(form)
    yield from _chunks(form, delete_head, deletes, 3, separator, tail, settings)
    yield from _chunks(form, b"INSERT" + head, upserts, 4, b",", _on_duplicate(form), settings)
    verb = b"REPLACE" if settings.safe_mode else b"INSERT"
    yield from _chunks(form, verb + head, inserts, 4, b",", b"", settings)


def _chunks(
    form: TableForm,
    head: bytes,
    rows: Sequence[SqlRow],
    literal: int,
    separator: bytes,
    tail: bytes,
    settings: StatementSettings,
) -> Iterator[Statement]:
    """Yield statements over ``rows``; ``literal`` is the place of the literal in a row: 3 its key, 4 the row."""
    loose = [row for row in rows if row[2] & LOOSE]
    if loose:
        rows = [row for row in rows if not row[2] & LOOSE]
        for row in loose:
            yield replace(_joined(form, head, [row], literal, separator, tail), loose=True)
    start, size = 0, 0
    for at, row in enumerate(rows):
        more = len(row[literal])  # type: ignore[arg-type]  # bytes at both places
        if at > start and (at - start >= settings.rows_max or size + more > STATEMENT_BYTES_MAX):
            yield _joined(form, head, rows[start:at], literal, separator, tail)
            start, size = at, 0
        size += more
    if rows:
        yield _joined(form, head, rows[start:], literal, separator, tail)


def _joined(
    form: TableForm, head: bytes, rows: Sequence[SqlRow], literal: int, separator: bytes, tail: bytes
) -> Statement:
    sql = head + separator.join([row[literal] for row in rows]) + tail  # type: ignore[misc]
    return Statement(form, sql, tuple(rows))


def quoted(name: str) -> bytes:
    """Return an identifier in back quotes."""
    return b"`" + name.replace("`", "``").encode("utf-8", "surrogateescape") + b"`"


def _name(form: TableForm) -> bytes:
    return quoted(form.schema) + b"." + quoted(form.table)


def _insert_head(form: TableForm) -> bytes:
    return b" INTO " + _name(form) + b" (" + b",".join(quoted(column) for column in form.columns) + b") VALUES "


def _on_duplicate(form: TableForm) -> bytes:
    pairs = [quoted(column) + b"=VALUES(" + quoted(column) + b")" for column in form.columns]
    return b" ON DUPLICATE KEY UPDATE " + b",".join(pairs)


def _delete_parts(form: TableForm) -> tuple[bytes, bytes, bytes]:
    head = b"DELETE FROM " + _name(form) + b" WHERE "
    if len(form.key) == 1:
        return head + quoted(form.key[0]) + b" IN (", b",", b")"
    return head, b" OR ", b""  # each key literal is a whole condition
