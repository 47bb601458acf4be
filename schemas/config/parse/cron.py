"""When something is due: TiCDC's cron specs, of second, minute, hour, day of month, month and day of week.

A field is ``*`` or ``?``, a number, a range ``a-b``, either with a step ``/n``, or a list of them; months and days of
the week have names, too: ``JAN``, ``SUN``. The last field may be left out. ``@hourly``, ``@daily``, ``@midnight``,
``@weekly``, ``@monthly``, ``@yearly`` and ``@annually`` stand for specs; ``@every 90m`` is a pause. As in robfig/cron
1.2, which TiCDC takes: where both days are given, one of them is enough. But a pause is counted from 1970, there from
when a process began: here whoever takes over goes on with it.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from schemas.config.parse.duration import parse_duration

_FIELDS = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 6))
_NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
"""Of numbers from the least of a field on."""
_DAY, _WEEKDAY = 3, 5
_EVERY = "@every "
_ITEM = re.compile(r"(\*|\?|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?")
_WORDS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
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
    every_s: int = 0
    """Instead of fields, where it is not 0: the pause between two."""

    def is_due(self, at: datetime) -> bool:
        """Tell whether a second is one of the spec's."""
        if self.every_s:
            return int(at.timestamp()) % self.every_s == 0
        parts = (at.second, at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
        fits = [part in field for part, field in zip(parts, self.fields, strict=True)]
        day = fits[_DAY] and fits[_WEEKDAY] if self.any_day else fits[_DAY] or fits[_WEEKDAY]
        return day and all(fit for number, fit in enumerate(fits) if number not in (_DAY, _WEEKDAY))


def parse_cron(text: str) -> CronSpec:
    """Read a spec.

    Raises:
        ValueError: it is none; the text says what it must be.
    """
    if text.startswith(_EVERY):
        return CronSpec((), any_day=False, every_s=_pause(text.removeprefix(_EVERY)))
    parts = _WORDS.get(text.strip().lower(), text).split()
    parts += ["*"] if len(parts) == len(_FIELDS) - 1 else []
    if len(parts) != len(_FIELDS):
        raise ValueError(
            "must have six fields: second, minute, hour, day of month, month, day of week; the last may be left out"
        )
    fields = tuple(_field(part, *bounds) for part, bounds in zip(parts, _FIELDS, strict=True))
    return CronSpec(fields, any_day=parts[_DAY][0] in "*?" or parts[_WEEKDAY][0] in "*?")


def _pause(text: str) -> int:
    """Return whole seconds, one at least."""
    try:
        return max(int(parse_duration(text)), 1)
    except ValueError:
        raise ValueError(f"must have a duration behind @every, such as @every 1h, got {text[:40]}") from None


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    numbers: set[int] = set()
    known = {word: str(number) for number, word in enumerate(_NAMES.get(name, ()), low)}
    for named in text.split(","):
        values, slash, steps = named.partition("/")
        item = re.sub("[A-Za-z]+", lambda word: known.get(word[0].lower(), word[0]), values) + slash + steps
        match = _ITEM.fullmatch(item)
        first = int(match[2]) if match and match[2] else low
        last = int(match[3]) if match and match[3] else first if match and match[2] and not match[4] else high
        step = int(match[4]) if match and match[4] else 1
        if match is None or not low <= first <= last <= high or not step:
            names = f" or names such as {next(iter(known)).upper()}" if known else ""
            raise ValueError(f"field {name} must hold numbers from {low} to {high}{names}, got {named}")
        numbers.update(range(first, last + 1, step))
    return frozenset(numbers)
