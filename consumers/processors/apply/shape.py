"""Asks the destination, before the first rows of a table image, whether its table can hold them."""

import pymysql

from consumers.processors.apply.connection import Connection, select
from consumers.processors.apply.errors import NO_SUCH_TABLE, ShapeDiffersError, errno
from consumers.processors.core.apply.shape import StoredColumn, StoredKey, StoredShape, misfits, range_misfits
from consumers.processors.core.apply.statements import quoted
from consumers.processors.core.apply.waiting import RowBatch
from schemas.sink.sql_rows import TableForm


class ShapeCheck:
    """What one processor knows of its destination's tables. Forms are asked for once: a DDL makes another form."""

    def __init__(self) -> None:
        self._fitting: set[TableForm] = set()

    def check(self, connection: Connection, rows: RowBatch) -> None:
        """Hold the tables of image rows in a batch, and of rows that images lack, against what the destination has.

        Raises:
            ShapeDiffersError: one cannot hold them; nothing is written.
            pymysql.MySQLError: the destination does not say.
        """
        asked = {part.form for part in rows.slices if part.form.uniques is not None or part.form.is_range}
        for form in asked - self._fitting:
            _check(connection, form)
            self._fitting.add(form)


def _check(connection: Connection, form: TableForm) -> None:
    stored = _stored(connection, form)
    wrong = ["it is not there"] if stored is None else list((range_misfits if form.is_range else misfits)(form, stored))
    if not wrong:
        return
    raise ShapeDiffersError(
        "destination's table cannot hold the rows of a table image; make it as the source's is and resume",
        table=form.name,
        differs="; ".join(wrong),
        source_columns=list(form.columns),
        source_key=list(form.key),
        destination_columns=[] if stored is None else [column.name for column in stored.columns],
        destination_keys=[] if stored is None else [list(key.columns) for key in stored.uniques],
    )


def _stored(connection: Connection, form: TableForm) -> StoredShape | None:
    """Return the destination's table; None: there is none."""
    name = (quoted(form.schema) + b"." + quoted(form.table)).decode("utf-8", "surrogateescape").replace("%", "%%")
    try:
        columns = select(connection, f"SHOW COLUMNS FROM {name}", ())
        indexes = select(connection, f"SHOW INDEX FROM {name}", ())
    except pymysql.MySQLError as error:
        if errno(error) in NO_SUCH_TABLE:
            return None
        raise
    return StoredShape(columns=[_column(row) for row in columns], uniques=_uniques(indexes))


def _column(row: tuple[object, ...]) -> StoredColumn:
    """Read a row of SHOW COLUMNS: Field, Type, Null, Key, Default, Extra."""
    name, tp, null, _, default, extra = row[:6]
    kinds = str(extra or "").upper()
    # MySQL says DEFAULT_GENERATED of a default that is an expression.
    generated = any(kind in kinds for kind in ("VIRTUAL", "STORED", "PERSISTENT"))
    brings_itself = generated or default is not None or "AUTO_INCREMENT" in kinds or "DEFAULT_GENERATED" in kinds
    return StoredColumn(name=str(name), tp=str(tp), generated=generated, needed=null == "NO" and not brings_itself)


def _uniques(rows: list[tuple[object, ...]]) -> list[StoredKey]:
    """Read rows of SHOW INDEX: Table, Non_unique, Key_name, Seq_in_index, Column_name, …, Sub_part at 7.

    A part without a column is an expression: what such a key holds together is not known.
    """
    keys: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        if not int(str(row[1])):
            keys.setdefault(str(row[2]), []).append(row)
    return [
        StoredKey(tuple(str(row[4]) for row in parts), whole=all(row[7] is None for row in parts))
        for parts in keys.values()
        if all(row[4] is not None for row in parts)
    ]
