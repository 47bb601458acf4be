"""What README promises of a sink topic's partitions, held against all of their records."""

from collections.abc import Iterable

from schemas.sink.position import PositionClass, decode_position
from tests.support.rawlog.raw_log import SinkRecord


def rows_in_order(positions: Iterable[bytes]) -> list[int]:
    """Return the commit_ts of a partition's rows, as one has them who drops what stands at or below the greatest
    position so far; and hold that no row comes at or below a watermark before it, unless it stood there before.
    """
    kept: list[bytes] = []
    seen: set[bytes] = set()
    watermark_ts = 0
    for position in positions:
        decoded = decode_position(position)
        if decoded.position_class is PositionClass.WATERMARK:
            watermark_ts = max(watermark_ts, decoded.commit_ts)
        elif decoded.commit_ts <= watermark_ts:
            assert position in seen, f"a row of {decoded.commit_ts} comes after the watermark of {watermark_ts}"
        seen.add(position)
        if not kept or position > kept[-1]:
            kept.append(position)
    decoded_rows = [decode_position(position) for position in kept]
    return [row.commit_ts for row in decoded_rows if row.position_class is PositionClass.ROW]


def rows_of_topic(records: Iterable[SinkRecord]) -> list[int]:
    """Return the commit_ts of a topic's rows, each partition's by :func:`rows_in_order`."""
    partitions: dict[int, list[bytes]] = {}
    for record in records:
        partitions.setdefault(record.partition, []).append(record.position)
    return sorted(commit_ts for positions in partitions.values() for commit_ts in rows_in_order(positions))
