"""What is said where a lake table cannot be, or cannot follow a DDL: of which table, by which DDL, and what helps.

Who raises it knows why, and sometimes a way of its own (``what_helps``); what helps always is the same everywhere.
"""

import re
from typing import Final

from schemas.ddl.schema_change import SchemaChange
from schemas.errors import BusError, shortened
from schemas.ids import Ts
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.sql.tokens import quote_name

BEGIN_ANEW: Final = (
    "drop that one lake table by a tool of its catalog and resume, which makes it anew, and ask for the rows of before "
    "by `tidebus table backfill`"
)
QUERY_CHARS_MAX: Final = 1_000
_PLAIN: Final = re.compile(r"[A-Za-z0-9_$]+")


def filter_rule(schema: str, table: str) -> str:
    """Return the table-filter rule that leaves out one table.

    >>> filter_rule("shop", "odd`name")
    '!shop.`odd``name`'
    """
    return f"!{_quoted(schema)}.{_quoted(table)}"


def what_helps(error: BusError, schema: str, table: str) -> str:
    """Return the ways on from a refused table: what its error knows, and leaving it out."""
    own = str(error.fields.get("what_helps", ""))
    leave_out = f'leave it out: "{filter_rule(schema, table)}" behind the other rules under [filter], and resume'
    return f"{own}; or {leave_out}" if own else leave_out


def by_ddl(error: LakeSchemaError, change: SchemaChange, schema: str, table: str) -> LakeSchemaError:
    """Return an error that says besides by which DDL, and what helps; the table is named as the changefeed's rules name
    it behind the DDL.
    """
    job = change.job
    where = {"commit_ts": job.finished_ts, "start_ts": job.start_ts, "query": shortened(job.query, QUERY_CHARS_MAX)}
    return _said(error, schema, table, where)


def by_rows(error: LakeSchemaError, schema: str, table: str, schema_ts: Ts) -> LakeSchemaError:
    """Return the same of a DDL that the changefeed leaves out, where rows behind it are the first to need it."""
    return _said(error, schema, table, {"commit_ts": schema_ts, "query": ""})


def _said(error: LakeSchemaError, schema: str, table: str, where: dict[str, object]) -> LakeSchemaError:
    named = f"{schema}.{table}"
    fields = {name: value for name, value in error.fields.items() if name not in ("table", "what_helps")}
    if error.fields.get("table", named) != named:
        fields["lake_table"] = error.fields["table"]
    helps = what_helps(error, schema, table)
    return LakeSchemaError(error.message, table=named, **{**fields, **where}, what_helps=helps)


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote_name(name)
