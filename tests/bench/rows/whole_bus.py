"""The whole bus: rows a CPU second of producer and sorter together, from EventFeed's bytes to acknowledged messages.

``python -m tests.bench.rows.whole_bus`` prints one JSON line a protocol. Four processes take part beside Kafka and the
registry: one plays PD and a TiKV store (:mod:`tests.bench.rig.busy_store`); one is a
:class:`~producers.pull.puller.Puller` with its default settings, and publishes the frontier every 50 ms by the owner's
arithmetic; one is the sorter, with its JVM and its Python workers. ``rows_per_cpu_s`` counts the CPU time of the last
two from the first byte until the last row is acknowledged, gRPC's, librdkafka's and the JVM's threads included; Kafka
and the store are not counted, as nobody counts them for TiCDC. Both have been warmed up. Rows are sysbench's, in
transactions of 100 over four tables; ``row_bytes`` is a TiKV value's mean size. Raw log and topics are compressed as by
default: lz4, and not at all.

Where the time goes: µs of CPU a row in Avro, by thread and perf's symbols, on two cores that other work kept busy (a
load of 5). The second column is of pairs of rounds of that stage alone::

    puller     feed's thread: parse, match, pack        2.90    2.5    transactions stay columns until their COMMIT
               librdkafka: lz4 0.7, send, checksum      0.95
               gRPC                                     0.14
    workers    read, mount, encode, sort, merge         1.8
               produce, one header each                 2.1     2.0    one dict of headers for all rows
               librdkafka, writing: batches, send       0.6
               the same: looking for leave to send      0 to 6     0.1    1.4 by a broker that answers in 100 ms, not 20
               librdkafka, reading: lz4 0.2, copy       0.4
    driver     Python                                   0.4
               librdkafka, reading                      0.16
               JVM: tasks 0.2, C1 0.2, planning         0.9

What is looked for is leave: librdkafka's thread polls without a pause while a flush, or a message that is older than
``linger.ms``, waits behind the requests that are under way. The writer hardly lets it any more: 0.9 and 5.4 µs before,
by its own broker that answers in 20 and in 100 ms (docs/decisions/2026-11-22-waiting-without-a-flush.md). Of produce,
malloc and free take a quarter, as each message, its list of headers and the header are pieces of memory of their own,
and acknowledged ones are handed back to the Python thread one by one. A next step would have to write Kafka's record
batches by column, past librdkafka's calls for each message. While runs went through the JVM producing took 4.5 µs
instead of 2.5, with default settings 6.5.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files
from consumers.control.core.frontier.frontier import FrontierInputs, advance
from consumers.control.log.frontier_topic import FrontierTopic
from producers.pull.puller import Puller, PullerSettings
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.frontier import DdlReport
from schemas.rawlog.topics import raw_topics
from schemas.tidb.spans import TableSpan
from sorters.spark.session import create_session
from tests.bench.rig.busy_store import TABLES, TXN_ROWS, TXNS_A_RESOLVED, commit_ts
from tests.bench.rig.changefeed_run import ChangefeedRun
from tests.bench.rig.module_process import module_process
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

PROTOCOLS = ("canal-json", "avro", "open-protocol")
WARM_ROWS = 300_000
RAW_PARTITIONS = 8
TICK_S = 0.05
"""Between two frontier records, the owner's pace."""
DEADLINE_S = 900.0
_STEP = TXN_ROWS * TXNS_A_RESOLVED


def pull(pd: str, addresses: Addresses, upstream: str, ddl_end: int) -> None:
    """Pull all tables and publish the frontier, until standard input ends."""
    puller = Puller(
        capture=CaptureId("bench"),
        upstream=UpstreamId(upstream),
        pd_address=pd,
        kafka=addresses.kafka_access,
        schema_registry=addresses.registry_access,
        settings=PullerSettings(keep_safe_point=False),
    )
    ended = _ended_input()
    topic = FrontierTopic(addresses.kafka_access, raw_topics(UpstreamId(upstream)).frontier)
    published = topic.newest()
    assert published is not None
    spans = {TableSpan.of_table(table): CaptureId("bench") for table in TABLES}
    puller.start()
    puller.assign(dict.fromkeys(spans, START_TS))
    try:
        while not ended.wait(TICK_S):
            if puller.failure.done():
                raise puller.failure.result()
            report = puller.report()
            record = advance(
                published,
                FrontierInputs({report.capture: report}, DdlReport(landed_ts=Ts(1 << 62), end=ddl_end), spans),
            )
            if record.resolved_ts > published.resolved_ts:
                topic.publish(record)
                puller.published(record)
                published = record
    finally:
        puller.stop()
        topic.close()


def sort(options: argparse.Namespace, addresses: Addresses) -> None:
    """Run the changefeed, say on standard output how far it is, until standard input ends."""
    name_spark_files()
    spark = create_session(options.master, "whole-bus", Path(options.folder))
    feed = ChangefeedRun(
        spark,
        addresses,
        upstream=options.upstream,
        data_dir=Path(options.folder) / "feed",
        name=uuid.uuid4().hex[:8],
        protocol=options.protocol[0],
        more="".join(f"&{pair}" for pair in options.sink),
    )
    ended = _ended_input()
    said = 0
    try:
        feed.run.start()
        while not ended.wait(0.02):
            failure = feed.run.failure()
            if failure is not None:
                raise failure
            for cut in feed.cuts[said:]:
                print(json.dumps({"ts": cut.checkpoint_ts, "rows": cut.rows, "s": cut.cut_s}), flush=True)
                said += 1
    finally:
        feed.close()
        spark.stop()


def _ended_input() -> threading.Event:
    """Return what is set once standard input has ended."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


class Progress:
    """What the sorter's process says."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.ts, self.rows, self.cuts = 0, 0, 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.rows, self.cuts, self.ts = self.rows + said["rows"], self.cuts + 1, said["ts"]

    def wait(self, ts: Ts, others: Sequence["subprocess.Popen[str]"]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.ts < ts:
            if any(process.poll() is not None for process in (self._process, *others)):
                raise RuntimeError("a process of the bench has ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the sorter did not get there: at {self.ts} of {ts}, {self.rows} rows")
            time.sleep(0.005)


def measure(options: argparse.Namespace, protocol: str, addresses: Addresses, folder: Path) -> dict[str, Any]:
    """Run one protocol; return its figure."""
    upstream, rows = f"bus-{uuid.uuid4().hex[:8]}", options.rows // _STEP * _STEP
    warm = WARM_ROWS // _STEP * _STEP
    info, recorded_rows = recorded("sbtest1")
    log = RawLog(addresses.kafka, upstream, RAW_PARTITIONS)
    log.snapshot([{**info, "id": int(table), "name": _name(f"sbtest{n}")} for n, table in enumerate(TABLES, 1)])
    where = [f"--kafka={addresses.kafka}", f"--schema-registry={addresses.schema_registry}", f"--upstream={upstream}"]
    me = ["tests.bench.rows.whole_bus", *where, f"--ddl-end={log.ddl_end}", f"--master={options.master}"]
    store_arguments = ["tests.bench.rig.busy_store", f"--warm-rows={warm}", f"--rows={rows}"]
    sorter_arguments = [
        f"--folder={folder / upstream}",
        f"--protocol={protocol}",
        *(f"--sink={s}" for s in options.sink),
    ]
    with (
        module_process([*me, "--role=sorter", *sorter_arguments]) as sorter,
        module_process(store_arguments) as store,
    ):
        progress = Progress(sorter)
        assert store.stdout is not None
        assert store.stdin is not None
        pd = store.stdout.readline().strip()
        with module_process([*me, "--role=puller", f"--pd={pd}"]) as puller:
            progress.wait(commit_ts(warm - 1), (store, puller))
            before, cuts, seen = psutil.Process(puller.pid).cpu_times(), progress.cuts, progress.rows
            with ProcessMeter(sorter.pid) as meter:
                started = time.monotonic()
                store.stdin.write("\n")
                store.stdin.flush()
                progress.wait(commit_ts(warm + rows - 1), (store, puller))
                elapsed = time.monotonic() - started
            after = psutil.Process(puller.pid).cpu_times()
    assert progress.rows - seen >= rows, f"{progress.rows - seen} rows of {rows}"
    producer_cpu_s = after.user + after.system - before.user - before.system
    return {
        "bench": "whole_bus",
        "protocol": protocol,
        "rows_per_cpu_s": round(rows / (producer_cpu_s + meter.cpu_s)),
        "rows": rows,
        "rows_per_s": round(rows / elapsed),
        "producer_cpu_us_per_row": round(1e6 * producer_cpu_s / rows, 2),
        "driver_cpu_us_per_row": round(1e6 * meter.driver_cpu_s / rows, 2),
        "workers_cpu_us_per_row": round(1e6 * meter.workers_cpu_s / rows, 2),
        "cuts": progress.cuts - cuts,
        "row_bytes": round(sum(len(row.value) for row in recorded_rows) / len(recorded_rows)),
        "sorter_peak_mb": round(meter.peak_mb),
    }


def _name(text: str) -> dict[str, str]:
    return {"O": text, "L": text}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or one of its processes; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="that are measured")
    parser.add_argument("--protocol", nargs="+", default=PROTOCOLS)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--sink", action="append", default=[], help="more of the sink URI, as key=value")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="-")
    parser.add_argument("--schema-registry", default="")
    parser.add_argument("--role", choices=["bench", "puller", "sorter"], default="bench", help=argparse.SUPPRESS)
    parser.add_argument("--ddl-end", type=int, default=0, help=argparse.SUPPRESS)
    for name in ("--pd", "--upstream", "--folder"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    if options.role == "puller":
        pull(options.pd, given, options.upstream, options.ddl_end)
        return 0
    if options.role == "sorter":
        sort(options, given)
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        LocalStack(data=Path(folder) / "stack", given=given, say=lambda text: print(text, file=sys.stderr)) as stack,
    ):
        for protocol in options.protocol:
            print(json.dumps(measure(options, protocol, stack.addresses, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
