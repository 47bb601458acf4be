"""Counts the regions of tables, from PD: one pass over all regions from the first table to the last."""

from collections.abc import Collection, Iterator

from producers.pull.core.regions.region_map import KEY_END
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.table_boundaries import table_boundaries
from producers.pull.pd.client import SCAN_REGIONS_LIMIT, PdClient
from schemas.ids import TableId
from schemas.tidb.spans import TableSpan


def table_regions(pd: PdClient, tables: Collection[TableId], at_least: int) -> dict[TableId, list[bytes]]:
    """Return, for each of ``tables`` with ``at_least`` regions or more, where its regions begin: raw keys, ascending.

    What PD says is true of no one moment; a boundary is a good key to cut at whether or not it is one still.

    Raises:
        PdUnreachableError: PD does not answer.
    """
    if not tables:
        return {}
    first, last = TableSpan.of_table(min(tables)), TableSpan.of_table(max(tables))
    wanted = EncodedRange(first.encoded[0], last.encoded[1])
    return table_boundaries(_starts(pd, wanted), frozenset(tables), at_least)


def _starts(pd: PdClient, wanted: EncodedRange) -> Iterator[bytes]:
    at = wanted.start
    while at < wanted.end:
        page = pd.scan_regions(EncodedRange(at, wanted.end), SCAN_REGIONS_LIMIT)
        for region in page:
            if region.range.start >= at:
                yield region.range.start
        if not page or page[-1].range.end in (at, KEY_END):
            return
        at = page[-1].range.end
