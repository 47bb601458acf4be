"""A DDL job to the DDL events that go downstream, in the order of their sequence numbers.

Most jobs give one event. ``rename tables`` and ``create tables`` give one a table; jobs whose query may name more than
the one table that they changed (drop table, drop view, exchange partition) get a query of their own. Source: TiCDC
``cdc/model/sink.go``, ``DDLEvent.FromJob``; the oracle is ``tests/data/tidb/ddl_events``.
"""

from dataclasses import dataclass, replace
from enum import Enum

from schemas.ddl.job import DDL_TYPE_NAMES, SCHEMA_TYPES, DdlJob, DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable, TableChange
from schemas.ids import TableId, Ts
from schemas.sink.sql_rows import ResyncStep
from sorters.core.sql.restore import restore, restore_tokens
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError, quote_name, split_statements


class Eligibility(Enum):
    """What a changefeed without ``force-replicate`` does with a job; it is always applied to the schema."""

    SEND = "send"
    INELIGIBLE = "ineligible table"
    """Not sent: rows of this table are not replicated either."""
    BECAME_INELIGIBLE = "an eligible table became ineligible"
    """The changefeed fails: from here on it would lose rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """One DDL statement for one table (or schema). ``table`` and ``pre_table`` are '' and id 0 where there is none."""

    job_id: int
    commit_ts: Ts
    start_ts: Ts
    seq: int
    type: DdlType
    schema: str
    table: str
    table_id: TableId
    pre_schema: str
    pre_table: str
    original_query: str
    """The job's query, or the one made for this table; event filters look at it."""
    restored_query: str
    """What goes downstream; the original where ``restored`` is False."""
    restored: bool
    charset: str
    collation: str
    sql_mode: int
    """What :attr:`original_query` was written in; bits as TiDB has them."""
    bdr_role: str
    post: StoredTable | None
    """The table after the DDL; None after a drop and for schemas."""
    pre: StoredTable | None
    """The table before it; None when it came with this DDL, and for schemas."""
    referred: tuple[tuple[str, str], ...]
    """Schema and table of what the job reads and does not change, such as the table after LIKE."""
    is_routed: bool = False
    """The restored query has other names than the original, by a route; each with its schema."""
    step: ResyncStep | None = None
    """What a database is to do in place of the statement."""

    @property
    def query(self) -> str:
        """What goes downstream."""
        return self.restored_query

    @property
    def ddl_type(self) -> int:
        """TiDB's action type."""
        return int(self.type)

    @property
    def type_name(self) -> str:
        """TiDB's name of the action, such as ``add column``."""
        return DDL_TYPE_NAMES[self.type]


def ddl_events(change: SchemaChange) -> tuple[DdlEvent, ...]:
    """Return the events of an applied job."""
    job = change.job
    assert job.type is not None
    if job.type in SCHEMA_TYPES:
        return (_event(job, 0, job.type, change.schema, None, job.query),)
    if job.type is DdlType.RENAME_TABLES:
        pairs = [(item, _renaming(item)) for item in change.tables]
        return tuple(_table_event(job, seq, DdlType.RENAME_TABLE, *pair) for seq, pair in enumerate(pairs))
    if job.type is DdlType.CREATE_TABLES:
        return _create_tables_events(change)
    if job.type is DdlType.EXCHANGE_PARTITION:
        return (_exchange_event(change),)
    return (_table_event(job, 0, job.type, change.tables[0], _query(job, change.tables[0])),)


def event_of_no_job(
    ddl_type: DdlType,
    ts: Ts,
    schema: str,
    query: str,
    *,
    start_ts: Ts,
    seq: int = 0,
    pre: StoredTable | None = None,
    post: StoredTable | None = None,
) -> DdlEvent:
    """Return a statement of our own making, which renames nothing, as an event of ``ts``."""
    return DdlEvent(
        job_id=0,
        commit_ts=ts,
        start_ts=start_ts,
        seq=seq,
        type=ddl_type,
        schema=schema,
        table=post.table if post else "",
        table_id=post.table_id if post else TableId(0),
        pre_schema="",
        pre_table="",
        original_query=query,
        restored_query=query,
        restored=True,
        charset="",
        collation="",
        sql_mode=0,
        bdr_role="",
        post=post,
        pre=pre,
        referred=(),
    )


def eligibility(change: SchemaChange) -> Eligibility:
    """Tell whether the job of tables without a usable key is sent; a multi-table rename always is, as in TiCDC."""
    if change.job.type in SCHEMA_TYPES or change.job.type is DdlType.RENAME_TABLES:
        return Eligibility.SEND
    if any(item.pre and item.post and item.pre.eligible and not item.post.eligible for item in change.tables):
        return Eligibility.BECAME_INELIGIBLE
    tables = [item.post or item.pre for item in change.tables]
    return Eligibility.SEND if any(table and table.eligible for table in tables) else Eligibility.INELIGIBLE


def rename_query(pre: StoredTable, post: StoredTable) -> str:
    """Return the statement that renames a table, each name with its schema."""
    return f"RENAME TABLE {_quoted(pre)} TO {_quoted(post)}"


def _query(job: DdlJob, change: TableChange) -> str:
    table = change.post or change.pre
    assert table is not None
    if job.type is DdlType.DROP_TABLE:
        return f"DROP TABLE {_quoted(table)}"
    if job.type is DdlType.DROP_VIEW:
        return f"DROP VIEW {_quoted(table)}"
    if job.type is DdlType.RENAME_TABLE and change.pre and change.post and not _renames(job, change.pre, change.post):
        return rename_query(change.pre, change.post)
    return job.query


def _renames(job: DdlJob, pre: StoredTable, post: StoredTable) -> bool:
    """Tell whether a job's query names its table, and its new name, and no other: text does not decide what is renamed
    at the destination.
    """
    names = _NamesSeen()
    try:
        restore(job.query, charset=job.charset, sql_mode=job.sql_mode, names=names)
    except UnsupportedSqlError:
        return False
    whole = [[table.schema.lower(), table.table.lower()] for table in (pre, post)]
    return len(names.tables) == len(whole) and all(
        name[-len(seen) :] == seen for name, seen in zip(whole, names.tables, strict=True)
    )


class _NamesSeen:
    """Keeps the names of a statement's tables, in lower case; all names stay."""

    view_select = ""

    def __init__(self) -> None:
        self.tables: list[list[str]] = []

    def schema(self, name: str) -> str:
        return name

    def table(self, parts: list[str]) -> list[str]:
        self.tables.append([part.lower() for part in parts])
        return parts

    def without_alias(self) -> None:
        pass

    def column(self, parts: list[str]) -> list[str]:
        return parts


def _renaming(change: TableChange) -> str:
    assert change.pre is not None
    assert change.post is not None
    return rename_query(change.pre, change.post)


def _exchange_event(change: SchemaChange) -> DdlEvent:
    """The event's table is the partitioned one, its pre-table the plain one."""
    job = change.job
    partitioned, plain = change.tables
    assert partitioned.pre is not None
    assert partitioned.post is not None
    assert plain.pre is not None
    (came,) = set(partitioned.post.partition_ids) - set(partitioned.pre.partition_ids)
    name = next(p.name for p in partitioned.post.decode().partitions if p.id == came)
    query = f"ALTER TABLE {_quoted(partitioned.post)} EXCHANGE PARTITION {quote_name(name)} WITH TABLE "
    query += _quoted(plain.pre)
    if job.query.rstrip().rstrip(";").upper().endswith("WITHOUT VALIDATION"):
        query += " WITHOUT VALIDATION"
    return _table_event(job, 0, DdlType.EXCHANGE_PARTITION, TableChange(plain.pre, partitioned.post), query)


def _create_tables_events(change: SchemaChange) -> tuple[DdlEvent, ...]:
    """The job's query holds one statement a table, in the same order."""
    job = change.job
    try:
        statements = split_statements(job.query, job.sql_mode)
        texts = [restore_tokens(tokens, job.charset, job.sql_mode) for tokens in statements]
    except UnsupportedSqlError:
        texts = []
    # What is restored is read by other rules than what it was restored from: backslashes mean themselves.
    restored = replace(job, sql_mode=MODE_NO_BACKSLASH_ESCAPES)
    if len(texts) != len(change.tables):
        texts, restored = [job.query] * len(change.tables), job
    pairs = zip(change.tables, texts, strict=True)
    return tuple(_table_event(restored, seq, DdlType.CREATE_TABLE, *pair) for seq, pair in enumerate(pairs))


def _table_event(job: DdlJob, seq: int, ddl_type: DdlType, change: TableChange, query: str) -> DdlEvent:
    table = change.post or change.pre
    assert table is not None
    return _event(job, seq, ddl_type, table.schema, change, query)


def _event(job: DdlJob, seq: int, ddl_type: DdlType, schema: str, change: TableChange | None, query: str) -> DdlEvent:
    pre, post = (change.pre, change.post) if change else (None, None)
    table = post or pre
    restored_query = _restored(query, job)
    return DdlEvent(
        job_id=job.job_id,
        commit_ts=job.finished_ts,
        start_ts=job.start_ts,
        seq=seq,
        type=ddl_type,
        schema=schema,
        table=table.table if table else "",
        table_id=table.table_id if table else TableId(0),
        pre_schema=pre.schema if pre else "",
        pre_table=pre.table if pre else "",
        original_query=query,
        restored_query=query if restored_query is None else restored_query,
        restored=restored_query is not None,
        charset=job.charset,
        collation=job.collation,
        sql_mode=job.sql_mode,
        bdr_role=job.bdr_role,
        post=post,
        pre=pre,
        referred=job.referred,
    )


def _restored(query: str, job: DdlJob) -> str | None:
    try:
        return restore(query, charset=job.charset, sql_mode=job.sql_mode)
    except UnsupportedSqlError:
        return None


def _quoted(table: StoredTable) -> str:
    return f"{quote_name(table.schema)}.{quote_name(table.table)}"
