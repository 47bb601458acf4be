"""``partitioning`` and ``sort-order`` of lake tables, in the words of Iceberg's SQL.

``partitioning=days(_tidb_commit_time),bucket(16,id)``, ``sort-order=region,created_at desc``
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

Transform = Literal["identity", "years", "months", "days", "hours", "bucket", "truncate"]
_WITH_WIDTH = ("bucket", "truncate")
_WIDTH_MAX = 2**31 - 1
_TERM = re.compile(r"(?:(?P<transform>[a-z]+)\((?:(?P<width>\d{1,10}),)?(?P<inner>[^(),]+)\)|(?P<column>[^(),]+))")
_SPLIT = re.compile(r",(?![^()]*\))")
_ORDER = re.compile(r"(?P<column>[^(),]+?)(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """One part of a partition spec."""

    transform: Transform
    column: str
    width: int | None = None
    """Of ``bucket`` how many, of ``truncate`` how long."""


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One part of a sort order."""

    column: str
    descends: bool = False


def parse_partitioning(text: str) -> tuple[PartitionTerm, ...]:
    """Read a list of terms.

    Raises:
        ValueError: what is wrong.

    >>> parse_partitioning("days(at),bucket(16, id)")[1]
    PartitionTerm(transform='bucket', column='id', width=16)
    """
    return tuple(_partition_term(term.strip()) for term in _SPLIT.split(text)) if text.strip() else ()


def _partition_term(text: str) -> PartitionTerm:
    match = _TERM.fullmatch(re.sub(r"\s*([(),])\s*", r"\1", text))
    name = match["transform"] or "identity" if match else ""
    words = get_args(Transform)
    if match is None or name not in words or (name in _WITH_WIDTH) is (match["width"] is None):
        shown = "column, years(column), months(…), days(…), hours(…), bucket(N, column), truncate(N, column)"
        raise ValueError(f"`{text}` is none of {shown}")
    width = None if match["width"] is None else int(match["width"])
    if width is not None and not 0 < width <= _WIDTH_MAX:
        raise ValueError(f"`{text}`: N must be from 1 to {_WIDTH_MAX}")
    transform: Transform = next(word for word in words if word == name)
    return PartitionTerm(transform, (match["inner"] or match["column"]).strip(), width)


def parse_sort_order(text: str) -> tuple[SortTerm, ...]:
    """Read a list of columns, each with ``asc`` or ``desc`` behind it.

    Raises:
        ValueError: what is wrong.

    >>> parse_sort_order("region, at DESC")
    (SortTerm(column='region', descends=False), SortTerm(column='at', descends=True))
    """
    terms = []
    for part in text.split(",") if text.strip() else ():
        match = _ORDER.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"`{part.strip()}` is no column with asc or desc behind it")
        terms.append(SortTerm(match["column"], (match["direction"] or "").lower() == "desc"))
    return tuple(terms)


def partitioning_reason(text: str) -> str | None:
    """Return what is wrong with ``partitioning``; None: nothing."""
    return _reason(lambda: parse_partitioning(text))


def sort_order_reason(text: str) -> str | None:
    """Return what is wrong with ``sort-order``; None: nothing."""
    return _reason(lambda: parse_sort_order(text))


def _reason(read: Callable[[], object]) -> str | None:
    try:
        read()
    except ValueError as error:
        return str(error)
    return None
