"""Rows a second from EventFeed's bytes to acknowledged raw records: parse, match, pack, encode, and produce.

``python -m tests.bench.rows.puller`` prints one JSON line per figure: ``to: nowhere`` takes records at once and shows
the Python side alone; ``to: kafka`` waits for the last acknowledgement of a broker that it starts, or ``--kafka``.
``rows_per_s`` counts wall time, ``cpu_rows_per_s`` process CPU time, librdkafka's threads included.

The rows are sysbench's, 195 bytes; a transaction has 100 of them, PREWRITE and COMMIT of each, as a live feed has them.

Where the time goes, in CPU time of one row (two messages' rows), measured stage by stage, the best of 300 rounds over
rows that stay in the processor's cache, while other work kept the two cores busy: the parser 0.25 µs, by two
descriptions (:mod:`producers.pull.core.match.log_rows`); columns out of it 0.2 µs; records 0.05 µs to pack and 0.05 µs
in Avro. Open transactions and what a COMMIT matched took 0.7 µs as dicts of tuples; as columns the whole path takes 0.4
to 0.6 µs less, by pairs of rounds. librdkafka (lz4, checksums, sending) takes 0.5 to 0.8 µs more. What is left is
spread thin. Events of fewer than 20 rows go by row, and an event of one row costs some 7 µs.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compose.stack.local import Addresses, LocalStack
from edges.kafka.access import KafkaAccess
from producers.pull.core.landing.book import LandingBook
from producers.pull.core.regions.region_map import KEY_END, Peer, RegionInfo
from producers.pull.core.regions.request_ids import RequestIds
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.stream_table import StreamTable
from producers.pull.core.regions.subscription import Retry, Subscription
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.store_streams import OpenStream
from producers.pull.landing.landing import Landing
from producers.pull.landing.raw_log import RawLogSettings, ensure_raw_topics
from producers.pull.landing.raw_producer import close_producer, raw_log_producer
from schemas.ids import CaptureId, RegionId, StoreId, TableId, Ts, UpstreamId
from schemas.proto import cdcpb_pb2
from schemas.rawlog.topics import raw_topics
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan

TABLES = 8
TXN_ROWS = 100
VALUE_BYTES = 195
TXNS_A_RESOLVED = 50
FIRST_REQUEST_ID = 1
"""Of each region; small tables share request ids."""


class NowhereProducer:
    """Acknowledges at the next poll."""

    def __init__(self) -> None:
        self._due: list[Callable[[Any, Any], None]] = []
        self._offset = 0

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        self._due.append(on_delivery)

    def poll(self, timeout: float) -> int:
        due, self._due = self._due, []
        for callback in due:
            callback(None, self)
        return len(due)

    def flush(self, timeout: float) -> int:
        return self.poll(timeout) * 0

    def offset(self) -> int:
        self._offset += 1
        return self._offset


def messages(rows: int) -> list[bytes]:
    """Return EventFeed messages of ``rows`` committed changes over :data:`TABLES` regions, resolved ts between."""
    dice, out, ts = random.Random(1), [], 1_000
    values = [dice.randbytes(VALUE_BYTES // 2) + b"7" * (VALUE_BYTES - VALUE_BYTES // 2) for _ in range(997)]
    for number in range(rows // TXN_ROWS):
        region = number % TABLES + 1
        keys = [row_key(TableId(region), number * TXN_ROWS + at) for at in range(TXN_ROWS)]
        prewrite, commit = (
            cdcpb_pb2.Event(region_id=region, request_id=FIRST_REQUEST_ID),
            cdcpb_pb2.Event(region_id=region, request_id=FIRST_REQUEST_ID),
        )
        for at, key in enumerate(keys):
            value = values[(number + at) % len(values)]
            prewrite.entries.entries.add(type=1, start_ts=ts, key=key, value=value, op_type=1)
            commit.entries.entries.add(type=2, start_ts=ts, commit_ts=ts + 1, key=key, op_type=1)
        ts += 2
        out.append(cdcpb_pb2.ChangeDataEvent(events=[prewrite]).SerializeToString())
        out.append(cdcpb_pb2.ChangeDataEvent(events=[commit]).SerializeToString())
        if number % TXNS_A_RESOLVED == 0 or number == rows // TXN_ROWS - 1:
            for table in range(1, TABLES + 1):
                resolved = cdcpb_pb2.ResolvedTs(regions=[table], ts=ts, request_id=FIRST_REQUEST_ID)
                out.append(cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString())
    return out


def feed_over(landing: Landing) -> tuple[EventFeed, OpenStream]:
    """Return a feed with one initialized region for each table, without stores behind it."""
    feed = EventFeed(None, landing, print)  # type: ignore[arg-type]
    stream = OpenStream(
        transport=None,  # type: ignore[arg-type]
        store_id=StoreId(1),
        address="nowhere",
        subscription=None,
        table=StreamTable(multiplexed=True),
        heard_at_s=0.0,
        empty_since_s=None,
    )
    for table in range(1, TABLES + 1):
        landing.book.assign(TableSpan.of_table(TableId(table)), Ts(0))
        span = TableSpan.of_table(TableId(table))
        subscription = Subscription(span, Ts(0), RequestIds())
        region = RegionInfo(
            region_id=RegionId(table),
            range=EncodedRange(b"", KEY_END),
            version=1,
            conf_ver=1,
            leader=Peer(1, StoreId(1)),
        )
        (registration,) = subscription.lock_for(Retry(subscription.frontier.span), [region], 0.0).registrations
        stream.table.add(registration)
        initialized = cdcpb_pb2.Event(region_id=table, request_id=registration.request_id)
        initialized.entries.entries.add(type=cdcpb_pb2.Event.INITIALIZED)
        deque(feed._bytes(stream, cdcpb_pb2.ChangeDataEvent(events=[initialized]).SerializeToString()), maxlen=0)
    return feed, stream


def measure(raw: list[bytes], landing: Landing, rows: int) -> dict[str, int]:
    """Push everything through; return the figures."""
    feed, stream = feed_over(landing)
    wall, cpu = time.perf_counter(), time.process_time()
    for number, message in enumerate(raw):
        deque(feed._bytes(stream, message), maxlen=0)
        if number % 20 == 0:
            feed._report_resolved(time.monotonic())
            landing.turn(time.monotonic())
            while landing.saturated():
                time.sleep(0.001)
                landing.turn(time.monotonic())
    feed._report_resolved(time.monotonic())
    while landing.book.in_flight():
        landing.turn(time.monotonic())
        landing.flush(0.1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert landing.counters.acked_rows == rows, landing.counters
    assert len(set(landing.book.landed_ts().values())) == 1
    return {
        "rows_per_s": round(rows / wall),
        "cpu_rows_per_s": round(rows / cpu),
        "records": landing.counters.records,
        "mb_per_s": round(landing.counters.bytes / wall / 1e6),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--nowhere", action="store_true", help="only the Python side, without Kafka")
    parser.add_argument("--compression", default="lz4", choices=["none", "lz4", "zstd"])
    options = parser.parse_args(argv)
    rows = options.rows // TXN_ROWS * TXN_ROWS
    raw = messages(rows)
    _print(options, rows, "nowhere", best_of(options, "", raw, rows))
    if not options.nowhere:
        with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder, contextlib.ExitStack() as stack:
            kafka = options.kafka
            if not kafka:
                # Only Kafka is of use here: the other addresses count as given.
                given = Addresses(zookeeper="-", schema_registry="-")
                local = stack.enter_context(LocalStack(data=Path(folder), given=given, say=_say))
                kafka = local.addresses.kafka
            _print(options, rows, "kafka", best_of(options, kafka, raw, rows))
    return 0


def best_of(options: argparse.Namespace, kafka: str, raw: list[bytes], rows: int) -> dict[str, int]:
    """Measure some times, to ``kafka`` ('': to nowhere); return the best figures."""
    rates = []
    for _ in range(options.repeats):
        topics = raw_topics(UpstreamId(f"bench-{time.time_ns()}"))
        producer: Any = NowhereProducer()
        if kafka:
            ensure_raw_topics(KafkaAccess(kafka), topics, RawLogSettings())
            producer = raw_log_producer(KafkaAccess(kafka), options.compression, print)
        book = LandingBook(CaptureId("bench"), 8)
        landing = Landing(book, producer, topic=topics.region_events, partitions=8, schema_id=1)
        rates.append(measure(raw, landing, rows))
        if kafka:
            close_producer(producer)
    return max(rates, key=lambda figures: figures["rows_per_s"])


def _print(options: argparse.Namespace, rows: int, to: str, figures: dict[str, int]) -> None:
    figure = {"bench": "puller", "to": to, **figures, "row_bytes": VALUE_BYTES, "rows": rows}
    print(json.dumps(figure | ({"compression": options.compression} if to == "kafka" else {})), flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
