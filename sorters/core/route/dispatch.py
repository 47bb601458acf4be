"""Where records go: topic and partition of rows, DDL events and watermarks, by ``[sink] dispatchers``.

The first rule whose matcher matches the table counts; a last rule ``*.*`` (default topic, hash of the table's name) is
always there. A :class:`Route` is a rule applied to one table version: columns found, topic named; it is what the hot
path uses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from schemas.changes import BinaryArray
from schemas.config.parse.origin import Origin
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink import DispatchRule
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.tidb.table import IndexVersion, TableVersion
from sorters.core.filter.table_filter import TableFilter
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.route.partition_hash import hash_columns, hash_row, hash_rows, table_hash
from sorters.core.route.topic_expression import substitute

StringArray = BinaryArray
"""``pyarrow`` (Large)String or (Large)Binary array of value texts, nulls for NULL."""


class DispatchError(BusError):
    """A dispatcher rule names an index or a column that a table does not have; ``fields`` name table, key and line."""

    code, action = "sorter.dispatch_failed", Action.STOP_CHANGEFEED


class PartitionRule(Enum):
    """How a row's partition is found."""

    TABLE = "table"
    INDEX_VALUE = "index-value"
    COLUMNS = "columns"
    TS = "ts"


_RULE_OF_WORD = {
    "index-value": PartitionRule.INDEX_VALUE,
    "rowid": PartitionRule.INDEX_VALUE,
    "columns": PartitionRule.COLUMNS,
    "ts": PartitionRule.TS,
}
"""All other words mean ``default``, and that is ``table``."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One item of ``dispatchers``, ready for use."""

    number: int
    """Its index in the list; the appended last rule has the list's length."""
    matcher: TableFilter
    topic: str
    partition: PartitionRule
    index: str
    columns: tuple[str, ...]
    origin: Origin

    @property
    def asks_for_columns(self) -> bool:
        """Whether there are tables that it does not fit: it names an index or columns."""
        return self.partition is PartitionRule.COLUMNS or (
            self.partition is PartitionRule.INDEX_VALUE and self.index != ""
        )


@dataclass(frozen=True, slots=True)
class Route:
    """Topic and partition of the rows of one table version."""

    schema: str
    table: str
    topic: str
    rule: PartitionRule
    column_offsets: tuple[int, ...]
    """Columns whose values are hashed, as offsets into ``TableVersion.columns``."""
    column_names: tuple[str, ...]
    """Their names as they go into the hash."""

    def partition(self, texts: Sequence[str | bytes | None], commit_ts: Ts, partition_count: int) -> int:
        """Return a row's partition.

        Args:
            texts: value texts of ``column_offsets``, in this order, None for NULL: of the new row, for a delete of the
                old one.
            commit_ts: of the row.
            partition_count: partitions of the topic that are used.
        """
        if self.rule is PartitionRule.TS:
            return commit_ts % partition_count
        return hash_row(self.schema, self.table, zip(self.column_names, texts, strict=True)) % partition_count

    def partitions(
        self,
        texts: Sequence[StringArray],
        commit_ts: npt.NDArray[np.int64],
        partition_count: int | npt.NDArray[np.int64],
        alike: AlikeTables | None = None,
    ) -> npt.NDArray[np.int32]:
        """Return n rows' partitions, equal to :meth:`partition` of each: int32, shape n.

        Args:
            texts: one array of n value texts per column of ``column_offsets``.
            commit_ts: int64, shape n.
            partition_count: partitions of the topic that are used; of each row's topic, where these differ.
            alike: tables that have the same route but for its names; None: all rows are of the route's own.
        """
        if self.rule is PartitionRule.TS:
            return (commit_ts % partition_count).astype(np.int32)
        columns = list(zip(self.column_names, texts, strict=True))
        if alike is None:
            if not columns:
                return np.full(len(commit_ts), table_hash(self.schema, self.table) % partition_count, np.int32)
            hashes = hash_rows(self.schema, self.table, columns, len(commit_ts))
        else:
            tables = [table_hash(version.schema, version.table) for version in alike.versions]
            hashes = hash_columns(np.array(tables, np.uint32)[alike.number], columns)
        return (hashes % np.asarray(partition_count, np.uint32)).astype(np.int32)


class Dispatcher:
    """The rules of one changefeed. Immutable; pickles."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self.default_topic = config.default_topic
        rules = (*config.sink.dispatchers, DispatchRule(matcher=("*.*",)))
        self.rules = tuple(_compile(number, rule, config) for number, rule in enumerate(rules))

    def rule_for(self, schema: str, table: str) -> CompiledRule:
        """Return the rule that counts for a table; there always is one."""
        for rule in self.rules[:-1]:
            if rule.matcher.matches_any_schema(schema, table):
                return rule
        return self.rules[-1]

    def topic(self, schema: str, table: str) -> str:
        """Return the topic of a table's rows."""
        return substitute(self.rule_for(schema, table).topic, schema, table)

    def route(self, table: TableVersion) -> Route:
        """Apply the table's rule to one version of it.

        Raises:
            DispatchError: the index or a column of the rule is not there, or the index is not unique.
        """
        rule = self.rule_for(table.schema, table.table)
        columns: tuple[tuple[int, str], ...] = ()
        if rule.partition is PartitionRule.INDEX_VALUE:
            columns = _index_columns(table, rule)
        elif rule.partition is PartitionRule.COLUMNS:
            columns = _named_columns(table, rule)
        return Route(
            schema=table.schema,
            table=table.table,
            topic=substitute(rule.topic, table.schema, table.table),
            rule=rule.partition,
            column_offsets=tuple(offset for offset, _ in columns),
            column_names=tuple(name for _, name in columns),
        )

    def ddl_topic(self, *, pre: tuple[str, str] | None, post: tuple[str, str] | None) -> str:
        """Return the topic of a DDL event.

        Args:
            pre: (schema, table) before the DDL; None, or an empty table name, where there is none.
            post: the same after it. A DDL on a schema has neither and goes to the default topic.
        """
        for name in (pre, post):
            if name is not None and name[1]:
                return self.topic(*name)
        return self.default_topic

    def watermark_topics(self, tables: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Return the topics that get watermarks, each in every partition: the tables' and the default one, sorted."""
        return tuple(sorted({self.default_topic} | {self.topic(schema, table) for schema, table in tables}))


def _compile(number: int, rule: DispatchRule, config: ChangefeedConfig) -> CompiledRule:
    word = (rule.partition or rule.dispatcher or "default").lower()
    return CompiledRule(
        number=number,
        matcher=TableFilter(rule.matcher, config.case_sensitive),
        topic=rule.topic or config.default_topic,
        partition=_RULE_OF_WORD.get(word, PartitionRule.TABLE),
        index=rule.index,
        columns=rule.columns,
        origin=config.origin,
    )


def _index_columns(table: TableVersion, rule: CompiledRule) -> tuple[tuple[int, str], ...]:
    if not rule.index:
        return tuple((offset, table.columns[offset].name) for offset in table.handle_columns)
    index = _find_index(table, rule)
    if len(index.offsets) != len(index.column_names):
        why = f"index `{index.name}` has a virtual generated column, whose values no row holds"
        raise _error(why, table, rule, "index")
    return tuple(zip(index.offsets, index.column_names, strict=True))


def _find_index(table: TableVersion, rule: CompiledRule) -> IndexVersion:
    for index in table.indexes:
        # TiDB's index and column names ignore case.
        if index.name.lower() == rule.index.lower():
            if not (index.unique or index.primary):
                raise _error(f"index `{index.name}` is not unique", table, rule, "index")
            return index
    names = ", ".join(index.name for index in table.indexes if index.unique or index.primary) or "none"
    raise _error(f"table has no index `{rule.index}`; unique ones are: {names}", table, rule, "index")


def _named_columns(table: TableVersion, rule: CompiledRule) -> tuple[tuple[int, str], ...]:
    by_name = {column.name.lower(): column for column in table.all_columns}
    named = []
    for index, name in enumerate(rule.columns):
        column = by_name.get(name.lower())
        if column is None:
            raise _error(f"table has no column `{name}`", table, rule, "columns", index)
        if not column.visible:
            why = f"column `{name}` is virtual and generated, no row holds its values"
            raise _error(why, table, rule, "columns", index)
        named.append((column.offset, column.name))
    return tuple(named)


def _error(message: str, table: TableVersion, rule: CompiledRule, *at: str | int) -> DispatchError:
    """Build the error of a rule's key ``at``; the caller raises it."""
    where = rule.origin.where(("sink", "dispatchers", rule.number, *at))
    return DispatchError(message, table=table.name, version=table.version, **where)
