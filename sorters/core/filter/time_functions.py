"""Functions of times, which are 26 characters here: ``YYYY-MM-DD hh:mm:ss.ffffff``.

Source: pingcap/tidb ``pkg/expression/builtin_time.go``.
"""

from datetime import date
from typing import Final

from sorters.core.filter.parts import Bound, MisfitError, Operand, Row, ValueKind, constant, made_of, time_text

_SLICES: Final = {
    "YEAR": slice(0, 4),
    "MONTH": slice(5, 7),
    "DAYOFMONTH": slice(8, 10),
    "HOUR": slice(11, 13),
    "MINUTE": slice(14, 16),
    "SECOND": slice(17, 19),
    "MICROSECOND": slice(20, 26),
}
_OF_A_DAY: Final = frozenset({"DAYOFWEEK", "DAYOFYEAR", "WEEKDAY"})
OF_ONE_TIME: Final = frozenset({*_SLICES, *_OF_A_DAY, "DATE", "QUARTER"})
_MIDNIGHT: Final = " 00:00:00.000000"


def of_one_time(at: int, name: str, operand: Bound) -> Bound:
    """Return a function of ``OF_ONE_TIME``; what no calendar has is NULL where a day is asked for, as in TiDB."""
    moment = as_time(name, operand)

    def of(row: Row) -> Operand:
        text = moment.of(row)
        if text is None:
            return None
        assert isinstance(text, str)
        if name in _SLICES:
            return int(text[_SLICES[name]])
        if name == "DATE":
            return text[:10] + _MIDNIGHT
        if name == "QUARTER":
            return (int(text[5:7]) + 2) // 3
        day = _day(text)
        if day is None:
            return None
        return {"DAYOFWEEK": day.isoweekday() % 7 + 1, "WEEKDAY": day.weekday(), "DAYOFYEAR": day.timetuple().tm_yday}[
            name
        ]

    return made_of(at, ValueKind.TIME if name == "DATE" else ValueKind.INT, of, [moment])


def datediff(at: int, left: Bound, right: Bound) -> Bound:
    sides = as_time("DATEDIFF", left), as_time("DATEDIFF", right)

    def of(row: Row) -> Operand:
        first, second = (side.of(row) for side in sides)
        if first is None or second is None:
            return None
        days = _day(str(first)), _day(str(second))
        return None if days[0] is None or days[1] is None else (days[0] - days[1]).days

    return made_of(at, ValueKind.INT, of, sides)


def as_time(name: str, operand: Bound) -> Bound:
    """Return a time; a text that is written down may be one.

    Raises:
        MisfitError: it is none.
    """
    if operand.kind in {ValueKind.TIME, ValueKind.NULL}:
        return operand
    if operand.kind is ValueKind.TEXT and operand.constant:
        raw = operand.of({})
        assert isinstance(raw, bytes)
        time = time_text(raw.decode("utf-8", "surrogateescape"))
        if time is not None:
            return constant(operand.at, ValueKind.TIME, time)
    raise MisfitError(f"{name} takes a time, and {operand.what or 'this'} is {operand.kind.value}", operand.at)


def _day(text: str) -> date | None:
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:10]))
    except ValueError:
        return None
