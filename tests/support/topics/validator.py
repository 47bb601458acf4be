"""The promises of an output topic as objects (after cockroach's ``cdctest/validator.go``): fed record by record.

``Validator.note(record)``, or ``note_all(records)``, in the order in which a consumer reads each partition;
``failures()`` says what was broken, at any time; ``finish(…)`` judges what only the end can tell. None of it uses code
of the sorters: order is checked by the position header *and* by what the messages themselves say.
"""

import gc
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from schemas.sink.position import Position, PositionClass, RowOp, decode_position
from tests.support.topics.messages import Decoder, Message, TopicRecord

FAILURES_MAX = 20
"""Enough to see a pattern; a broken stream breaks at every record."""

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Noted:
    """A record, what it says and where it stands."""

    record: TopicRecord
    message: Message
    position: Position

    @property
    def partition(self) -> Partition:
        return self.record.topic, self.record.partition

    def __str__(self) -> str:
        at = self.record
        return f"{at.topic}[{at.partition}]@{at.offset} {self.message.kind} {self.message.op} {self.position}"


class Promise(Protocol):
    """One promise, and how it was broken."""

    broken: list[str]

    def note(self, noted: Noted) -> None: ...


@dataclass
class HeaderAgrees:
    """The position header says what the message says: kind, commit_ts, delete before put."""

    broken: list[str] = field(default_factory=list)

    def note(self, noted: Noted) -> None:
        message, position = noted.message, noted.position
        if message.kind != position.position_class.name.lower():
            self.broken.append(f"{noted}: header has another class")
        if message.commit_ts is not None and message.commit_ts != position.commit_ts:
            self.broken.append(f"{noted}: header has another commit_ts than {message.commit_ts}")
        if message.kind == "row":
            if (message.op == "delete") != (position.op is RowOp.DELETE):
                self.broken.append(f"{noted}: header has another op")
            if not 0 < position.start_ts < position.commit_ts:
                self.broken.append(f"{noted}: start_ts is not below commit_ts")


@dataclass
class OrderHolds:
    """Per partition (commit_ts, rows then DDL then watermark, start_ts, delete first), across tables, repeats excepted.

    A repeat goes back to a record that stood before and then has exactly the records that followed it, in the same
    order; it may itself break off and go back again, never skip.
    """

    broken: list[str] = field(default_factory=list)
    repeats: int = 0
    _history: dict[Partition, list[tuple[Position, bytes]]] = field(default_factory=lambda: defaultdict(list))
    _index: dict[Partition, dict[tuple[Position, bytes], int]] = field(default_factory=lambda: defaultdict(dict))
    _next: dict[Partition, int] = field(default_factory=lambda: defaultdict(int))

    def note(self, noted: Noted) -> None:
        at = noted.partition
        history, index, here = self._history[at], self._index[at], self._next[at]
        item = noted.position, noted.message.identity
        if here == len(history):
            if item not in index and (not history or _order(noted.position) >= _order(history[-1][0])):
                index[item] = here
                history.append(item)
                self._next[at] = here + 1
                return
        elif history[here] == item:
            self.repeats += 1
            self._next[at] = here + 1
            return
        before = index.get(item)
        if before is None:
            self.broken.append(f"{noted}: out of order and no repeat, after {history[here - 1][0]}")
        elif before > here:
            self.broken.append(f"{noted}: a repeat left out {before - here} records")
        self.repeats += 1
        self._next[at] = here if before is None else before + 1


@dataclass
class WatermarkHolds:
    """Per partition: nothing new at or below a watermark that stood before."""

    broken: list[str] = field(default_factory=list)
    highest: dict[Partition, int] = field(default_factory=dict)
    _seen: dict[Partition, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def note(self, noted: Noted) -> None:
        at, message = noted.partition, noted.message
        commit_ts = noted.position.commit_ts if message.commit_ts is None else message.commit_ts
        identity = message.identity + noted.position.encode()
        mark = self.highest.get(at, -1)
        if commit_ts <= mark and identity not in self._seen[at]:
            self.broken.append(f"{noted}: new, but at or below the watermark {mark}")
        self._seen[at].add(identity)
        if message.kind == "watermark":
            self.highest[at] = max(mark, commit_ts)


@dataclass(frozen=True, slots=True)
class UpstreamChange:
    """One change that the upstream made and this changefeed replicates."""

    commit_ts: int
    start_ts: int
    key: bytes
    """The raw TiKV key."""
    op: str
    name: str
    """``schema.table`` at that time."""


@dataclass
class Complete:
    """Every change up to the watermark is there, on one partition only, and nothing that the upstream did not make."""

    upstream: Mapping[tuple[int, int, bytes], UpstreamChange]
    broken: list[str] = field(default_factory=list)
    _seen: dict[tuple[int, int, bytes], set[str]] = field(default_factory=lambda: defaultdict(set))
    _where: dict[tuple[int, int, bytes, str], Partition] = field(default_factory=dict)

    def note(self, noted: Noted) -> None:
        if noted.message.kind != "row":
            return
        position = noted.position
        identity = (int(position.commit_ts), int(position.start_ts), position.key)
        change = self.upstream.get(identity)
        op = noted.message.op
        if change is None:
            self.broken.append(f"{noted}: the upstream has no such change")
        elif change.name != noted.message.name:
            self.broken.append(f"{noted}: it is a change of {change.name}")
        elif op != change.op and not (change.op == "update" and op in ("insert", "delete")):
            self.broken.append(f"{noted}: the upstream's change was {change.op}")
        elif self._where.setdefault((*identity, op), noted.partition) != noted.partition:
            self.broken.append(f"{noted}: stood in {self._where[(*identity, op)]} before")
        self._seen[identity].add(op)

    def finish(self, watermark: int) -> None:
        """Judge completeness at ``watermark``: the least of all partitions' highest ones."""
        for identity, change in self.upstream.items():
            ops = self._seen.get(identity, set())
            whole = change.op in ops or (change.op == "update" and ops == {"insert", "delete"})
            if change.commit_ts <= watermark and not whole:
                self.broken.append(f"lost {change}, watermark {watermark}, seen {sorted(ops)}")


class Validator:
    """All promises together."""

    def __init__(self, decode: Decoder, upstream: Iterable[UpstreamChange] | None = None) -> None:
        self._decode = decode
        self.order, self.watermark = OrderHolds(), WatermarkHolds()
        self.complete: Complete | None = None
        self.promises: list[Promise] = [HeaderAgrees(), self.order, self.watermark]
        if upstream is not None:
            self.complete = Complete({(c.commit_ts, c.start_ts, c.key): c for c in upstream})
            self.promises.append(self.complete)
        self.noted: list[Noted] = []
        self.partitions: set[Partition] = set()

    def note(self, record: TopicRecord) -> None:
        """Take the next record of its partition."""
        if record.position is None:
            raise AssertionError(f"{record.topic}[{record.partition}]@{record.offset} has no position header")
        noted = Noted(record, self._decode(record), decode_position(record.position))
        self.noted.append(noted)
        self.partitions.add(noted.partition)
        for promise in self.promises:
            if len(promise.broken) < FAILURES_MAX:
                promise.note(noted)

    def note_all(self, records: Iterable[TopicRecord]) -> None:
        """Take records that come one after the other. Python's collector rests meanwhile: all that is made is kept, and
        a third of the time went into looking at it again and again.
        """
        was_on = gc.isenabled()
        gc.disable()
        try:
            for record in records:
                self.note(record)
        finally:
            if was_on:
                gc.enable()

    def finish(self, *, need_watermark: int | None = None, watermarks: bool = True) -> list[str]:
        """Return all failures; ``need_watermark`` is one that every partition must have reached.

        ``watermarks=False`` is for protocols without them: then ``need_watermark`` is the changefeed's checkpoint.
        """
        reached = min((self.watermark.highest.get(at, -1) for at in self.partitions), default=-1)
        if not watermarks:
            assert need_watermark is not None
            reached = need_watermark
        elif need_watermark is not None and reached < need_watermark:
            late = {at for at in self.partitions if self.watermark.highest.get(at, -1) < need_watermark}
            self.order.broken.append(f"watermark {need_watermark} is missing on {sorted(late)[:5]}")
        if self.complete is not None:
            self.complete.finish(reached)
        return self.failures()

    def failures(self) -> list[str]:
        """Return what was broken so far."""
        return [f"{type(promise).__name__}: {text}" for promise in self.promises for text in promise.broken]

    def distinct(self) -> list[Noted]:
        """Return the records without repeats, in order of their positions: what :mod:`materialise` takes."""
        once = {(noted.position, noted.message.identity): noted for noted in reversed(self.noted)}
        return sorted(once.values(), key=lambda noted: noted.position)


# The promise itself, written out: rows before DDL before watermark; delete before put within a transaction.
_RANKS = {PositionClass.ROW: 0, PositionClass.DDL: 1, PositionClass.WATERMARK: 2}


def _order(position: Position) -> tuple[int, int, int, bool]:
    return position.commit_ts, _RANKS[position.position_class], position.start_ts, position.op is not RowOp.DELETE
