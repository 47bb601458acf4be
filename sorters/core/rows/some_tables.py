"""Records of some of the tables of a pass that was made for a changefeed which has more of them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sorters.core.encode.wire.protocol import EncodedRows
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.large_messages import are_too_large
from sorters.core.flow.ledger import FlowLedger
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.records.order import OutputRecords, make_records
from sorters.core.rows.pipeline import EncodedPass, alike_partitions


def route_some(
    passed: EncodedPass, tables: Sequence[int], feed: CompiledFeed, alike: AlikeTables, ledger: FlowLedger | None
) -> OutputRecords | None:
    """Return the records of these tables of a pass, in no particular order.

    Args:
        tables: for each of ``alike``'s tables its number among the pass's.
        alike: with the topics of this feed; which row is of which table is not asked.
        ledger: is told of updates that are split.

    Returns:
        None: a pass of these tables alone is to be made. A message is too large for a topic, and errors name what was
        mounted.
    """
    of_pass = np.full(passed.tables, -1, np.int64)
    of_pass[list(tables)] = np.arange(len(tables))
    number = of_pass[passed.number]
    chosen = np.flatnonzero(number >= 0)
    rows = pa.array(chosen)
    encoded = EncodedRows(chosen, passed.encoded.keys.take(rows), passed.encoded.values.take(rows))
    if are_too_large(encoded, feed.row_message_limit(*alike.topics)):
        return None
    route, _ = feed.select(alike.versions[0])
    counts = [feed.partitions[name] for name in alike.topics]
    # Of the other tables anything will do; where all have one count, it is what is kept for those who have all tables.
    of_tables = dict(zip(tables, counts, strict=True))
    partition = alike_partitions(passed, route, [of_tables.get(at, counts[0]) for at in range(passed.tables)])
    if passed.split is not None and ledger is not None:
        mine = of_pass[passed.split.number] >= 0
        if mine.any():
            ledger.split(passed.split.positions.filter(pa.array(mine)))
    return make_records(
        [
            alike.named(number[chosen]),
            pa.array(partition[chosen]),
            encoded.keys,
            encoded.values,
            passed.positions.take(rows),
        ]
    )
