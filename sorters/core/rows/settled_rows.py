"""The rows of a cut as messages in their order, settled once for all changefeeds that want the same of it.

Changefeeds of one upstream mostly differ in which tables they want and in how their topics are called. So whoever comes
first runs the whole path from the rows of a cut to its messages, and the others put their topics' names to what it has
made. What stands behind all rows, a watermark or a DDL event, is each one's own.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.sink.position import Position, PositionClass
from sorters.core.columnar.spans import IntArray
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.flow.ledger import CutFlow, FlowLedger
from sorters.core.records.order import OutputRecords, in_order, make_records, topics_of
from sorters.core.rows.shared_pass import KeptPasses, VersionRows, pass_settings, shares_passes
from sorters.core.rows.table_plans import TablePlans


class SettledKey(NamedTuple):
    """What settled rows hang on. Rows and versions are named by identity: who keeps a key keeps them too
    (:meth:`~sorters.cut.worker.SharedRows.settled`).
    """

    how: Hashable
    """Settings of the changefeed and of the cut."""
    topics: tuple[Hashable, ...]
    """Of each topic, by the first of its rows: how many partitions it has, and what it takes."""
    tables: tuple[Hashable, ...]
    """Of each group of rows: which rows of which version they are, what messages hold of the topic, how the rows spread
    over its partitions, and which of ``topics`` they go to."""


@dataclass(frozen=True, slots=True, eq=False)
class SettledRows:
    """What :func:`settle` has made."""

    records: OutputRecords
    """In their order; neighbours are joined where the protocol does that."""
    rows: int
    """That became records, repeats among them."""
    flow: CutFlow
    """The books of what became of them, but for which rows there were."""
    topics: tuple[str, ...]
    """Of whoever settled them."""
    number: IntArray | None
    """Which of the topics each record goes to; None: there is one."""

    def under(self, topics: tuple[str, ...]) -> OutputRecords:
        """Return the records with other names of the same topics."""
        if topics == self.topics:
            return self.records
        count, columns = self.records.num_rows, self.records.columns[1:]
        if self.number is None:
            return make_records([pa.repeat(topics[0], count), *columns])
        return make_records([pa.array(topics, pa.string()).take(pa.array(self.number)), *columns])


def may_settle(cut: Cut, feed: CompiledFeed, plans: TablePlans, extras: OutputRecords) -> bool:
    """Tell whether others may want the same of a cut: its records are those of its rows alone, and ``extras`` stand
    behind them.

    A claim check stores whole messages under the changefeed's own names, and flow marks for processors are of one
    changefeed: neither is shared.
    """
    if not (plans.are_shared and shares_passes(feed)) or feed.flow_writer or cut.chunks or cut.noted:
        return False
    if feed.large_messages is not None and feed.large_messages.claim_check is not None:
        return False
    behind_rows = Position(cut.upto_ts, PositionClass.DDL).encode()
    return all(position >= behind_rows for position in extras.column("position").to_pylist())


def settled_key(
    wanted: Sequence[VersionRows],
    feed: CompiledFeed,
    plans: TablePlans,
    kept: KeptPasses,
    *,
    encoded_at_ms: int,
    may_repeat: bool,
) -> tuple[SettledKey, tuple[str, ...]] | None:
    """Return what the messages of these rows hang on, and the topics by the key's numbers; None: it is more than that.

    A table that has no plan is run alone: it ends the sharing of this changefeed (``plans.are_shared``).

    Raises:
        DispatchError, ColumnSelectorError: the settings do not fit a table.
    """
    numbers, tables = dict[str, int](), list[Hashable]()
    for version, rows in wanted:
        plan = plans.plan(version, feed)
        if plan is None:
            plans.are_shared = False
        if plan is None or not kept.holds(rows):
            return None
        number = numbers.setdefault(plan.topic, len(numbers))
        part = feed.encoder.topic_part(version, plan.topic, feed.schema_ids)
        tables.append((id(rows), id(version), part, plan.spread, number))
    how = pass_settings(feed), encoded_at_ms, feed.message_bytes_max, feed.large_messages, may_repeat
    topics = tuple((feed.partitions[topic], feed.topic_message_bytes.get(topic)) for topic in numbers)
    return SettledKey(how, topics, tuple(tables)), tuple(numbers)


def settle(
    tables: Iterable[OutputRecords],
    topics: tuple[str, ...],
    feed: CompiledFeed,
    ledger: FlowLedger,
    *,
    may_repeat: bool,
    bytes_max: int,
) -> SettledRows | None:
    """Put the records of a cut's rows in their order; None: they are more than ``bytes_max``.

    Args:
        tables: the records, in no particular order.
        topics: that they go to.
        ledger: was told of nothing but what :func:`~sorters.core.rows.shared_pass.run_rows` tells.
    """
    made, held = list[OutputRecords](), 0
    for table in tables:
        made.append(table)
        held += table.nbytes
        if held > bytes_max:
            return None
    ordered = in_order(made, may_repeat, ledger.write)
    records = ordered if feed.row_join is None else feed.row_join.whole(ordered)
    number = None
    if len(topics) > 1:
        word, words = topics_of(records)
        number_of = {topic: number for number, topic in enumerate(topics)}
        number = np.array([number_of[topic] for topic in words], np.int64)[word]
    return SettledRows(records, sum(table.num_rows for table in made), ledger.close(), topics, number)
