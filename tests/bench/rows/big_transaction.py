"""One transaction of 2 GiB through a puller: how much memory it takes, how fast it goes, and that nothing is lost.

``python -m tests.bench.rows.big_transaction`` starts Kafka and the registry (or takes ``--kafka`` and
``--schema-registry``) and two processes: one plays PD and one TiKV store, the other is a
:class:`~producers.pull.puller.Puller` with its default settings. The store sends the transaction as TiKV would:
PREWRITE events of several regions at once in messages of some 6 MiB, nearly in key order (TiDB prewrites and commits in
batches, several of them at once); then COMMIT events, which carry no values. When the broker has acknowledged all rows,
the topic is read again: each row must be there once, with its value. One JSON line: ``peak_rss_mb`` is the puller
process's VmHWM, ``rows_per_s`` counts from its first byte to the last acknowledgement, ``cpu_rows_per_s`` its CPU time,
librdkafka's and gRPC's threads included.

Rows are sysbench's: a key of 19 bytes and a value of 195, half of it random; ``bytes`` counts both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from compose.stack.local import Addresses, LocalStack
from producers.pull.feed.spill_files import SpillSettings
from producers.pull.puller import Puller, PullerSettings
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.region_batch import decode_region_batch
from schemas.rawlog.topics import raw_topics
from schemas.tidb.spans import TableSpan
from tests.support.upstream.big_transaction import COMMIT_TS, TABLE, Transaction, serve

DEADLINE_S = 1_800.0


def pull(pd: str, addresses: Addresses, upstream: str, rows: int, memory_bytes_max: int, spill: Path) -> dict[str, Any]:
    """Run a puller until all rows are acknowledged; return its figures."""
    settings = PullerSettings(keep_safe_point=False, spill=SpillSettings(folder=spill))
    if memory_bytes_max:
        settings = replace(settings, matcher_memory_bytes_max=memory_bytes_max)
    puller = Puller(
        capture=CaptureId("bench"),
        upstream=UpstreamId(upstream),
        pd_address=pd,
        kafka=addresses.kafka_access,
        schema_registry=addresses.registry_access,
        settings=settings,
    )
    puller.start()
    wall, cpu = time.perf_counter(), time.process_time()
    puller.assign({TableSpan.of_table(TABLE): Ts(1)})
    spilled = held = 0
    try:
        while puller.report().landed_ts[TableSpan.of_table(TABLE)] < COMMIT_TS:
            stats = puller.stats()
            spilled, held = max(spilled, stats.spilled_bytes), max(held, stats.held_bytes)
            if puller.failure.done():
                raise puller.failure.result()
            if time.perf_counter() - wall > DEADLINE_S:
                raise TimeoutError(f"{stats}")
            time.sleep(0.2)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        acked = puller.stats().landing.acked_rows
    finally:
        puller.stop()
    assert acked == rows, f"{acked} rows landed, {rows} were sent"
    assert not list(spill.glob("*.spill")), "the spill is empty when nothing waits"
    return {
        "peak_rss_mb": _peak_rss_bytes() >> 20,
        "rows": acked,
        "rows_per_s": round(acked / wall),
        "cpu_rows_per_s": round(acked / cpu),
        "matcher_peak_mb": held >> 20,
        "spilled_peak_mb": spilled >> 20,
    }


def _peak_rss_bytes() -> int:
    """Return VmHWM; getrusage would count what the parent had before it started us."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def verify(kafka: str, topic: str, transaction: Transaction) -> None:
    """Read the topic: each row once, with its value."""
    seen = np.zeros(transaction.rows, np.uint8)
    consumer: Any = Consumer({"bootstrap.servers": kafka, "group.id": "bench", "enable.auto.commit": False})
    topic_partitions = [
        TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions
    ]
    left = {
        topic_partition.partition: consumer.get_watermark_offsets(topic_partition)[1]
        for topic_partition in topic_partitions
    }
    consumer.assign(topic_partitions)
    deadline = time.monotonic() + DEADLINE_S
    while any(left.values()):
        assert time.monotonic() < deadline, f"records are missing: {left}"
        for message in consumer.consume(100, 1.0):
            assert message.error() is None, message.error()
            rows = decode_region_batch(message.value()).rows
            transaction.check(rows, seen)
            if message.offset() + 1 == left[message.partition()]:
                left[message.partition()] = 0
    consumer.close()
    assert (seen == 1).all(), f"{np.count_nonzero(seen == 0)} rows are missing, {np.count_nonzero(seen > 1)} repeated"


def run(options: argparse.Namespace, folder: Path, addresses: Addresses) -> dict[str, Any]:
    """Run server and puller; return the figure."""
    transaction, upstream = Transaction.of_bytes(options.bytes), f"big-{time.time_ns()}"
    command = [sys.executable, "-m", "tests.bench.rows.big_transaction", f"--bytes={options.bytes}"]
    with subprocess.Popen([*command, "--role=server"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            pd = server.stdout.readline().strip()
            more = [f"--pd={pd}", f"--kafka={addresses.kafka}", f"--schema-registry={addresses.schema_registry}"]
            more += [f"--upstream={upstream}", f"--spill={folder}", f"--memory-bytes={options.memory_bytes}"]
            pulled = subprocess.run(
                [*command, "--role=puller", *more], stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S
            )
        finally:
            server.terminate()
    verify(addresses.kafka, raw_topics(UpstreamId(upstream)).region_events, transaction)
    return {"bench": "big_transaction", "bytes": transaction.bytes, **json.loads(pulled.stdout)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or one of its processes; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--memory-bytes", type=int, default=0, help="of the matchers; 0: the puller's default")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--schema-registry", default="")
    parser.add_argument("--role", choices=["bench", "server", "puller"], default="bench", help=argparse.SUPPRESS)
    for name in ("--pd", "--upstream", "--spill"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper="", schema_registry=options.schema_registry)
    if options.role == "server":
        serve(Transaction.of_bytes(options.bytes), say=lambda address: print(address, flush=True))
        return 0
    if options.role == "puller":
        rows = Transaction.of_bytes(options.bytes).rows
        figure = pull(options.pd, given, options.upstream, rows, options.memory_bytes, Path(options.spill))
        print(json.dumps(figure), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder:
        spill = Path(folder, "spill")
        if options.kafka and options.schema_registry:
            figure = run(options, spill, given)
        else:
            with LocalStack(data=Path(folder, "stack"), given=given) as stack:
                figure = run(options, spill, stack.addresses)
    print(json.dumps(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
