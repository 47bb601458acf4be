"""What a processor counts of the transactions of its partitions."""

from consumers.processors.apply.opened_partition import OpenedPartition, PartitionCounts
from consumers.processors.core.apply.partition import PartitionQueue, start_position
from schemas.ids import Ts

START = start_position(Ts(1))


def test_rounds_go_from_the_end_of_a_partitions_transaction_to_the_end_of_its_next() -> None:
    counts = [PartitionCounts(), PartitionCounts()]
    parts = [OpenedPartition(PartitionQueue(part, START, 0), START, counts[part]) for part in (0, 1)]
    for part, at_s in ((0, 100.0), (1, 103.0), (0, 110.0)):
        parts[part].count(2, 0.5, 1.5, at_s)
    first, second = (each.figures for each in counts)
    assert (first.rounds_us.total, first.flushes_us.total) == (12_000_000, 3_000_000), "two at once, then ten seconds"
    assert second.rounds_us.total == 2_000_000, "the first round of a partition has no wait before it"
    assert first.batch_rows.total == 4
