"""Event filters: ``ignore-event``, ``ignore-sql`` and value expressions of ``[filter] event-filters``.

Every filter whose matcher matches applies, and one that says ignore is enough. A DDL that is ignored has changed the
schema all the same; it is only not sent. Matchers follow ``case-sensitive``, but for value expressions, where they are
always case-sensitive, as in TiCDC (ticdc ``pkg/filter/expr_filter.go``).

Rows are filtered by what happened in TiKV: before the update split, and the update of a clustered primary key is a
delete and an insert already. Value expressions (``ignore-…-value-expr``) are in
:mod:`sorters.core.filter.row_conditions`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from schemas.config.filter.event_names import (
    ALIASES,
    ALL_DDL,
    ALL_DML,
    ALTER_TABLE,
    ALTER_TABLE_EVENTS,
    DDL_EVENT_OF_TYPE,
)
from schemas.config.filter.re2 import Expression
from schemas.config.parse.origin import Origin
from schemas.config.sink.sink import EventFilterRule
from schemas.sink.position import RowOp
from schemas.tidb.table import TableVersion
from sorters.core.filter.row_conditions import RowConditions, TableConditions
from sorters.core.filter.table_filter import TableFilter

_DML_EVENT_OF_OP = {RowOp.INSERT: "insert", RowOp.UPDATE: "update", RowOp.DELETE: "delete"}


@dataclass(frozen=True, slots=True)
class _Filter:
    matcher: TableFilter
    events: frozenset[str]
    sql: tuple[Expression, ...]


class EventFilter:
    """All event filters of one changefeed. Immutable; pickles."""

    def __init__(
        self,
        rules: Sequence[EventFilterRule],
        origin: Origin | None = None,
        *,
        case_sensitive: bool = False,
        zone: tzinfo = UTC,
        session_zone: tzinfo = UTC,
    ) -> None:
        """``zone``: the one that TIMESTAMPs, which are mounted in UTC, are moved into for value expressions.
        ``session_zone``: the changefeed's own, in which they read times that have none.
        """
        self._filters = tuple(_compile(rule, case_sensitive) for rule in rules)
        self._conditions = RowConditions(rules, origin or Origin(), zone=zone, session_zone=session_zone)

    @property
    def any_conditions(self) -> bool:
        """Whether there is a value expression."""
        return self._conditions.any

    def has_conditions(self, schema: str, table: str) -> bool:
        """Tell whether a table's rows are held against value expressions."""
        return self._conditions.concern(schema, table)

    def conditions(self, table: TableVersion) -> TableConditions | None:
        """Return what a table version's rows are held against; None: nothing.

        Raises:
            ExpressionColumnNotFoundError, ExpressionMisfitError: an expression does not fit the table.
        """
        return self._conditions.bound(table)

    def ignored_ops(self, schema: str, table: str) -> frozenset[RowOp]:
        """Return the kinds of row change of a table that do not go on."""
        events = self._events(schema, table)
        if ALL_DML in events:
            return frozenset(_DML_EVENT_OF_OP)
        return frozenset(op for op, event in _DML_EVENT_OF_OP.items() if event in events)

    def may_ignore(self, schema: str, table: str) -> frozenset[RowOp]:
        """Return the kinds of row change of a table of which some, or all, do not go on."""
        return self.ignored_ops(schema, table) | self._conditions.ops(schema, table)

    def ignores_ddl(self, ddl_type: str, query: str, schema: str, table: str) -> bool:
        """Tell whether a DDL event is not sent.

        Args:
            ddl_type: TiDB's name of the job's type, as in ``DdlEvent``; one without an event name is never ignored.
            query: the statement's text.
            schema: before the DDL, as is ``table``; for a RENAME the old name.
            table: empty for a DDL on a schema: matchers are then held against the schema alone.
        """
        event = DDL_EVENT_OF_TYPE.get(ddl_type)
        if event is None:
            return False
        wanted = {event, ALL_DDL} | ({ALTER_TABLE} if event in ALTER_TABLE_EVENTS else set())
        for rule in self._matching(schema, table):
            if rule.events & wanted or any(sql.search(query) for sql in rule.sql):
                return True
        return False

    def _events(self, schema: str, table: str) -> frozenset[str]:
        return frozenset().union(*(rule.events for rule in self._matching(schema, table)))

    def _matching(self, schema: str, table: str) -> Iterable[_Filter]:
        for rule in self._filters:
            if rule.matcher.matches_any_schema(schema, table) if table else rule.matcher.matches_schema(schema):
                yield rule


def _compile(rule: EventFilterRule, case_sensitive: bool) -> _Filter:
    names = (name.strip().lower() for name in rule.ignore_event)
    return _Filter(
        matcher=TableFilter(rule.matcher, case_sensitive),
        events=frozenset(ALIASES.get(name, name) for name in names),
        sql=tuple(Expression(text, ignore_case=True) for text in rule.ignore_sql),
    )
