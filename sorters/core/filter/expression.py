"""Conditions of event filters over a table's rows: columns found, types settled, and the value of one row.

Values follow TiDB: conditions know true (1), false (0) and NULL; integers and decimals compare exactly, with a DOUBLE
among them as doubles; texts compare by bytes without trailing blanks, as TiDB's ``_bin`` collations do (``binary``
counts blanks too); times compare with texts that are written out in full. What TiDB would convert, and what compares by
another collation, is refused by name and position when the condition meets the table. Integer arithmetic that leaves 64
bits stops the changefeed, as in TiDB.

Source: pingcap/tidb ``pkg/expression`` (builtin_arithmetic.go, builtin_compare.go) and MySQL's manual.
"""

from dataclasses import replace

from schemas.config.filter.value_expression import (
    Binary,
    ColumnName,
    Is,
    Like,
    Literal,
    Node,
    OneOf,
    TimeLiteral,
    Unary,
)
from schemas.tidb.table import TableVersion
from sorters.core.filter.arithmetic import arithmetic, negative
from sorters.core.filter.comparison import comparison, like, one_of
from sorters.core.filter.parts import (
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    as_truth,
    column_part,
    constant,
    flag,
    literal_part,
    logic_of,
    time_text,
    truth,
)


def bind(node: Node, table: TableVersion) -> Bound:
    """Settle a condition for a table version; the result is a truth, and true means: ignore the row.

    Raises:
        MisfitError: a column is not there, or TiDB would convert what we do not.
    """
    bound = _Binder(table).bind(node)
    if bound.is_truth or bound.kind is ValueKind.NULL:
        return replace(bound, kind=ValueKind.INT, is_truth=True)
    if bound.kind is not ValueKind.INT:
        raise MisfitError(f"the expression is no condition but {bound.kind.value}", bound.at)
    # TiCDC holds the integer against 1.
    return truth(bound.at, lambda row: flag(v == 1) if (v := bound.of(row)) is not None else None, bound)


class _Binder:
    def __init__(self, table: TableVersion) -> None:
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
            case ColumnName(at, name):
                return self._column(at, name)
            case Unary(at, "NOT", operand):
                condition = as_truth(self.bind(operand))
                return logic_of(at, "NOT", (condition,), lambda row: _not(condition.of(row)))
            case Unary(at, _, operand):
                return negative(at, self.bind(operand))
            case Binary(at, "AND" | "OR" | "XOR" as operator, left, right):
                return _junction(at, operator, as_truth(self.bind(left)), as_truth(self.bind(right)))
            case Binary(at, operator, left, right) if operator in {"+", "-", "*", "%", "DIV"}:
                return arithmetic(at, operator, self.bind(left), self.bind(right))
            case Binary(at, operator, left, right):
                return comparison(at, operator, self.bind(left), self.bind(right))
            case OneOf(at, operand, items):
                return one_of(at, self.bind(operand), [self.bind(item) for item in items])
            case Like(at, operand, pattern, escape):
                return like(at, self.bind(operand), self.bind(pattern), escape)
            case Is(at, operand, what):
                return _is(at, self.bind(operand), what)

    def _column(self, at: int, name: str) -> Bound:
        spec = self._columns.get(name.lower())
        if spec is None:
            raise MisfitError(f"table has no column `{name}`", at, name)
        if not spec.visible:
            raise MisfitError(f"column `{spec.name}` is virtual and generated, no row holds its values", at)
        return column_part(at, spec)


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
