"""Reads a changefeed's topic in a process of its own: what another reader works on then delays no arrival here.

A line of standard input is an order, each is answered by a line of JSON: ``tell`` for what has come so far, ``take``
for that with the changes since the last ``take``. It waits for its topic, and ends when its standard input does.
"""

import argparse
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from schemas.ids import Ts, physical_ms
from schemas.sink.position import POSITION_HEADER, PositionClass
from tests.bench.rig.module_process import module_process

_MESSAGES = 1_000
"""That are taken at once: the last of them counts as come when the first does."""
_WAIT_S = 0.02
_HEAD = np.dtype([("commit_ts", ">u8"), ("class", "u1"), ("start_ts", ">u8"), ("op", "u1")])
"""Of a position (docs/formats/position.md)."""


@dataclass(slots=True)
class Read:
    """What a reader has of its topic."""

    image_rows: int = 0
    first_at_s: float = 0.0
    """The first image row, Unix time; 0: none has come."""
    last_at_s: float = 0.0
    newest_lag_s: float = float("inf")
    """Of the newest change, from commit_ts to here."""
    lags_s: list[float] = field(default_factory=list)
    """Of changes since the last ``take``; empty in what ``tell`` answers."""
    produced: list[tuple[int, float]] = field(default_factory=list)
    """Of the same changes: commit_ts, and when the sorter sent the message, in Unix time."""

    def add(self, messages: list[Any], arrived_s: float) -> None:
        """Take messages that have come; rows of images, which come in floods, cost little of the machine's CPU."""
        if not messages:
            return
        heads = b"".join(dict(message.headers())[POSITION_HEADER][: _HEAD.itemsize] for message in messages)
        positions = np.frombuffer(heads, _HEAD)
        is_row = positions["class"] == PositionClass.ROW
        is_image = is_row & (positions["commit_ts"] == positions["start_ts"])
        images = int(is_image.sum())
        if images:
            self.first_at_s = self.first_at_s or arrived_s
            self.image_rows, self.last_at_s = self.image_rows + images, arrived_s
        for at in np.flatnonzero(is_row & ~is_image).tolist():
            commit_ts = int(positions["commit_ts"][at])
            self.newest_lag_s = arrived_s - physical_ms(Ts(commit_ts)) / 1000
            self.lags_s.append(self.newest_lag_s)
            self.produced.append((commit_ts, messages[at].timestamp()[1] / 1000))


class TopicReader:
    """The process, as the bench sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self) -> Read:
        """Return what has come, without the changes."""
        return self._order("tell")

    def take(self) -> Read:
        """Return what has come, with the changes since the last call."""
        return self._order("take")

    def _order(self, order: str) -> Read:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the reader has ended")
        return Read(**json.loads(line))


@contextmanager
def topic_reader(kafka: str, topic: str, partitions: int) -> Iterator[TopicReader]:
    """Yield a reader of a topic from its beginning."""
    with module_process(["tests.bench.rig.topic_reader", kafka, topic, str(partitions)]) as process:
        yield TopicReader(process)


def serve(kafka: str, topic: str, partitions: int) -> None:
    """Read until standard input ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    read = Read()
    is_assigned = False
    while True:
        if is_assigned:
            messages: list[Any] = consumer.consume(_MESSAGES, timeout=_WAIT_S)
            read.add(messages, time.time())
        elif topic in consumer.list_topics(timeout=10).topics:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
            is_assigned = True
        if not select.select([sys.stdin], [], [], 0 if is_assigned else 0.2)[0]:
            continue
        order = sys.stdin.readline().strip()
        if not order:
            break
        answer = read if order == "take" else replace(read, lags_s=[], produced=[])
        print(json.dumps(asdict(answer)), flush=True)
        if answer is read:
            read.lags_s, read.produced = [], []
    consumer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kafka")
    parser.add_argument("topic")
    parser.add_argument("partitions", type=int)
    options = parser.parse_args()
    serve(options.kafka, options.topic, options.partitions)
