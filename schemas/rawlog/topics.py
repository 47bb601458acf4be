"""Names and creation settings of the raw log's topics.

The format, for readers in other languages: docs/formats/raw-log.md §1.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from schemas.ids import TableId, UpstreamId
from schemas.tidb.spans import TableSpan

RAW_MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""``max.message.bytes`` of region-events: TiKV rows reach 6 MiB by default; a larger one is landed in parts
(:mod:`schemas.rawlog.row_parts`), and so is one that a topic with a smaller limit does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTopics:
    """Topic names of one upstream."""

    region_events: str
    ddl: str
    frontier: str
    images: str
    """Made with the first image; an upstream without images has none."""
    proofs: str = ""
    """What sorters have counted (:mod:`schemas.flow.proof`), made by the first of them; '': nobody writes it. Its
    prefix is one that sorters may write, and not the raw log's.
    """
    states: str = ""
    """What tables hold by their state proofs (:mod:`schemas.state_proof.carried`), made and written likewise."""


def raw_topics(upstream: UpstreamId, prefix: str = "tidebus") -> RawTopics:
    """Return the topic names of ``upstream``.

    >>> raw_topics(UpstreamId("u")).region_events
    'tidebus.u.region-events'
    """
    stem = f"{prefix}.{upstream}"
    return RawTopics(
        region_events=f"{stem}.region-events",
        ddl=f"{stem}.ddl",
        frontier=f"{stem}.frontier",
        images=f"{stem}.images",
        proofs=f"{prefix}.proofs.{upstream}",
        states=f"{prefix}.proofs.{upstream}.states",
    )


def upstreams_among(topics: Iterable[str], prefix: str = "tidebus") -> list[UpstreamId]:
    """Return the upstreams whose frontier topics are among some topics, in order.

    >>> upstreams_among(["tidebus.b.frontier", "tidebus.a.frontier", "tidebus.a.ddl", "orders"])
    ['a', 'b']
    """
    frontier = re.compile(rf"{re.escape(prefix)}\.(.+)\.frontier")
    return sorted(UpstreamId(match[1]) for topic in topics if (match := frontier.fullmatch(topic)))


def raw_partition(table_id: TableId, partitions: int) -> int:
    """Return the region-events partition of a table.

    Fibonacci hashing spreads the consecutive ids that TiDB hands out evenly over any partition count.
    """
    return ((table_id * 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF) % 0xFFFF_FFFB % partitions


def raw_partition_of_span(span: TableSpan, partitions: int) -> int:
    """Return the region-events partition of a span: the table's, for all of a table; the parts of one are spread.

    Nothing else depends on it: readers take a change from wherever it stands.
    """
    if span.whole:
        return raw_partition(span.table_id, partitions)
    return raw_partition(TableId(crc32(span.start, span.table_id & 0xFFFF_FFFF)), partitions)
