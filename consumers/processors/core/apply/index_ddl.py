"""Which DDL may run beside rows: the building of an index that changes no row and refuses none.

TiCDC does so on a TiDB (``asyncExecAddIndexDDLIfTimeout``); here MySQL and MariaDB build such an index online too. A
UNIQUE one is not among them: while it is built, a server takes a key for a duplicate that is one for a moment only.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from consumers.processors.core.apply.ddl_effects import effects_of
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl

_OTHER_INDEX = re.compile(r"\b(UNIQUE|FULLTEXT|SPATIAL|VECTOR|COLUMNAR)\b", re.IGNORECASE)
"""Of the statement anywhere: a column of that name makes it wait, which does no harm."""
_LIKE = re.compile(r"\bLIKE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class IndexDdl:
    """An index that is to be built, or is being built."""

    position: bytes
    start_ts: Ts
    ddl: SqlDdl
    before: str
    """What the destination looked like before it."""
    noted_s: int
    """When it was begun (Unix time), by the clock that a TiDB's jobs go by."""


def builds_apart(ddl: SqlDdl) -> bool:
    """Tell whether rows and DDL of other tables may go on while it runs.

    Not so where nothing tells afterwards whether it is there, as of one without a name over an expression.
    """
    return ddl.ddl_type == DdlType.ADD_INDEX and not (_OTHER_INDEX.search(ddl.query) or effects_of(ddl).once)


def must_wait(ddl: SqlDdl, building: Iterable[IndexDdl]) -> bool:
    """Tell whether a DDL is about a table that an index is built on, or about its whole schema, or reads such a table.

    A table that is made LIKE another gets the indexes that the other one has, and nothing builds one there later.
    """
    if not ddl.referred and ddl.ddl_type == DdlType.CREATE_TABLE and _LIKE.search(ddl.query):
        return any(True for _ in building)  # which table it reads was not told
    about = {(ddl.schema, ddl.table), (ddl.pre_schema, ddl.pre_table), *ddl.referred}
    folded = {(schema.lower(), table.lower()) for schema, table in about}  # TiDB tells the referred ones in lower case
    for index in building:
        schema, table = index.ddl.schema.lower(), index.ddl.table.lower()
        if (schema, table) in folded or (schema, "") in folded:
            return True
    return False
