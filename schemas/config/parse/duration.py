"""Durations as Go and thus TiCDC write them: ``10s``, ``1h30m``, ``1.5ms``."""

import re
from typing import NewType

Seconds = NewType("Seconds", float)

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_BELOW_S = 2**63 / 1e9
"""Go counts nanoseconds in 64 bits: 292 years."""


def parse_duration(text: str) -> Seconds:
    """Return the seconds of a Go duration.

    Raises:
        ValueError: not ``<number><unit>`` one or more times, negative, or longer than Go's 292 years.

    >>> parse_duration("1h30m")
    5400.0
    """
    if text == "0":
        return Seconds(0.0)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    if seconds >= _BELOW_S:
        raise ValueError(f"{text[:80]!r} is no duration: it is above 292 years")
    return Seconds(seconds)


def format_duration(seconds: Seconds) -> str:
    """Return a text that :func:`parse_duration` reads back as the same float.

    >>> format_duration(Seconds(600.0))
    '10m'
    """
    whole = int(seconds)
    if whole != float(seconds):
        # Fixed point, as Go knows no exponents; 30 digits hold any float that matters here exactly enough.
        return f"{seconds:.30f}".rstrip("0") + "s"
    for unit, size in (("h", 3600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"
