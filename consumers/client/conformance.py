"""Tries a consumer of a changefeed's canal-json topics against streams that are lawful and hard.

A sorter that is killed writes its last batch again, from the beginning of the batch or from the middle; Kafka hands a
consumer that has crashed the same records again; partitions run ahead of each other; an operator resumes a changefeed
with an older checkpoint, so that rows and watermarks of long ago come again. A right consumer ends with exactly what
the upstream holds, at every watermark that it says it has reached, and after each of its own crashes.

    from consumers.client.conformance import check_consumer
    assert check_consumer(lambda partitions: MyConsumer(partitions), seeds=range(500)) == []

Messages are written here by ``json.dumps``, with nothing of the sorter's encoders.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from consumers.client.core.partition import PartitionKey, StreamRecord
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp

TOPIC = "conformance"
RowKey = tuple[str, str]
"""Table and primary key, as text."""
Contents = Mapping[RowKey, str]
"""Of each row its column ``v``."""


class ConsumerUnderTest(Protocol):
    """What the kit needs of a consumer: a thin wrapper around yours.

    What it has applied (the destination) survives :meth:`crash`, together with whatever it keeps there; all else does
    not.
    """

    def feed(self, record: StreamRecord) -> None:
        """Take the next record of its partition: topic, partition, offset, key, value and position header."""

    def crash(self) -> Mapping[PartitionKey, int]:
        """Lose all memory, and return the offsets to go on from; a partition that is not named begins at 0."""

    def shown(self) -> tuple[int, Contents]:
        """Return a ts and the destination's rows as of that ts."""


@dataclass(frozen=True, slots=True)
class Violation:
    """How a consumer broke, and by which seed it does so again."""

    seed: int
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class ExampleStream:
    """What the kit feeds by one seed, to be written to a real Kafka: offsets are those of empty partitions."""

    logs: Mapping[PartitionKey, list[StreamRecord]]
    last_ts: int
    """The last watermark's, and every partition has it."""
    contents: Callable[[int], Contents]
    """The upstream's rows as of a ts."""


@dataclass(frozen=True, slots=True)
class _Change:
    commit_ts: int
    start_ts: int
    op: str
    table: str
    pk: int
    value: str

    @property
    def row_key(self) -> RowKey:
        return self.table, str(self.pk)


def check_consumer(
    make: Callable[[Sequence[PartitionKey]], ConsumerUnderTest], seeds: Iterable[int]
) -> list[Violation]:
    """Return how consumers break, at most once a seed; the empty list is a pass.

    ``make`` is given the partitions that a stream has, and makes a consumer with an empty destination.
    """
    violations = (_try(make, seed) for seed in seeds)
    return [violation for violation in violations if violation is not None]


def example_stream(seed: int) -> ExampleStream:
    """Return the stream of a seed."""
    return _example(Random(seed))  # noqa: S311  a seed must give the same stream again


def _example(rng: Random) -> ExampleStream:
    history = _history(rng)
    last_ts = max(change.commit_ts for change in history)
    return ExampleStream(_logs(rng, history), last_ts, lambda ts: _contents(history, ts))


def _try(make: Callable[[Sequence[PartitionKey]], ConsumerUnderTest], seed: int) -> Violation | None:
    rng = Random(seed)  # noqa: S311  a seed must give the same stream again
    stream = _example(rng)
    logs, last_ts = stream.logs, stream.last_ts
    consumer = make(tuple(logs))
    at = dict.fromkeys(logs, 0)
    reached, step, crashes = 0, 0, rng.randrange(4)
    while True:
        ready = [partition for partition, log in logs.items() if at[partition] < len(log)]
        if not ready:
            break
        step += 1
        partition = rng.choice(ready)
        for _ in range(min(rng.randint(1, 6), len(logs[partition]) - at[partition])):
            consumer.feed(logs[partition][at[partition]])
            at[partition] += 1
        if crashes and rng.random() < 0.05:
            crashes -= 1
            offsets = consumer.crash()
            at = {partition: offsets.get(partition, 0) for partition in logs}
        ts, contents = consumer.shown()
        if ts < reached:
            return Violation(seed, step, f"went back from {reached} to {ts}")
        reached = ts
        if (text := _difference(contents, stream.contents(ts))) is not None:
            return Violation(seed, step, f"at ts {ts}: {text}")
    if reached < last_ts:
        return Violation(seed, step, f"reached {reached} only; the last watermark is at or above {last_ts}")
    return None


def _history(rng: Random) -> list[_Change]:
    """Return what an upstream did: transactions over two tables, some sharing a commit_ts."""
    rows: dict[RowKey, str] = {}
    history: list[_Change] = []
    ts = 100
    for number in range(rng.randint(5, 60)):
        ts += rng.choice((0, 1, 1, 7)) if history else 0
        start_ts, touched = ts - rng.randint(1, 40) + number, set[RowKey]()
        start_ts = min(start_ts, ts - 1)
        changes = []
        for _ in range(rng.randint(1, 4)):
            table, pk = rng.choice(("a", "b")), rng.randrange(6)
            key = table, str(pk)
            if key in touched or any(c.commit_ts == ts and c.row_key == key for c in history):
                continue
            touched.add(key)
            op = rng.choice(("UPDATE", "DELETE")) if key in rows else "INSERT"
            changes.append(_Change(ts, start_ts, op, table, pk, f"{number}"))
        for change in changes:
            if change.op == "DELETE":
                rows.pop(change.row_key, None)
            else:
                rows[change.row_key] = change.value
        history += changes
    return history


def _contents(history: list[_Change], ts: int) -> dict[RowKey, str]:
    rows: dict[RowKey, str] = {}
    for change in history:
        if change.commit_ts > ts:
            continue
        if change.op == "DELETE":
            rows.pop(change.row_key, None)
        else:
            rows[change.row_key] = change.value
    return rows


def _difference(shown: Contents, wanted: Contents) -> str | None:
    for key in shown.keys() | wanted.keys():
        if shown.get(key) != wanted.get(key):
            return f"row {key} is {shown.get(key)!r} instead of {wanted.get(key)!r}"
    return None


def _logs(rng: Random, history: list[_Change]) -> dict[PartitionKey, list[StreamRecord]]:
    """Write the history into partitions in batches, some of which are written again from anywhere in them."""
    partitions = [PartitionKey(TOPIC, number) for number in range(rng.randint(1, 4))]
    home = {change.row_key: rng.choice(partitions) for change in history}
    logs: dict[PartitionKey, list[StreamRecord]] = {partition: [] for partition in partitions}
    ends = sorted({change.commit_ts for change in history if rng.random() < 0.3} | {max(c.commit_ts for c in history)})
    last = 0
    written: dict[PartitionKey, list[list[StreamRecord]]] = {partition: [] for partition in partitions}
    for end in ends:
        batch = [change for change in history if last < change.commit_ts <= end]
        for partition in partitions:
            mine = sorted((_row(partition, c) for c in batch if home[c.row_key] == partition), key=lambda r: r.position)
            mine.append(_watermark(partition, end))
            written[partition].append(mine)
            _write(rng, logs[partition], mine)
            if rng.random() < 0.1:
                # An operator has resumed the changefeed with an older checkpoint.
                for again in written[partition][rng.randrange(len(written[partition])) :]:
                    _write(rng, logs[partition], again)
        last = end
    return logs


def _write(rng: Random, log: list[StreamRecord], batch: list[StreamRecord]) -> None:
    """Append a batch: its attempts break off anywhere and begin anew, until one comes to the end."""
    while rng.random() < 0.35:
        _append(log, batch[: rng.randint(0, len(batch))])
    _append(log, batch)
    while rng.random() < 0.25:
        # Killed after the write and before it was noted: the whole batch again.
        _append(log, batch)


def _append(log: list[StreamRecord], records: list[StreamRecord]) -> None:
    log += [
        StreamRecord(record.topic_partition, len(log) + number, record.key, record.value, record.position)
        for number, record in enumerate(records)
    ]


def _row(partition: PartitionKey, change: _Change) -> StreamRecord:
    value = _message(
        change.op,
        database="test",
        table=change.table,
        pkNames=["id"],
        isDdl=False,
        mysqlType={"id": "int", "v": "varchar"},
        data=[{"id": str(change.pk), "v": change.value}],
        _tidb={"commitTs": change.commit_ts},
    )
    ops = {"DELETE": RowOp.DELETE, "UPDATE": RowOp.UPDATE, "INSERT": RowOp.INSERT}
    key = f"{change.table}/{change.pk}".encode()
    position = Position(Ts(change.commit_ts), PositionClass.ROW, Ts(change.start_ts), ops[change.op], key)
    return StreamRecord(partition, 0, None, value, position.encode())


def _watermark(partition: PartitionKey, ts: int) -> StreamRecord:
    value = _message("TIDB_WATERMARK", isDdl=False, _tidb={"watermarkTs": ts})
    return StreamRecord(partition, 0, None, value, Position(Ts(ts), PositionClass.WATERMARK).encode())


def _message(kind: str, **fields: object) -> bytes:
    empty = {"id": 0, "database": "", "table": "", "pkNames": None, "sql": "", "old": None, "data": None}
    return json.dumps({**empty, **fields, "type": kind}).encode()
