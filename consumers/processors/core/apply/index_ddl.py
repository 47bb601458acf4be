"""Which DDL may run beside rows: the building of an index that changes no row and refuses none.

TiCDC does so on a TiDB (``asyncExecAddIndexDDLIfTimeout``); here MySQL and MariaDB build such an index online too. A
UNIQUE one is not among them: while it is built, a server takes a key for a duplicate that is one for a moment only.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl

_OTHER_INDEX = re.compile(r"\b(UNIQUE|FULLTEXT|SPATIAL|VECTOR|COLUMNAR)\b", re.IGNORECASE)
"""Of the statement anywhere: a column of that name makes it wait, which does no harm."""


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
    """Tell whether rows and DDL of other tables may go on while it runs."""
    return ddl.ddl_type == DdlType.ADD_INDEX and _OTHER_INDEX.search(ddl.query) is None


def must_wait(ddl: SqlDdl, building: Iterable[IndexDdl]) -> bool:
    """Tell whether a DDL is about a table that an index is built on, or about its whole schema."""
    about = {(ddl.schema, ddl.table), (ddl.pre_schema, ddl.pre_table)}
    for index in building:
        schema, table = index.ddl.schema, index.ddl.table
        if (schema, table) in about or (schema, "") in about:
            return True
    return False
