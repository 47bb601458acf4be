"""Value expressions of event filters over mounted rows: ``ignore-insert-value-expr`` and its kin.

An insert is ignored by its new row, a delete by its old one, an update by either; NULL and false keep the row. Every
filter whose matcher matches counts, and one that says ignore is enough.
"""

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

import numpy as np

from schemas.config.filter.expression_nodes import Node
from schemas.config.filter.value_expression import parse_expression
from schemas.config.parse.origin import Origin, Path
from schemas.config.sink.sink import EventFilterRule
from schemas.errors import Action, BusError
from schemas.redaction import redacted
from schemas.sink.position import RowOp
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import BoolArray
from sorters.core.filter.column_conditions import true_rows
from sorters.core.filter.table_filter import TableFilter
from sorters.core.filter.value_expression.expression import bind
from sorters.core.filter.value_expression.parts import Bound, MisfitError, OutOfRangeError
from sorters.core.mount.mounted import ROW_OPS, MountedPart, RowKind


class ExpressionMisfitError(BusError):
    """A value expression compares what this version does not, or is no condition; fields name table, key and line."""

    code, action = "sorter.expression_misfit", Action.STOP_CHANGEFEED


class ExpressionColumnNotFoundError(BusError):
    """A value expression names a column that a table does not have; ``fields`` name table, key and line."""

    code, action = "sorter.expression_column_not_found", Action.STOP_CHANGEFEED


class ExpressionRangeError(BusError):
    """A value expression's arithmetic leaves 64 bits, or a DOUBLE, in a row; fields name table, key, commit_ts."""

    code, action = "sorter.expression_out_of_range", Action.STOP_CHANGEFEED


_SIDES = {
    "insert": (RowKind.INSERT, False),
    "update-new": (RowKind.UPDATE, False),
    "update-old": (RowKind.UPDATE, True),
    "delete": (RowKind.DELETE, True),
}
"""What each setting looks at: rows of a kind, and whether their old side."""


@dataclass(frozen=True, slots=True)
class _Condition:
    matcher: TableFilter
    path: Path
    event: str
    node: Node


@dataclass(frozen=True, slots=True)
class TableConditions:
    """The value expressions of one table version."""

    bound: tuple[tuple[str, Bound], ...]
    """With the event of ``_SIDES``."""

    def ignored(self, part: MountedPart) -> BoolArray | None:
        """Tell which rows do not go on: bool, by row of the part; None: all do.

        Raises:
            ExpressionRangeError: an expression's number leaves its type.
        """
        ignored: BoolArray | None = None
        for event, condition in self.bound:
            kind, is_old = _SIDES[event]
            if kind is part.kind:
                true = _true_rows(condition, part, is_old=is_old)
                ignored = true if ignored is None else ignored | true
        return ignored if ignored is not None and ignored.any() else None


class RowConditions:
    """The value expressions of one changefeed. Immutable; pickles."""

    def __init__(
        self, rules: Sequence[EventFilterRule], origin: Origin, *, zone: tzinfo = UTC, session_zone: tzinfo = UTC
    ) -> None:
        """``zone``, ``session_zone``: see :class:`~sorters.core.filter.event_filter.EventFilter`."""
        self._origin, self._zones = origin, (zone, session_zone)
        self._conditions = tuple(
            _Condition(
                matcher=TableFilter(rule.matcher, case_sensitive=True),
                path=("filter", "event-filters", number, f"ignore-{event}-value-expr"),
                event=event,
                node=parse_expression(text),
            )
            for number, rule in enumerate(rules)
            for event in _SIDES
            if (text := getattr(rule, f"ignore_{event.replace('-', '_')}_value_expr"))
        )

    @property
    def any(self) -> bool:
        """Whether there is an expression."""
        return bool(self._conditions)

    def concern(self, schema: str, table: str) -> bool:
        """Tell whether there is an expression for a table."""
        return builtins.any(condition.matcher.matches_any_schema(schema, table) for condition in self._conditions)

    def ops(self, schema: str, table: str) -> frozenset[RowOp]:
        """Return the kinds of row change of a table that there is an expression for."""
        mine = [condition for condition in self._conditions if condition.matcher.matches_any_schema(schema, table)]
        return frozenset(ROW_OPS[_SIDES[condition.event][0]] for condition in mine)

    def bound(self, table: TableVersion) -> TableConditions | None:
        """Settle the expressions for a table version; None: it has none.

        Raises:
            ExpressionColumnNotFoundError, ExpressionMisfitError: one does not fit the table.
        """
        name = table.schema, table.table
        mine = [condition for condition in self._conditions if condition.matcher.matches_any_schema(*name)]
        bound = tuple((condition.event, self._bind(condition, table)) for condition in mine)
        return TableConditions(bound) if bound else None

    def _bind(self, condition: _Condition, table: TableVersion) -> Bound:
        try:
            return bind(condition.node, table, *self._zones)
        except MisfitError as misfit:
            kind = ExpressionColumnNotFoundError if misfit.column else ExpressionMisfitError
            where = self._origin.where(condition.path)
            raise kind(f"{condition.path[-1]}: {misfit}", table=table.name, version=table.version, **where) from None


def _true_rows(condition: Bound, part: MountedPart, *, is_old: bool) -> BoolArray:
    rows = part.old_rows if is_old else part.new_rows
    if rows is not None:
        return np.array([_is_true(condition, row, part, number) for number, row in enumerate(rows)], np.bool_)
    columns = part.old_columns() if is_old else part.new_columns()
    try:
        return true_rows(condition, columns, len(part))
    except OutOfRangeError as error:
        raise _range_error(part, error.row, error) from None


def _is_true(condition: Bound, row: Sequence[object], part: MountedPart, number: int) -> bool:
    try:
        return condition.of(row) == 1  # type: ignore[arg-type]  # mounted values
    except OutOfRangeError as error:
        raise _range_error(part, number, error) from None


def _range_error(part: MountedPart, row: int, error: OutOfRangeError) -> ExpressionRangeError:
    names = part.names
    return ExpressionRangeError(
        f"value expression: {redacted(str(error))}",
        table=names.table,
        key=names.keys[row].hex(),
        commit_ts=int(names.commit_ts[row]),
    )
