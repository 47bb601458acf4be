"""A sorter is stopped with records in its client, loses its lock, and goes on behind what its heir has written."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.fence import PartitionFence
from consumers.processors.core.flow_book import FlowBrokenError
from schemas.ids import Ts
from schemas.nodes.changefeed import decode_changefeed_info
from schemas.sink.topic import sink_topic
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, sbtest1_changes

pytestmark = pytest.mark.skipif("NIGHTLY_CLUSTER" not in os.environ, reason="takes half a minute: `make nightly`")

ROWS = 100
WAIT_S = 240.0
FIRST_TS, SECOND_TS, THIRD_TS = START_TS + 2_000, START_TS + 5_000, START_TS + 8_000
STOPPED_WITH_A_CUT_IN_ITS_CLIENT = f"""
import os, signal
from sorters.cut.sink_writer import SinkWriter
write = SinkWriter.write
def stopped(self, records, fence, note):
    write(self, records, fence, note)
    if int.from_bytes(records.column("position")[0].as_py()[:8], "big") > {FIRST_TS}:
        os.kill(os.getpid(), signal.SIGSTOP)
        self._producer.flush(60)
SinkWriter.write = stopped
"""


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def late_records(records: list[SinkRecord]) -> int:
    newest, late = dict[int, bytes](), 0
    for record in records:
        late += record.fence < newest.get(record.partition, b"")
        newest[record.partition] = max(record.fence, newest.get(record.partition, b""))
    return late


def applied(records: list[SinkRecord]) -> tuple[list[int], set[Ts]]:
    """Return what a processor applies that is behind: commit_ts of rows, and how far partitions are in the end."""
    queues = dict[int, PartitionQueue]()
    for record in records:
        queue = queues.setdefault(record.partition, PartitionQueue(record.partition, start_position(Ts(START_TS)), 0))
        value = record.value or b""
        queue.feed(position=record.position, offset=record.offset, key=record.key, value=value, fence=record.fence)
    rows = list[int]()
    for queue in queues.values():
        while (claim := queue.claim(64, bytes_max=1 << 20)) is not None:
            rows += [row.commit_ts for _, row in claim.rows]
            queue.arrived()
    return rows, {queue.applied_ts for queue in queues.values()}


def test_sorter_that_goes_on_without_its_lock_makes_no_processor_forget_rows(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_log, feed = RawLog(stack.kafka, fresh_name("up")), fresh_name("feed")
    raw_log.snapshot([recorded("sbtest1")[0]])
    first = Sorter(stack.kafka, stack.zookeeper, tmp_path / "first", feed, trouble=STOPPED_WITH_A_CUT_IN_ITS_CLIENT)
    heir = Sorter(stack.kafka, stack.zookeeper, tmp_path / "heir", feed)
    try:
        first.create(raw_log.upstream, "mysql://root@127.0.0.1:1/", start_ts=START_TS)
        topic = sink_topic(decode_changefeed_info(first.client.get(first.paths.changefeed_info("default", feed))[0]))
        raw_log.rows(114, sbtest1_changes(ROWS, START_TS + 1))
        raw_log.advance(FIRST_TS)
        first.start()
        first.wait_checkpoint(FIRST_TS)
        assert first.process is not None
        raw_log.rows(114, sbtest1_changes(ROWS, FIRST_TS + 1, ROWS))
        raw_log.advance(SECOND_TS)
        eventually(lambda: is_stopped(first.process.pid))  # type: ignore[union-attr]
        heir.start()
        heir.wait_checkpoint(SECOND_TS)
        raw_log.rows(114, sbtest1_changes(ROWS, SECOND_TS + 1, 2 * ROWS))
        raw_log.advance(THIRD_TS)
        heir.wait_checkpoint(THIRD_TS)
        assert late_records(read_topic(stack.kafka, topic)) == 0
        first.process.send_signal(signal.SIGCONT)
        eventually(lambda: late_records(read_topic(stack.kafka, topic)) > 1)
    finally:
        first.close()
        heir.close()
    records = read_topic(stack.kafka, topic)
    rows, reached = applied(records)
    assert len(rows) == len(set(rows)) == 3 * ROWS
    assert rows == sorted(rows)
    assert reached == {THIRD_TS}
    with monkeypatch.context() as patched:
        patched.setattr(PartitionFence, "passes", lambda *_, **__: True)
        try:
            rows, _ = applied(records)
        except FlowBrokenError:
            return
        assert len(rows) < 3 * ROWS, "without fences rows are forgotten"
