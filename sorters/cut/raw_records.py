"""What one task reads of a cut: its share of the raw records, with those put together that were landed in parts.

A row in parts belongs to the task whose share has its first part; the others may stand behind the share, and are read
there. Few rows are larger than a topic takes, so this is rare; it costs one look at each record's head.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.rawlog.record_check import NO_TABLE
from schemas.rawlog.region_batch import read_batch_head
from schemas.rawlog.row_parts import PartJoiner
from sorters.core.cut.cut import Cut, overlaps


class ReadsRanges(Protocol):
    """:class:`~edges.kafka.offsets.TopicReader`, or a :class:`~sorters.cut.raw_cut.RawReader`."""

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Yield ``(partition, offset, value)`` for the offsets ``[start, end)`` of each partition."""
        ...


def raw_records(
    reader: ReadsRanges,
    cut: Cut,
    on_bytes: Callable[[int], None],
    number: int = 0,
    count: int = 1,
    *,
    keeps_unknown: bool = False,
) -> Iterator[bytes]:
    """Yield the whole records of task ``number`` of ``count``; ``on_bytes`` gets the size of all that is read.

    Args:
        keeps_unknown: see :class:`~schemas.rawlog.row_parts.PartJoiner`; who says so judges each by
            :class:`~sorters.cut.damaged_records.DamagedRecords`.

    Raises:
        KafkaUnreachableError, HistoryLostError: see :meth:`TopicReader.read_all`.
        CorruptDataError: a record is not one of the raw log; the error names its partition and offset.
    """
    joiner = PartJoiner(lambda head: overlaps(head, cut.after_ts, cut.upto_ts), keeps_unknown=keeps_unknown)
    share = cut.share(number, count)
    for partition, offset, value in reader.read_all(share):
        on_bytes(len(value))
        whole = _take(joiner, partition, offset, value, may_begin=True)
        if whole is not None:
            yield whole
    behind = {partition: (share[partition][1], cut.end[partition]) for partition in joiner.open_partitions}
    for partition, offset, value in reader.read_all(behind):
        on_bytes(len(value))
        whole = _take(joiner, partition, offset, value, may_begin=False)
        if whole is not None:
            yield whole
            if not joiner.open_partitions:
                return


def _take(joiner: PartJoiner, partition: int, offset: int, value: bytes, *, may_begin: bool) -> bytes | None:
    try:
        return joiner.take(partition, value, may_begin=may_begin)
    except CorruptDataError as error:
        error.fields.update(partition=partition, offset=offset)
        raise


def tables_of(records: Iterable[bytes], cut: Cut) -> set[TableId]:
    """Return the physical tables that raw records may hold rows of the cut of; only heads are looked at."""
    heads = map(read_batch_head, records)
    return {head.table_id for head in heads if overlaps(head, cut.after_ts, cut.upto_ts)} - {NO_TABLE}
