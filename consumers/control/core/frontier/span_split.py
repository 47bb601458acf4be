"""Into which spans a large table is split, at boundaries of its regions. Pure.

TiCDC's words and numbers (``[scheduler]``, pingcap/tiflow ``cdc/scheduler/internal/v3/keyspan``): a table of
``region-threshold`` regions or more is pulled in ``max(captures * max(captures - 1, 3), regions / 50,000)`` spans, at
most 100, with equal counts of regions but for one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.ids import TableId
from schemas.tidb.spans import TableSpan

REGIONS_PER_SPAN_MAX: Final = 50_000
SPANS_MAX: Final = 100
SPANS_PER_CAPTURE_MIN: Final = 3
UNEVEN: Final = 2
"""A split table is split anew when one span has so many times its share of regions, or when there should be so many
times as many spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """When a table is split."""

    enable_table_across_nodes: bool = False
    region_threshold: int = 100_000
    """A table of so many regions is split; a split one of fewer than half as many is joined again."""


def span_count(regions: int, captures: int) -> int:
    """Return in how many spans a table of ``regions``, which is to be split, is pulled by ``captures``."""
    wanted = max(captures * max(captures - 1, SPANS_PER_CAPTURE_MIN), regions // REGIONS_PER_SPAN_MAX)
    return max(1, min(wanted, SPANS_MAX, regions))


def split_table(
    table_id: TableId, boundaries: Sequence[bytes], captures: int, settings: SplitSettings
) -> tuple[TableSpan, ...]:
    """Return the spans of a table that nobody pulls yet, ascending.

    Args:
        table_id: the physical table.
        boundaries: raw keys inside the table's span where one region ends and the next begins, ascending.
        captures: that share the work.
        settings: when to split.
    """
    if not settings.enable_table_across_nodes or len(boundaries) + 1 < max(settings.region_threshold, 2):
        return (TableSpan.of_table(table_id),)
    return _even(table_id, boundaries, captures)


def resplit_table(
    spans: Sequence[TableSpan], boundaries: Sequence[bytes], captures: int, settings: SplitSettings
) -> tuple[TableSpan, ...] | None:
    """Return new spans for a table that is pulled as ``spans`` (all of its spans, ascending), or None to let it be.

    A new split costs an incremental scan of the whole table, so it must be worth it: the table has grown past the
    threshold, or shrunk far below it, or one of its spans has got far more than its share.
    """
    table_id, regions = spans[0].table_id, len(boundaries) + 1
    if len(spans) == 1:
        new = split_table(table_id, boundaries, captures, settings)
        return new if new != tuple(spans) else None
    if not settings.enable_table_across_nodes or regions < settings.region_threshold // 2:
        return (TableSpan.of_table(table_id),)
    largest = max(bisect_left(boundaries, span.end) - bisect_right(boundaries, span.start) + 1 for span in spans)
    if largest * len(spans) <= UNEVEN * regions and span_count(regions, captures) < UNEVEN * len(spans):
        return None
    new = _even(table_id, boundaries, captures)
    return new if new != tuple(spans) else None


def _even(table_id: TableId, boundaries: Sequence[bytes], captures: int) -> tuple[TableSpan, ...]:
    whole, regions = TableSpan.of_table(table_id), len(boundaries) + 1
    count = span_count(regions, captures)
    # Span i begins with region number regions * i // count; boundary k is where region number k + 1 begins.
    cuts = [boundaries[regions * at // count - 1] for at in range(1, count)]
    starts = [whole.start, *cuts]
    return tuple(TableSpan(table_id, start, end) for start, end in zip(starts, [*cuts, whole.end], strict=True))
