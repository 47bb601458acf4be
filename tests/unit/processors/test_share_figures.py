"""What a processor counts of the transactions of its partitions."""

from typing import Any

from consumers.processors.apply.share import DatabaseShare, RunSettings
from schemas.sink_figures import NO_FIGURES


class Rows:
    """Of a transaction."""

    rows = (b"a", b"b")


def test_rounds_go_from_the_end_of_a_partitions_transaction_to_the_end_of_its_next() -> None:
    now_s, unused, claim = [100.0], object(), Rows()
    settings = RunSettings(worker_count=1, max_txn_row=10, ignore_start_ts=frozenset(), topic="t")
    source: Any = unused
    share = DatabaseShare(source, source, settings, clock=lambda: now_s[0])
    made: Any = claim
    share._figures = {0: NO_FIGURES, 1: NO_FIGURES}
    for part, at_s in ((0, 100.0), (1, 103.0), (0, 110.0)):
        now_s[0] = at_s
        share._count(part, made, 0.5, 1.5)
    first, second = share._figures[0], share._figures[1]
    assert (first.rounds_us.total, first.flushes_us.total) == (12_000_000, 3_000_000), "two at once, then ten seconds"
    assert second.rounds_us.total == 2_000_000, "the first round of a partition has no wait before it"
    assert first.batch_rows.total == 4
