"""Functions of times, which are 26 characters here: ``YYYY-MM-DD hh:mm:ss.ffffff``.

Source: pingcap/tidb ``pkg/expression/builtin_time.go``.
"""

import calendar
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Final

from sorters.core.filter.value_expression.parts import (
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    constant,
    made_of,
    time_text,
)

_SLICES: Final = {
    "YEAR": slice(0, 4),
    "MONTH": slice(5, 7),
    "DAYOFMONTH": slice(8, 10),
    "HOUR": slice(11, 13),
    "MINUTE": slice(14, 16),
    "SECOND": slice(17, 19),
    "MICROSECOND": slice(20, 26),
}
_MIDNIGHT: Final = " 00:00:00.000000"
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OF_A_DAY: Final[dict[str, Callable[[date], Operand]]] = {
    "DAYNAME": lambda day: _DAYS[day.weekday()].encode(),
    "DAYOFWEEK": lambda day: day.isoweekday() % 7 + 1,
    "DAYOFYEAR": lambda day: day.timetuple().tm_yday,
    "LAST_DAY": lambda day: str(day.replace(day=calendar.monthrange(day.year, day.month)[1])) + _MIDNIGHT,
    "TO_DAYS": lambda day: day.toordinal() + 365,
    "WEEKDAY": lambda day: day.weekday(),
}
OF_ONE_TIME: Final = frozenset({*_SLICES, *_OF_A_DAY, "DATE", "MONTHNAME", "QUARTER"})
_KINDS: Final = {
    **dict.fromkeys(("DATE", "LAST_DAY"), ValueKind.TIME),
    **dict.fromkeys(("DAYNAME", "MONTHNAME"), ValueKind.TEXT),
}
"""Of what is no integer."""
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_MONTHS_OF: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS_OF: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}
_COUNT_MAX: Final = 10**15
"""Of an interval: what is longer leaves the calendar by any unit but microseconds."""


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
        if name == "MONTHNAME":
            return _MONTHS[int(text[5:7]) - 1].encode() if int(text[5:7]) else None
        day = _day(text)
        return None if day is None else _OF_A_DAY[name](day)

    return made_of(at, _KINDS.get(name, ValueKind.INT), of, [moment])


def date_add(at: int, operand: Bound, count: Bound, unit: str, *, is_back: bool) -> Bound:
    """DATE_ADD and DATE_SUB by whole units; NULL where the calendar ends, and of what is in no calendar."""
    moment = as_time("DATE_SUB" if is_back else "DATE_ADD", operand)
    if count.kind not in {ValueKind.INT, ValueKind.NULL} or count.is_bits:
        raise MisfitError(f"INTERVAL takes an integer, and {count.what or 'this'} is {count.kind.value}", count.at)

    def of(row: Row) -> Operand:
        text, units = moment.of(row), count.of(row)
        if text is None or units is None:
            return None
        assert isinstance(text, str) and isinstance(units, int)
        return _moved(text, -units if is_back else units, unit)

    return made_of(at, ValueKind.TIME, of, [moment, count])


def _moved(text: str, units: int, unit: str) -> str | None:
    try:
        time = datetime.fromisoformat(text)
        if unit in _MONTHS_OF:
            months = time.year * 12 + time.month - 1 + units * _MONTHS_OF[unit]
            year, month = divmod(months, 12)
            day = min(time.day, calendar.monthrange(year, month + 1)[1]) if 1 <= year <= 9999 else 0
            return time.replace(year=year, month=month + 1, day=day).isoformat(" ", "microseconds")
        if unit == "MICROSECOND":
            return (time + timedelta(microseconds=units)).isoformat(" ", "microseconds")
        if abs(units) > _COUNT_MAX:
            return None
        return (time + timedelta(seconds=units * _SECONDS_OF[unit])).isoformat(" ", "microseconds")
    except (ValueError, OverflowError):
        return None


def date_format(at: int, operand: Bound, form: Bound) -> Bound:
    """DATE_FORMAT by a format that is written down, without those of weeks; NULL of what has no month or no day, but by
    the format ``0``, as in TiDB.
    """
    moment = as_time("DATE_FORMAT", operand)
    raw = form.of({}) if form.constant and form.kind is ValueKind.TEXT else None
    if not isinstance(raw, bytes):
        raise MisfitError("DATE_FORMAT takes a format that is written down", form.at)
    parts = _format_parts(raw.decode("utf-8", "surrogateescape"), form.at)

    def of(row: Row) -> Operand:
        text = moment.of(row)
        if text is None:
            return None
        assert isinstance(text, str)
        if raw != b"0" and "00" in (text[_SLICES["MONTH"]], text[_SLICES["DAYOFMONTH"]]):
            return None
        texts = [part if isinstance(part, str) else part(text) for part in parts]
        return None if None in texts else "".join(filter(None, texts)).encode("utf-8", "surrogateescape")

    return made_of(at, ValueKind.TEXT, of, [moment])


def _format_parts(form: str, at: int) -> list[str | Callable[[str], str | None]]:
    parts: list[str | Callable[[str], str | None]] = []
    letters = iter(form)
    for letter in letters:
        if letter != "%":
            parts.append(letter)
            continue
        wanted = next(letters, "%")
        if wanted in "UuVvXxDWaw":
            raise MisfitError(f"%{wanted} of DATE_FORMAT is not supported", at)
        parts.append(_FORMATS.get(wanted, wanted))
    return parts


def _hour_of_12(text: str) -> int:
    return (int(text[11:13]) + 11) % 12 + 1


def _half(text: str) -> str:
    return "AM" if int(text[11:13]) < 12 else "PM"


def _month(text: str) -> str:
    return _MONTHS[int(text[5:7]) - 1]


def _day_of_year(text: str) -> str | None:
    day = _day(text)
    return None if day is None else f"{day.timetuple().tm_yday:03}"


_FORMATS: Final[dict[str, Callable[[str], str | None]]] = {
    "Y": lambda text: text[:4],
    "y": lambda text: text[2:4],
    "M": _month,
    "b": lambda text: _month(text)[:3],
    "m": lambda text: text[5:7],
    "c": lambda text: str(int(text[5:7])),
    "d": lambda text: text[8:10],
    "e": lambda text: str(int(text[8:10])),
    "j": _day_of_year,
    "H": lambda text: text[11:13],
    "k": lambda text: str(int(text[11:13])),
    "h": lambda text: f"{_hour_of_12(text):02}",
    "I": lambda text: f"{_hour_of_12(text):02}",
    "l": lambda text: str(_hour_of_12(text)),
    "i": lambda text: text[14:16],
    "S": lambda text: text[17:19],
    "s": lambda text: text[17:19],
    "f": lambda text: text[20:26],
    "p": _half,
    "r": lambda text: f"{_hour_of_12(text):02}:{text[14:19]} {_half(text)}",
    "T": lambda text: text[11:19],
}
"""What stands for each letter behind ``%``, of 26 characters; another letter stands for itself."""


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
