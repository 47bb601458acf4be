"""MB/s of a storage sink's processor, from its topic in Kafka to files on disk, beside a plain write of the same bytes.

``python -m tests.bench.sinks.storage_write`` prints one JSON line. The plain write takes the lines, all in memory, and
writes files of the same size one after the other, each flushed to the disk as the sink's are; reading the topic,
telling repeats and noting places is what the sink has to do more. ``ratio`` is of wall times in one run;
``cpu_s_per_gb`` is the process's CPU time, librdkafka's threads included.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from compose.stack.local import LocalStack
from consumers.processors.core.storage.paths import PathForm
from consumers.processors.sink_source import KafkaSource
from consumers.processors.storage.begin import FilesLead, FilesShare
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import LocalStore
from edges.kafka.access import KafkaAccess
from schemas.ids import Ts
from schemas.sink.position import POSITION_HEADER, Position, PositionClass, RowOp
from schemas.sink.storage_rows import FolderForm, encode_folder
from tests.support.rawlog.raw_log import create_topic
from tests.support.topics.storage_share import WholeStorage

LINE_BYTES = 200
ROWS_PER_MESSAGE = 4096
TABLES = 8
PARTITIONS = 4
MIB = 1 << 20
FILE_BYTES = 64 * MIB


def main() -> int:
    """Write the topic, then both ways to disk; print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of lines")
    mib = parser.parse_args().mib
    with tempfile.TemporaryDirectory() as folder, LocalStack(data=Path(folder) / "stack", say=_say) as stack:
        messages = mib * MIB // (LINE_BYTES * ROWS_PER_MESSAGE)
        _fill(stack.addresses.kafka, messages)
        sink_s, cpu_s, size = _by_sink(stack.addresses.kafka, Path(folder) / "sink", messages * ROWS_PER_MESSAGE)
        plain_s = _plainly(Path(folder) / "plain", size)
    figure = {
        "bench": "storage_write",
        "mib": round(size / MIB),
        "mib_per_s": round(size / MIB / sink_s, 1),
        "plain_mib_per_s": round(size / MIB / plain_s, 1),
        "ratio": round(plain_s / sink_s, 3),
        "rows_per_s": round(size / LINE_BYTES / sink_s),
        "cpu_s_per_gb": round(cpu_s / (size / 1e9), 2),
    }
    print(json.dumps(figure), flush=True)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _line(number: int) -> bytes:
    return (b'"I","sbtest","bench",%d,' % number).ljust(LINE_BYTES - 3, b"x") + b'"\r\n'


def _fill(kafka: str, messages: int) -> None:
    create_topic(kafka, "storage", PARTITIONS, {"max.message.bytes": str(16 * MIB)})
    # Idempotence keeps the order: a batch that is sent again would come late, and readers drop what comes late.
    settings = {"compression.type": "lz4", "message.max.bytes": 16 * MIB, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": kafka, **settings})
    lines = b"".join(_line(number) for number in range(ROWS_PER_MESSAGE))
    for number in range(messages):
        partition, ts = number % PARTITIONS, 100 + number
        folder = encode_folder(FolderForm("bench", f"t{number % TABLES}", Ts(1)))
        keys = [b"%014d" % (number * ROWS_PER_MESSAGE + row) for row in range(ROWS_PER_MESSAGE)]
        head = ts.to_bytes(8, "big") + (ts - 1).to_bytes(8, "big") + b"\x03"
        head += (14).to_bytes(4, "big") + LINE_BYTES.to_bytes(4, "big")
        value = head * ROWS_PER_MESSAGE + b"".join(keys) + lines
        position = Position(Ts(ts), PositionClass.ROW, Ts(ts - 1), RowOp.INSERT, keys[-1]).encode()
        _produce(producer, partition, folder, value, position)
    for partition in range(PARTITIONS):
        end = Position(Ts(100 + messages), PositionClass.WATERMARK).encode()
        _produce(producer, partition, None, b"{}", end)
    if producer.flush(120) != 0:
        raise RuntimeError("Kafka has not taken the topic")


def _produce(producer: Producer, partition: int, key: bytes | None, value: bytes, position: bytes) -> None:
    while True:
        try:
            producer.produce("storage", value, key, partition, headers=[(POSITION_HEADER, position)])
            return
        except BufferError:
            producer.poll(0.1)


def _by_sink(kafka: str, root: Path, rows: int) -> tuple[float, float, int]:
    settings = StorageSettings(
        changefeed="bench", paths=PathForm(extension="csv"), start_ts=Ts(1), file_bytes_max=FILE_BYTES
    )
    store = LocalStore(root)
    began_at, cpu_at = time.monotonic(), time.process_time()
    source = KafkaSource(KafkaAccess(kafka), "storage", "storage-bench")
    run = StorageRun(source, store, settings)
    whole = WholeStorage(FilesShare(run), FilesLead(run), source.partitions())
    taken = 0
    while taken < rows:
        whole.turn()
        taken = run.rows_total + sum(
            lines.rows for lines_of in run.partitions.values() for _, lines in lines_of.waiting()
        )
    whole.finish()
    run.close()
    source.close()
    assert run.rows_total == rows
    took = time.monotonic() - began_at, time.process_time() - cpu_at
    return *took, sum(path.stat().st_size for path in root.rglob("*.csv"))


def _plainly(root: Path, size: int) -> float:
    root.mkdir()
    content = b"".join(_line(number) for number in range(ROWS_PER_MESSAGE))
    content = content * (FILE_BYTES // len(content))
    began_at = time.monotonic()
    for number in range(size // len(content)):
        with (root / f"{number}").open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return (time.monotonic() - began_at) * size / (size // len(content) * len(content))


if __name__ == "__main__":
    sys.exit(main())
