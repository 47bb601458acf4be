"""Where the regions of large tables begin, told from the start keys of regions in their order. Pure."""

from collections.abc import Collection, Iterable

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.tidb.codec import decode_bytes, decode_int

_ROW_HEAD = 11
"""``t``, the table's id, ``_r``."""


def table_boundaries(
    region_starts: Iterable[bytes], tables: Collection[TableId], at_least: int
) -> dict[TableId, list[bytes]]:
    """Return, for each of ``tables`` with ``at_least`` regions, the raw keys inside its rows where a region begins.

    ``region_starts`` are encoded keys, ascending. The first region of a table may begin before it, so a table has one
    region more than boundaries. Only one table below ``at_least`` is held in memory at a time.
    """
    boundaries: dict[TableId, list[bytes]] = {}
    last: TableId | None = None
    for start in region_starts:
        key = _raw(start)
        if len(key) <= _ROW_HEAD or key[:1] != b"t" or key[9:_ROW_HEAD] != b"_r":
            continue
        table = TableId(decode_int(key, 1)[0])
        if last is not None and table != last:
            _drop_small(boundaries, last, at_least)
        if table in tables:
            boundaries.setdefault(table, []).append(key)
            last = table
    if last is not None:
        _drop_small(boundaries, last, at_least)
    return boundaries


def _drop_small(boundaries: dict[TableId, list[bytes]], table: TableId, at_least: int) -> None:
    if len(boundaries.get(table, ())) + 1 < at_least:
        boundaries.pop(table, None)


def _raw(start: bytes) -> bytes:
    try:
        return decode_bytes(start)[0]
    except CorruptDataError:
        return b""  # an operator may split anywhere; there is no row key to cut at
