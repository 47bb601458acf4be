"""TiDB's packed time (DATE, DATETIME, TIMESTAMP), its text, and TIME's nanoseconds.

``packed = ((year*13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second``, then ``<< 24 | microsecond``.
A zero month or day is legal, so nothing here goes through ``datetime`` but the change of time zone.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

_MICROSECOND_BITS = 24
_NANOSECONDS = 1_000_000_000
_DATETIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?")
_DURATION = re.compile(r"(-?)(\d+):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?")


def pack_time(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micro: int = 0) -> int:
    """Return the packed uint64.

    >>> pack_time(2020, 3, 24, 12, 34, 56, 789000)
    1848147966977378824
    """
    date = (year * 13 + month) << 5 | day
    clock = hour << 12 | minute << 6 | second
    return (date << 17 | clock) << _MICROSECOND_BITS | micro


def unpack_time(packed: int) -> tuple[int, int, int, int, int, int, int]:
    """Return (year, month, day, hour, minute, second, microsecond)."""
    clock, date = packed >> 24 & 0x1FFFF, packed >> 41
    year, month = divmod(date >> 5, 13)
    return year, month, date & 31, clock >> 12, clock >> 6 & 63, clock & 63, packed & 0xFFFFFF


def datetime_text(packed: int, fsp: int, *, date_only: bool = False) -> str:
    """Return ``YYYY-MM-DD[ hh:mm:ss[.f]]`` with exactly ``fsp`` fraction digits (0 to 6).

    >>> datetime_text(1848147966977378824, 3)
    '2020-03-24 12:34:56.789'
    """
    year, month, day, hour, minute, second, micro = unpack_time(packed)
    date = f"{year:04d}-{month:02d}-{day:02d}"
    if date_only:
        return date
    clock = f"{date} {hour:02d}:{minute:02d}:{second:02d}"
    return f"{clock}.{micro:06d}"[: len(clock) + 1 + fsp] if fsp else clock


def in_zone(packed: int, zone: tzinfo) -> int:
    """Move a packed UTC TIMESTAMP into ``zone``; the zero time stays as it is."""
    if packed == 0 or zone is UTC:
        return packed
    year, month, day, hour, minute, second, micro = unpack_time(packed)
    local = datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC).astimezone(zone)
    return pack_time(local.year, local.month, local.day, local.hour, local.minute, local.second, local.microsecond)


def text_in_zone(text: str, zone: tzinfo) -> str:
    """Move the text of a UTC TIMESTAMP (an ``absent_value``) into ``zone``."""
    fsp = len(text.partition(".")[2])
    return datetime_text(in_zone(parse_datetime(text, fsp), zone), fsp)


def parse_datetime(text: str, fsp: int) -> int:
    """Return the packed time of ``YYYY-MM-DD[ hh:mm[:ss[.f]]]``, the fraction rounded to ``fsp`` digits.

    Raises:
        ValueError: another form.
    """
    match = _DATETIME.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no date or time")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micro = _fraction_nanoseconds(match[7], fsp) // 1000
    if micro == 1_000_000:
        moved = datetime(year, month, day, hour, minute, second, tzinfo=UTC) + timedelta(seconds=1)
        return pack_time(moved.year, moved.month, moved.day, moved.hour, moved.minute, moved.second)
    return pack_time(year, month, day, hour, minute, second, micro)


def duration_text(nanoseconds: int, fsp: int) -> str:
    """Return a TIME as ``[-]hh:mm:ss[.f]`` with exactly ``fsp`` fraction digits; hours may exceed 24.

    >>> duration_text(-36_000_250_000_000, 2)
    '-10:00:00.25'
    """
    seconds, rest = divmod(abs(nanoseconds), _NANOSECONDS)
    text = f"{'-' if nanoseconds < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{rest // 1000:06d}"[: len(text) + 1 + fsp] if fsp else text


def parse_duration(text: str, fsp: int) -> int:
    """Return the nanoseconds of ``[-]hh:mm[:ss[.f]]``, the fraction rounded to ``fsp`` digits.

    Raises:
        ValueError: another form.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no time")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:4])
    total = (hours * 3600 + minutes * 60 + seconds) * _NANOSECONDS + _fraction_nanoseconds(match[5], fsp)
    return -total if match[1] else total


def _fraction_nanoseconds(digits: str | None, fsp: int) -> int:
    if not digits:
        return 0
    unit = int(10 ** (9 - fsp))
    return (int(digits.ljust(9, "0")) + unit // 2) // unit * unit
