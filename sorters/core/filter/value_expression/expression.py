"""Conditions of event filters over a table's rows: columns found, types settled, and the value of one row.

Values follow TiDB: conditions know true (1), false (0) and NULL; integers and decimals compare exactly, with a DOUBLE
among them as doubles; texts compare by bytes without trailing blanks, as TiDB's ``_bin`` collations do (``binary``
counts blanks too), or by the weights of ``general_ci``; times compare with texts that are written out in full. What
TiDB would convert, and what compares by another collation, is refused by name and position when the condition meets the
table. Integer arithmetic that leaves 64 bits stops the changefeed, as in TiDB.

Source: pingcap/tidb ``pkg/expression`` (builtin_arithmetic.go, builtin_compare.go) and MySQL's manual.
"""

from dataclasses import replace
from datetime import UTC, tzinfo

from schemas.config.filter.expression_nodes import (
    Binary,
    Bits,
    Call,
    Case,
    Cast,
    Collate,
    ColumnName,
    DateAdd,
    Is,
    Like,
    Literal,
    Node,
    OneOf,
    Regexp,
    TimeLiteral,
    Unary,
)
from schemas.tidb.table import TableVersion
from sorters.core.filter.value_expression.arithmetic import arithmetic, divided, negative
from sorters.core.filter.value_expression.bits import OPERATORS, bits, inverted
from sorters.core.filter.value_expression.calls import called
from sorters.core.filter.value_expression.comparison import collated, comparison, like, one_of
from sorters.core.filter.value_expression.control_functions import case
from sorters.core.filter.value_expression.number_functions import cast
from sorters.core.filter.value_expression.parts import (
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    as_truth,
    bits_part,
    column_part,
    constant,
    flag,
    literal_part,
    logic_of,
    time_text,
    truth,
)
from sorters.core.filter.value_expression.text_functions import regexp
from sorters.core.filter.value_expression.time_functions import date_add
from sorters.core.filter.value_expression.unix_time import unix_timestamp


def bind(node: Node, table: TableVersion, zone: tzinfo = UTC, session_zone: tzinfo = UTC) -> Bound:
    """Settle a condition for a table version; the result is a truth, and true means: ignore the row.

    ``zone``: the one that TIMESTAMPs are moved into from the UTC that they come in; UTC: they come in theirs.
    ``session_zone``: the one in which UNIX_TIMESTAMP reads times.

    Raises:
        MisfitError: a column is not there, or TiDB would convert what we do not.
    """
    bound = _Binder(table, zone, session_zone).bind(node)
    if bound.is_truth or bound.kind is ValueKind.NULL:
        return replace(bound, kind=ValueKind.INT, is_truth=True)
    if bound.kind is not ValueKind.INT:
        raise MisfitError(f"the expression is no condition but {bound.kind.value}", bound.at)
    # TiCDC holds the integer against 1.
    return truth(bound.at, lambda row: flag(v == 1) if (v := bound.of(row)) is not None else None, bound)


class _Binder:
    def __init__(self, table: TableVersion, zone: tzinfo, session_zone: tzinfo) -> None:
        self._zone, self._session_zone, self._table = zone, session_zone, table
        self._columns = {column.name.lower(): column for column in table.all_columns if not column.hidden}

    def bind(self, node: Node) -> Bound:
        match node:
            case Literal():
                return literal_part(node)
            case TimeLiteral(at, text):
                time = time_text(text)
                if time is None:
                    raise MisfitError(f"`{text}` is no time as `YYYY-MM-DD hh:mm:ss.ffffff`", at)
                return constant(at, ValueKind.TIME, time)
            case Bits():
                return bits_part(node)
            case ColumnName():
                return self._column(node)
            case Unary(at, "~", operand):
                return inverted(at, self.bind(operand))
            case Unary(at, "NOT", operand):
                condition = as_truth(self.bind(operand))
                return logic_of(at, "NOT", (condition,), lambda row: _not(condition.of(row)))
            case Unary(at, _, operand):
                return negative(at, self.bind(operand))
            case Binary(at, "AND" | "OR" | "XOR" as operator, left, right):
                return _junction(at, operator, as_truth(self.bind(left)), as_truth(self.bind(right)))
            case Binary(at, operator, left, right) if operator in {"+", "-", "*", "%", "DIV"}:
                return arithmetic(at, operator, self.bind(left), self.bind(right))
            case Binary(at, "/", left, right):
                return divided(at, self.bind(left), self.bind(right))
            case Binary(at, operator, left, right) if operator in OPERATORS:
                return bits(at, operator, self.bind(left), self.bind(right))
            case Binary(at, operator, left, right):
                return comparison(at, operator, self.bind(left), self.bind(right))
            case OneOf(at, operand, items):
                return one_of(at, self.bind(operand), [self.bind(item) for item in items])
            case Like(at, operand, pattern, escape):
                return like(at, self.bind(operand), self.bind(pattern), escape)
            case Is(at, operand, what):
                return _is(at, self.bind(operand), what)
            case _:
                return self._made(node)

    def _made(self, node: Regexp | Call | DateAdd | Case | Cast | Collate) -> Bound:
        match node:
            case Regexp(at, operand, pattern):
                return regexp(at, self.bind(operand), self.bind(pattern))
            case Call(at, "UNIX_TIMESTAMP", (operand,)):
                return unix_timestamp(at, self.bind(operand), self._session_zone)
            case Call(at, name, arguments):
                return called(at, name, [self.bind(argument) for argument in arguments])
            case DateAdd(at, operand, count, unit, is_back):
                return date_add(at, self.bind(operand), self.bind(count), unit, is_back=is_back)
            case Cast():
                return cast(node, self.bind(node.operand))
            case Collate(at, operand, collation):
                return collated(at, self.bind(operand), collation)
            case Case():
                return self._case(node)

    def _case(self, node: Case) -> Bound:
        held = None if node.operand is None else self.bind(node.operand)
        branches = []
        for wanted, result in node.branches:
            condition = self.bind(wanted)
            is_true = as_truth(condition) if held is None else comparison(wanted.at, "=", held, condition)
            branches.append((is_true, self.bind(result)))
        return case(node.at, branches, None if node.otherwise is None else self.bind(node.otherwise))

    def _column(self, node: ColumnName) -> Bound:
        at, name = node.at, node.name
        spec = self._columns.get(name.lower())
        if node.table and node.table.lower() != self._table.table.lower():
            raise MisfitError(f"column `{node.table}.{name}` is of another table", at, f"{node.table}.{name}")
        if spec is None:
            raise MisfitError(f"table has no column `{name}`", at, name)
        if not spec.visible:
            raise MisfitError(f"column `{spec.name}` is virtual and generated, no row holds its values", at)
        return column_part(at, spec, self._zone)


def _not(value: Operand) -> int | None:
    return None if value is None else flag(value == 0)


def _junction(at: int, operator: str, left: Bound, right: Bound) -> Bound:
    def both(row: Row) -> Operand:
        first = left.of(row)
        if first == 0:
            return 0
        second = right.of(row)
        return 0 if second == 0 else None if first is None or second is None else 1

    def either(row: Row) -> Operand:
        first = left.of(row)
        if first == 1:
            return 1
        second = right.of(row)
        return 1 if second == 1 else None if first is None or second is None else 0

    def unlike(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        return None if first is None or second is None else flag(first != second)

    return logic_of(at, operator, (left, right), {"AND": both, "OR": either, "XOR": unlike}[operator])


def _is(at: int, operand: Bound, what: str) -> Bound:
    if what == "NULL":
        made = truth(at, lambda row: flag(operand.of(row) is None), operand)
        return replace(made, logic="IS NULL", parts=(operand,)) if operand.is_truth else made
    condition = as_truth(operand)
    wanted = 1 if what == "TRUE" else 0
    return logic_of(at, f"IS {what}", (condition,), lambda row: flag(condition.of(row) == wanted))
