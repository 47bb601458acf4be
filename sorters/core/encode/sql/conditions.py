"""Key literals of a table that has no key: a row is found by all that it holds.

A DELETE's literal is a condition for which the row's values hold and no others do; ``LIMIT 1`` leaves rows that hold
the same. Behind it stands the row's raw key as a comment, and of an INSERT that alone: a processor tells rows of one
transaction apart by their literals.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.sink.sql_rows import CONDITION_END
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.encode.sql.literals import NULL, hex_text, value_literal
from sorters.core.encode.wire.segments import Segment, join, or_else
from sorters.core.mount.column import Column, value_text
from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.sql.tokens import quote_name


def column_keys(
    part: MountedPart, written: Sequence[ColumnVersion], literal: Callable[[ColumnVersion], BinaryArray]
) -> BinaryArray:
    """Return the key literals of a part whose rows come as columns, with their end.

    Args:
        part: of a table without a key.
        written: its columns that are not generated.
        literal: returns the literals of one of them, on the side of the row that the part has.
    """
    segments: list[Segment] = []
    if part.kind is RowKind.DELETE:
        columns = part.old_columns()
        for number, spec in enumerate(written):
            segments += [b" AND " if number else b"(", *_condition(spec, literal(spec), columns[spec.offset])]
        segments.append(b")")
    names = hex_text(part.names.keys.to_arrow())
    return join(len(part), [*segments, b"/*", names, b"*/" + CONDITION_END])


def scalar_keys(part: MountedPart, written: Sequence[ColumnVersion]) -> BinaryArray:
    """Return the same of a part whose rows come one by one."""
    keys: list[bytes] = []
    for number in range(len(part)):
        condition = b""
        if part.kind is RowKind.DELETE:
            assert part.old_rows is not None
            row = part.old_rows[number]
            parts = [_scalar_condition(spec, row[spec.offset]) for spec in written]
            condition = b"(" + b" AND ".join(parts) + b")"
        keys.append(condition + b"/*%s*/" % part.names.keys[number].hex().encode() + CONDITION_END)
    return pa.array(keys, pa.binary())


def _condition(spec: ColumnVersion, literals: BinaryArray, column: Column) -> list[Segment]:
    head, middle, tail = _around(spec)
    if spec.tp is MysqlType.JSON:
        texts = or_else(pc.binary_join_element_wise(b"x'", hex_text(column.text), b"'", b""), NULL)
        return [head, literals, middle, texts, tail]
    return [head, literals, middle, literals, tail] if middle else [head, literals]


def _scalar_condition(spec: ColumnVersion, value: Value) -> bytes:
    head, middle, tail = _around(spec)
    literal = value_literal(spec, value)
    if spec.tp is MysqlType.JSON:
        text = value_text(spec, value)
        return head + literal + middle + (NULL if text is None else b"x'%s'" % text.hex().encode()) + tail
    return head + literal + (middle and middle + literal + tail)


def _around(spec: ColumnVersion) -> tuple[bytes, bytes, bytes]:
    """Return what stands before, between and behind the two literals of a condition; between is nothing where there is
    one.

    ``<=>`` holds for NULLs too. Characters are compared as an index may have them, and then byte by byte: a collation
    takes other texts for the same. A JSON equals no text to TiDB and MySQL, so its own text is compared; MySQL's may be
    another, so it compares the documents, in a comment that MariaDB passes over, as it is of MySQL 5.7; hexadecimal,
    since a text could end it.
    """
    name = quote_name(spec.name).encode("utf-8", "surrogateescape")
    if spec.tp in STRING_TYPES and not spec.binary:
        return name + b"<=>", b" AND CAST(CONVERT(" + name + b" USING utf8mb4) AS BINARY)<=>CAST(", b" AS BINARY)"
    if spec.tp is MysqlType.JSON:
        document = b"/*!50708 OR " + name + b"<=>CAST(CONVERT("
        return b"(CAST(" + name + b" AS CHAR)<=>", document, b" USING utf8mb4) AS JSON)*/)"
    if spec.tp is MysqlType.VECTOR:
        return b"CAST(" + name + b" AS CHAR)<=>", b"", b""
    return name + b"<=>", b"", b""
