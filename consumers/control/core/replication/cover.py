"""Spans against the tables that they must cover: nothing moves while a key of a table belongs to nobody."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from schemas.errors import Action, BusError
from schemas.ids import TableId
from schemas.tidb.spans import TableSpan


class OverlappingSpansError(BusError):
    """A key would be replicated twice: the changefeed starts anew, with a new epoch."""

    code, action = "scheduling.overlapping_spans", Action.RETRY


def find_holes(whole: TableSpan, spans: Iterable[TableSpan]) -> tuple[TableSpan, ...]:
    """Return what ``spans`` leave out of ``whole``, in key order.

    Raises:
        OverlappingSpansError: two of them share a key, or one ends before it starts.
    """
    holes: list[TableSpan] = []
    reached: bytes = whole.start
    for span in sorted(spans):
        if span.start < reached or span.end <= span.start:
            raise OverlappingSpansError("spans of a table overlap", table=whole.table_id, span=span.start.hex())
        if span.start > reached:
            holes.append(TableSpan(whole.table_id, reached, span.start))
        reached = span.end
    if reached < whole.end:
        holes.append(TableSpan(whole.table_id, reached, whole.end))
    return tuple(holes)


def wanted_spans(tables: Mapping[TableId, Sequence[TableSpan]], existing: Iterable[TableSpan]) -> dict[TableSpan, None]:
    """Return the spans to replicate, in the order of ``tables``.

    ``tables`` holds each table's wished spans, which cover it without a hole. A table that has ``existing`` spans keeps
    them (they run somewhere, whatever is wished now), and what they leave out becomes spans of its own.

    Raises:
        OverlappingSpansError: two spans of a table share a key, or a table's wished spans leave a hole.
    """
    by_table: dict[TableId, list[TableSpan]] = {}
    for span in existing:
        by_table.setdefault(span.table_id, []).append(span)
    wanted: dict[TableSpan, None] = {}
    for table_id, wished in tables.items():
        kept = by_table.get(table_id)
        if kept is None or (len(kept) == 1 == len(wished) and kept[0] == wished[0]):
            if any(left.end != right.start for left, right in pairwise(wished)):
                raise OverlappingSpansError("wished spans of a table do not join", table=table_id)
            wanted.update(dict.fromkeys(wished))
        else:
            whole = TableSpan(table_id, wished[0].start, wished[-1].end)
            wanted.update(dict.fromkeys(sorted((*kept, *find_holes(whole, kept)))))
    return wanted
