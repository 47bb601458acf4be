"""What captures have landed of the recording, read back and held against the upstream by the frontier law."""

import contextlib
import time
from itertools import accumulate, combinations
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.access import KafkaAccess
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, follow_frontier
from schemas.rawlog.region_batch import decode_region_batch
from schemas.rawlog.topics import RawTopics
from sorters.core.cut.cut import frontier_for
from tests.support.recorded.recording import committed_changes, row_table_id
from tests.support.recorded.schema_feed import schema_store

REACH_S = 180.0
Change = tuple[int, int, bytes]
"""(commit_ts, start_ts, key)."""


def places(kafka: str, topics: RawTopics) -> list[FrontierRecord]:
    """Return where a reader stands after each record of the frontier topic."""
    with contextlib.closing(FrontierTopic(KafkaAccess(kafka), topics.frontier)) as topic:
        records = [record for _, record in topic.read(*topic.offsets())]
    return list(accumulate(records, follow_frontier))


def reached(kafka: str, topics: RawTopics, ts: Ts) -> None:
    """Wait until the frontier has passed ``ts`` with every table, also those that are held."""
    deadline = time.monotonic() + REACH_S
    with contextlib.closing(FrontierTopic(KafkaAccess(kafka), topics.frontier)) as topic:
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                newest = topic.newest()
                if newest is not None and min([newest.resolved_ts, *(held.ts for held in newest.held)]) >= ts:
                    return
            time.sleep(0.2)
    raise AssertionError(f"frontier did not reach {ts} in {REACH_S} s")


def raw_rows(kafka: str, topics: RawTopics, partitions: int) -> list[list[list[Change]]]:
    """Return the rows of each record, by partition and offset."""
    consumer: Any = Consumer({"bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False})
    out: list[list[list[Change]]] = [[] for _ in range(partitions)]
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topics.region_events, p))[1] for p in range(partitions)}
    consumer.assign([TopicPartition(topics.region_events, p, OFFSET_BEGINNING) for p in ends])
    while any(len(out[partition]) < end for partition, end in ends.items()):
        for message in consumer.consume(1000, 1.0):
            rows = decode_region_batch(message.value()).rows
            table = zip(rows.commit_ts.tolist(), rows.start_ts.tolist(), rows.key.to_pylist(), strict=True)
            out[message.partition()].append(list(table))
    consumer.close()
    return out


def upstream_rows(after_ts: Ts) -> tuple[set[Change], set[Change]]:
    """Return the recording's row changes of user tables, and those of all tables, by a fold that is no producer's.

    The former leave out rows of a table that no schema held at that time (a partition reorganisation writes them) and
    what a lossy DDL reorganisation rewrote: TiKV does not deliver it.
    """
    changes = list(committed_changes())
    store = schema_store(changes)
    promised, made = set[Change](), set[Change]()
    for change in changes:
        row = change.commit_ts, change.start_ts, change.key
        made.add(row)
        table = row_table_id(change.key)
        held = table is not None and store.table_at(table, Ts(change.commit_ts)) is not None  # type: ignore[arg-type]
        if held and change.commit_ts > after_ts and not change.txn_source >> 8:
            promised.add(row)
    return promised, made


def check_law(kafka: str, topics: RawTopics, start_ts: Ts, end_ts: Ts) -> None:
    """Check the cut between any two of 25 frontiers of a changefeed of all tables against the upstream, and that
    the log holds nothing invented.
    """
    followed = [frontier_for(record, lambda _: True) for record in places(kafka, topics)]
    stands = [frontier for frontier in followed if frontier.resolved_ts <= end_ts] + [
        next(frontier for frontier in followed if frontier.resolved_ts > end_ts)
    ]
    log, (promised, made) = raw_rows(kafka, topics, len(stands[0].high)), upstream_rows(start_ts)
    all_rows = {row for partition in log for record in partition for row in record}
    assert promised <= all_rows <= made
    assert len(promised) > 17_000
    numbers = np.unique(np.linspace(0, len(stands) - 1, min(len(stands), 25)).astype(int))
    for first, second in combinations([stands[number] for number in numbers], 2):
        cut = {
            row
            for partition, (low, high) in enumerate(zip(first.low, second.high, strict=True))
            for record in log[partition][low:high]
            for row in record
            if first.resolved_ts < row[0] <= second.resolved_ts
        }
        assert {row for row in promised if first.resolved_ts < row[0] <= second.resolved_ts} == cut & promised
