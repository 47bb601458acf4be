"""The SQL that computes a table's proof where the table is: one statement for TiDB, one for MySQL and MariaDB.

Names are quoted here, and values are never joined: a condition has ``%s`` for each, which the client library fills in.
Percent signs of names are doubled for it, so statements are for a client that is given arguments, be they none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.state_proof.column_kind import ColumnKind, TextForm

_SUM: Final = ", coalesce(sum(cast(h as decimal(40,0))), 0)"
"""A DECIMAL, so that no server's integer is too small for it."""


class Dialect(Enum):
    """Whose SQL it is."""

    TIDB = "tidb"
    MARIADB = "mariadb"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True)
class ProofColumn:
    """A column of a proof; its kind is the upstream's, also where the statement is for a destination."""

    name: str
    kind: ColumnKind


def quoted(name: str) -> str:
    """Return a name as an identifier of a statement with arguments.

    >>> quoted("a`b%")
    '`a``b%%`'
    """
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def has_text(dialect: Dialect, kind: ColumnKind) -> bool:
    """Tell whether a database's SQL can be brought to TiDB's text.

    MySQL keeps a JSON in a form of its own: keys sorted by length, numbers written in its own way.
    """
    return not (dialect is Dialect.MYSQL and kind.form is TextForm.JSON)


def text_sql(dialect: Dialect, column: ProofColumn) -> str:
    """Return an expression for a value's text, as :func:`schemas.state_proof.row_text.value_text` gives it."""
    name, form = quoted(column.name), column.kind.form
    is_real = form in {TextForm.FLOAT, TextForm.DOUBLE}
    if form is TextForm.BYTES:
        # Never as characters: in an aggregate TiDB cuts such a text at the first byte that is no UTF-8.
        return name
    if form is TextForm.BIT:
        return f"cast({name} as binary)"
    if dialect is Dialect.TIDB:
        # A FLOAT's own digits are those of 32 bits, which no other database shows; the sum is its double.
        return f"cast({name} + 0 as char)" if is_real else f"cast({name} as char)"
    if is_real:
        return _without_exponent(f"cast({name} + 0e0 as char)")
    if form in {TextForm.TEXT, TextForm.JSON, TextForm.VECTOR}:
        return f"convert({name} using utf8mb4)"
    return f"cast({name} + 0 as char)" if column.kind.zerofill else f"cast({name} as char)"


def hash_sql(dialect: Dialect, columns: Sequence[ProofColumn]) -> str:
    """Return an expression for a row's hash, as :func:`schemas.state_proof.row_text.row_hash` gives it.

    It is NULL where a text is longer than the server's ``max_allowed_packet``: ``concat_ws`` would leave the text out,
    and ``ifnull`` would take it for a NULL.
    """
    texts = ",',',".join(
        f"if({quoted(column.name)} is null,'~',hex({text_sql(dialect, column)}))" for column in columns
    )
    return f"cast(conv(substring(md5(concat({texts})),1,16),16,10) as unsigned)"


def totals_sql(
    dialect: Dialect,
    table: tuple[str, str],
    columns: Sequence[ProofColumn],
    condition: str = "true",
    *,
    with_sum: bool = False,
) -> str:
    """Return the statement for (rows, rows that have a hash, XOR of the hashes) of a table; ``with_sum``: and for their
    sum, which is of more than 64 bits.

    A row whose text is longer than the server's ``max_allowed_packet`` has no hash there: then the first two differ.
    """
    rows = f"select {hash_sql(dialect, columns)} as h from {_table(table)} where {condition}"
    return f"select count(*), count(h), coalesce(bit_xor(h), 0){_SUM if with_sum else ''} from ({rows}) as hashed"


def buckets_sql(
    dialect: Dialect,
    table: tuple[str, str],
    columns: Sequence[ProofColumn],
    shift: int,
    condition: str,
    *,
    with_sum: bool = False,
) -> str:
    """Return the statement for (bucket, rows, XOR) of each bucket of rows whose hash begins alike; ``with_sum``: and
    for their sums.
    """
    rows = f"select {hash_sql(dialect, columns)} as h from {_table(table)} where {condition}"
    numbers = f"count(*), bit_xor(h){_SUM if with_sum else ''}"
    return f"select h >> {shift:d} as b, {numbers} from ({rows}) as hashed group by h >> {shift:d}"


def rows_sql(
    dialect: Dialect,
    table: tuple[str, str],
    columns: Sequence[ProofColumn],
    key: Sequence[ProofColumn],
    shift: int,
    condition: str,
) -> str:
    """Return the statement for (hash, hexadecimal text of each key column) of the rows of some buckets, by hash.

    The last arguments are the buckets, as one tuple, and how many rows are wanted.
    """
    keys = ",".join(f"hex({text_sql(dialect, column)}) as k{number}" for number, column in enumerate(key))
    names = ",".join(f"k{number}" for number in range(len(key)))
    rows = f"select {hash_sql(dialect, columns)} as h,{keys} from {_table(table)} where {condition}"
    return f"select h,{names} from ({rows}) as hashed where h >> {shift:d} in %s order by h limit %s"


def borders_sql(table: tuple[str, str], key: str) -> str:
    """Return the statement for the key that stands ``%s`` rows above the key ``%s``."""
    name = quoted(key)
    return f"select {name} from {_table(table)} where {name} > %s order by {name} limit 1 offset %s"


def _table(table: tuple[str, str]) -> str:
    return f"{quoted(table[0])}.{quoted(table[1])}"


def _without_exponent(text: str) -> str:
    """Return MySQL's text of a double, such as ``-1.5e-7``, with all its zeros."""
    digits = f"replace(trim(leading '-' from substring_index({text},'e',1)),'.','')"
    exponent = f"cast(substring_index({text},'e',-1) as signed)"
    small = f"concat('0.',repeat('0',-1-{exponent}),{digits})"
    whole = f"concat({digits},repeat('0',{exponent}+1-length({digits})))"
    split = f"concat(left({digits},{exponent}+1),'.',substring({digits},{exponent}+2))"
    shown = f"if({exponent}<0,{small},if({exponent}+1>=length({digits}),{whole},{split}))"
    return f"if(locate('e',{text})=0,{text},concat(if(left({text},1)='-','-',''),{shown}))"
