"""Real processes of ``tidebus processor`` for one changefeed without a sorter, and what ZooKeeper says of them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from kazoo.exceptions import NoNodeError

from compose.stack.local import Addresses
from consumers.control.changefeeds.processor_nodes import Share, decode_shares
from consumers.processors.board import ProcessorBoard
from consumers.processors.sink_source import SinkRecord
from edges.zookeeper.session import Session
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from schemas.sink.position import POSITION_HEADER
from schemas.sink.topic import sink_topic
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import growing_pauses
from tests.support.rawlog.raw_log import create_topic

PATIENCE_S = 240.0
Process = subprocess.Popen[bytes]


@dataclass
class Processors:
    """Of one changefeed, which has a cluster of its own; the test writes its topic."""

    addresses: Addresses
    info: ChangefeedInfo
    partitions: int
    log_file: Path
    session: Session
    running: list[Process] = field(default_factory=list)

    def start(self) -> Process:
        name = self.info.changefeed_id
        command = [sys.executable, "-m", "compose.cli", "processor", "--changefeed", name, "--cluster", name]
        command += ["--kafka", self.addresses.kafka, "--zookeeper", self.addresses.zookeeper]
        with self.log_file.open("ab") as log:
            command += ["--capture", str(len(self.running))]
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.running[-1]

    def of(self, share: Share) -> Process:
        return self.running[int(share.capture)]

    def produce(self, records: list[SinkRecord]) -> None:
        producer = Producer({"bootstrap.servers": self.addresses.kafka, "linger.ms": 5, "enable.idempotence": True})
        for record in records:
            headers: dict[str, str | bytes | None] = {POSITION_HEADER: record.position}
            producer.produce(sink_topic(self.info), record.value, record.key, record.partition, headers=headers)
        assert producer.flush(60) == 0

    def shares(self) -> list[Share]:
        path = ZkPaths(self.info.changefeed_id).changefeed_processors("default", self.info.changefeed_id)
        try:
            return decode_shares(self.session.client.get(path)[0])
        except NoNodeError:  # no processor has begun
            return []

    def applied_ts(self) -> int:
        name = self.info.changefeed_id
        status = ProcessorBoard(self.session, ZkPaths(name), "default", name).read()
        return 0 if status is None or status.applied is None else status.applied.checkpoint_ts

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline, pauses = time.monotonic() + PATIENCE_S, growing_pauses()
        while not condition():
            assert time.monotonic() < deadline, self.log_file.read_text(errors="replace")[-6000:]
            time.sleep(next(pauses))

    def wait_applied(self, ts: int) -> None:
        self.wait(lambda: self.applied_ts() >= ts)

    def wait_spread(self, *processes: Process) -> list[Share]:
        """Wait until these have all partitions, in equal shares; return the leader's first."""

        def spread() -> bool:
            shares = self.shares()
            return (
                sorted(self.of(share).pid for share in shares) == sorted(process.pid for process in processes)
                and sorted(part for share in shares for part in share.partitions) == list(range(self.partitions))
                and all(len(share.partitions) == self.partitions // len(processes) for share in shares)
            )

        self.wait(spread)
        return sorted(self.shares(), key=lambda share: not share.is_leader)


@contextmanager
def processors_of(addresses: Addresses, info: ChangefeedInfo, partitions: int, log_file: Path) -> Iterator[Processors]:
    """Create the changefeed and its topic; no process is left behind."""
    create_topic(addresses.kafka, sink_topic(info), partitions)
    with lasting_session(addresses.zookeeper_access) as session:
        path = ZkPaths(info.changefeed_id).changefeed_info("default", info.changefeed_id)
        session.client.create(path, encode_changefeed_info(info), makepath=True)
        processors = Processors(addresses, info, partitions, log_file, session)
        try:
            yield processors
        finally:
            for process in processors.running:
                process.kill()
                process.wait()
