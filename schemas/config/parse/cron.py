"""When something is due: TiCDC's cron specs, of second, minute, hour, day of month, month and day of week.

A field is ``*`` or ``?``, a number, a range ``a-b``, either with a step ``/n``, or a list of them; months and days have
no names here. ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly`` and ``@yearly`` stand for specs. As in
robfig/cron, which TiCDC takes: where both days are given, one of them is enough.
"""

import re
from dataclasses import dataclass
from datetime import datetime

_FIELDS = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 6))
_DAY, _WEEKDAY = 3, 5
_ITEM = re.compile(r"(\*|\?|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?")
_WORDS = {
    "@yearly": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}


@dataclass(frozen=True, slots=True)
class CronSpec:
    """A spec, read."""

    fields: tuple[frozenset[int], ...]
    any_day: bool
    """One of the two fields of days is open: then both must fit."""

    def is_due(self, at: datetime) -> bool:
        """Tell whether a second is one of the spec's."""
        parts = (at.second, at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
        fits = [part in field for part, field in zip(parts, self.fields, strict=True)]
        day = fits[_DAY] and fits[_WEEKDAY] if self.any_day else fits[_DAY] or fits[_WEEKDAY]
        return day and all(fit for number, fit in enumerate(fits) if number not in (_DAY, _WEEKDAY))


def parse_cron(text: str) -> CronSpec:
    """Read a spec.

    Raises:
        ValueError: it is none; the text says what it must be.
    """
    parts = _WORDS.get(text.strip().lower(), text).split()
    if len(parts) != len(_FIELDS):
        raise ValueError("must have six fields: second, minute, hour, day of month, month, day of week")
    fields = tuple(_field(part, *bounds) for part, bounds in zip(parts, _FIELDS, strict=True))
    return CronSpec(fields, any_day=parts[_DAY][0] in "*?" or parts[_WEEKDAY][0] in "*?")


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    numbers: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        first = int(match[2]) if match and match[2] else low
        last = int(match[3]) if match and match[3] else first if match and match[2] and not match[4] else high
        step = int(match[4]) if match and match[4] else 1
        if match is None or not low <= first <= last <= high or not step:
            raise ValueError(f"field {name} must hold numbers from {low} to {high}, got {item}")
        numbers.update(range(first, last + 1, step))
    return frozenset(numbers)
