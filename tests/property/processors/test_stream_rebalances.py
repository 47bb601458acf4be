"""The pure reader of a changefeed's topics while partitions come and go: a world of topics that come into being, and a
group whose members are taken all partitions at each change and given some back; and readers that err there.

What is shown is held against the upstream's own history; a destination refuses a change that comes twice.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.core.stream import ReadPosition, Released, StreamReader
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp

SEEDS, SEEDS_FOR_ERRORS = range(120), range(60)
MUCH, LITTLE = 1 << 30, 300
Contents = dict[tuple[str, int], int]
NOTHING = ReadPosition(-1, Ts(0))


class WrongError(Exception):
    """What a reader's user must not see."""


@dataclass(frozen=True)
class Change:
    ts: int
    table: str
    pk: int
    value: int | None
    """None: deleted."""


@dataclass
class Upstream:
    """What happened, and the topics that a sorter has written of it, two partitions a table."""

    rng: Random
    ts: int = 100
    history: list[Change] = field(default_factory=list)
    rows: Contents = field(default_factory=dict)
    logs: dict[PartitionKey, list[StreamRecord]] = field(default_factory=dict)
    written_ts: int = 100

    def happen(self) -> None:
        tables = sorted({key.topic for key in self.logs})
        for _ in range(self.rng.randint(0, 6)):
            self.ts += 1
            table, pk = self.rng.choice(tables), self.rng.randrange(5)
            is_deleted = (table, pk) in self.rows and self.rng.random() < 0.3
            change = Change(self.ts, table, pk, None if is_deleted else self.ts)
            self.history.append(change)
            if is_deleted:
                del self.rows[table, pk]
            else:
                self.rows[table, pk] = self.ts

    def create(self) -> None:
        """Make a table, and its topic."""
        name = f"t{len(self.logs) // 2}"
        self.logs |= {PartitionKey(name, 0): [], PartitionKey(name, 1): []}

    def write(self) -> None:
        """Write an epoch into all topics; at times in two attempts, of which the first broke off."""
        self.ts += 1
        epoch = [change for change in self.history if change.ts > self.written_ts]
        for key in self.logs:
            records = [self._row(key, change) for change in epoch if (change.table, change.pk % 2) == _of(key)]
            records.append(_record(key, b"", Position(Ts(self.ts), PositionClass.WATERMARK)))
            if self.rng.random() < 0.3:
                self._append(key, records[: self.rng.randint(0, len(records))])
            self._append(key, records)
        self.written_ts = self.ts

    def at(self, ts: int, tables: Iterable[str]) -> Contents:
        rows: Contents = {}
        for change in self.history:
            if change.ts <= ts and change.table in tables:
                rows.pop((change.table, change.pk), None)
                if change.value is not None:
                    rows[change.table, change.pk] = change.value
        return rows

    def _append(self, key: PartitionKey, records: list[StreamRecord]) -> None:
        log = self.logs[key]
        log += [
            StreamRecord(key, len(log) + at, None, record.value, record.position) for at, record in enumerate(records)
        ]

    def _row(self, key: PartitionKey, change: Change) -> StreamRecord:
        op = RowOp.DELETE if change.value is None else RowOp.INSERT
        position = Position(Ts(change.ts), PositionClass.ROW, Ts(change.ts - 1), op, b"%d" % change.pk)
        return _record(key, json.dumps([change.ts, change.table, change.pk, change.value]).encode(), position)


def _of(key: PartitionKey) -> tuple[str, int]:
    return key.topic, key.partition


def _record(key: PartitionKey, value: bytes, position: Position) -> StreamRecord:
    return StreamRecord(key, 0, None, value, position.encode())


@dataclass
class Member:
    """One reader of the group, and what it has been handed out."""

    reader: StreamReader
    fetched: dict[PartitionKey, int] = field(default_factory=dict)
    highest_ts: int = 0
    went_back: int = 0


@dataclass
class Group:
    """What a coordinator knows, and the destination that its members write to, one at a time."""

    upstream: Upstream
    kind: type[StreamReader]
    pending_bytes_max: int
    commits: float
    """How often what was applied is committed; members that come and go need 1 for each change to come once."""
    unmade: float = 0.0
    """How often nothing can be made of what is due: the next read tries again, whatever happens in between."""
    members: list[Member] = field(default_factory=list)
    committed: dict[PartitionKey, ReadPosition] = field(default_factory=dict)
    rows: Contents = field(default_factory=dict)
    applied: set[tuple[int, str, int]] = field(default_factory=set)

    def join(self) -> None:
        self.members.append(Member(self.kind(self.pending_bytes_max)))
        self.rebalance()

    def leave(self) -> None:
        """The last member goes, without a word."""
        self.members.pop()
        self.rebalance()

    def throw_out(self) -> None:
        """A member was not heard of for too long; it has not learnt what the others were given meanwhile."""
        member = self.members.pop()
        member.reader.revoke(list(member.reader.partitions))
        self.rebalance()
        for _ in range(self.upstream.rng.randint(0, 40)):
            self.read(self.upstream.rng.choice(self.members), 6)
        self.members.append(member)
        self.rebalance()

    def rebalance(self) -> None:
        """Find topics; take all partitions from everybody, then deal them out."""
        for member in self.members:
            member.reader.revoke(list(member.reader.partitions))
        keys = list(self.upstream.logs)
        self.upstream.rng.shuffle(keys)
        for number, member in enumerate(self.members):
            mine = keys[number :: len(self.members)]
            offsets = member.reader.assign({key: self.committed.get(key, NOTHING) for key in mine})
            member.fetched = {key: max(0, offset) for key, offset in offsets.items()}

    def read(self, member: Member, records: int) -> None:
        ready = [key for key, at in member.fetched.items() if at < len(self.upstream.logs[key])]
        ready = [key for key in ready if key not in member.reader.ahead()]
        if ready:
            key = self.upstream.rng.choice(ready)
            at = member.fetched[key]
            for record in self.upstream.logs[key][at : at + records]:
                member.reader.take(record)
            member.fetched[key] = min(at + records, len(self.upstream.logs[key]))
        while (due := member.reader.due()) is not None and self.upstream.rng.random() >= self.unmade:
            member.reader.release(due)
            self.apply(member, due)

    def apply(self, member: Member, released: Released) -> None:
        for record in released.records:
            ts, table, pk, value = json.loads(record.value or b"")
            if (ts, table, pk) in self.applied:
                raise WrongError(f"{table} {pk} of {ts} came twice")
            self.applied.add((ts, table, pk))
            self.rows.pop((table, pk), None)
            if value is not None:
                self.rows[table, pk] = value
        member.went_back += released.watermark_ts < member.highest_ts
        member.highest_ts = max(member.highest_ts, released.watermark_ts)
        if len(self.members) == 1 and released.watermark_ts == member.highest_ts:
            tables = {key.topic for key in member.reader.partitions}
            if self.rows != self.upstream.at(released.watermark_ts, tables):
                raise WrongError(f"what is shown at {released.watermark_ts} is not what was")
        if self.upstream.rng.random() < self.commits:
            self.committed |= released.positions

    def read_to_the_end(self) -> None:
        for _ in range(10_000):
            if all(member.highest_ts == self.upstream.written_ts for member in self.members if member.fetched):
                break
            for member in self.members:
                self.read(member, 3)
        if self.rows != self.upstream.at(self.upstream.written_ts, {key.topic for key in self.upstream.logs}):
            raise WrongError("what is shown in the end is not what was")


def lived(
    seed: int,
    kind: type[StreamReader],
    *,
    pending_bytes_max: int = MUCH,
    commits: float = 1.0,
    members_max: int = 1,
    unmade: float = 0.0,
) -> int:
    """Let a world go by; return how often a watermark went back."""
    rng = Random(seed)
    upstream = Upstream(rng)
    upstream.create()
    group = Group(upstream, kind, pending_bytes_max, commits, unmade)
    group.join()
    for _ in range(rng.randint(20, 80)):
        dice = rng.random()
        if dice < 0.3:
            upstream.happen()
            upstream.write()
        elif dice < 0.36:
            upstream.create()  # its rows come by and by; the group does not know of it yet
        elif dice < 0.45:
            group.rebalance()
        elif dice < 0.49 and len(group.members) < members_max:
            group.join()
        elif dice < 0.53 and len(group.members) > 1:
            group.leave()
        elif dice < 0.57 and len(group.members) > 1:
            group.throw_out()
        else:
            group.read(rng.choice(group.members), rng.randint(1, 6))
    upstream.write()
    group.rebalance()
    went_back = sum(member.went_back for member in group.members)
    group.read_to_the_end()
    return went_back + sum(member.went_back for member in group.members)


@pytest.mark.parametrize("commits", [0.0, 0.3, 1.0])
def test_alone_in_its_group_each_batch_makes_what_the_upstream_was_and_no_watermark_goes_back(commits: float) -> None:
    assert [lived(seed, StreamReader, commits=commits) for seed in SEEDS] == [0] * len(SEEDS)


def test_members_that_commit_what_they_apply_hand_out_each_change_once_whoever_comes_and_goes() -> None:
    assert [lived(seed, StreamReader, members_max=3) for seed in SEEDS] == [0] * len(SEEDS)


@pytest.mark.parametrize(("members_max", "commits"), [(1, 0.0), (1, 0.3), (3, 1.0)])
def test_batches_that_often_cannot_be_made_lose_no_change_and_bring_none_twice(
    members_max: int, commits: float
) -> None:
    runs = [lived(seed, StreamReader, members_max=members_max, commits=commits, unmade=0.6) for seed in SEEDS]
    assert runs == [0] * len(SEEDS)


def test_with_little_memory_a_watermark_may_go_back_but_what_is_shown_at_the_highest_is_what_was() -> None:
    assert sum(lived(seed, StreamReader, pending_bytes_max=LITTLE, commits=0.3) for seed in SEEDS) > 0


def test_reader_that_is_given_back_a_partition_reads_it_on_and_commits_what_is_pending() -> None:
    key = PartitionKey("t0", 0)
    reader = StreamReader(MUCH)
    assert reader.assign({key: NOTHING}) == {key: -1}
    for offset, (ts, position_class) in enumerate(
        [(5, PositionClass.ROW), (6, PositionClass.WATERMARK), (8, PositionClass.ROW)]
    ):
        reader.take(StreamRecord(key, offset, None, b"", Position(Ts(ts), position_class).encode()))
    assert reader.release() is not None
    reader.revoke([key])
    assert reader.watermark_ts == 0
    assert reader.assign({key: NOTHING}) == {key: 3}
    reader.take(StreamRecord(key, 3, None, b"", Position(Ts(9), PositionClass.WATERMARK).encode()))
    released = reader.release()
    assert released is not None
    assert [record.offset for record in released.records] == [2]
    reader.revoke([key])
    assert reader.assign({key: ReadPosition(7, Ts(20))}) == {key: 7}, "another member has gone further"


class ForgetsWhatIsTaken(StreamReader):
    """Begins each partition anew that it is given back."""

    def revoke(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self.partitions.pop(key, None)


class HandsOutWhatComesLater(StreamReader):
    """Hands out a new topic's rows by that topic's own watermark, though others are further."""

    def due(self) -> Released | None:
        self.released_ts = Ts(0)
        return super().due()


class TrustsItsMemory(StreamReader):
    """Reads on where it stood, though another member has gone further meanwhile."""

    def assign(self, positions: Mapping[PartitionKey, ReadPosition]) -> Mapping[PartitionKey, int]:
        return super().assign(
            {key: NOTHING if key in self._set_aside else position for key, position in positions.items()}
        )


class TrustsWhatIsCommitted(StreamReader):
    """Reads on where it stood from the offset that was committed, as if nothing of it were pending."""

    def assign(self, positions: Mapping[PartitionKey, ReadPosition]) -> Mapping[PartitionKey, int]:
        offsets = super().assign(positions)
        for reader in self.partitions.values():
            reader.release(reader.watermark_ts)
        return offsets


class ForgetsWhatIsDue(StreamReader):
    """Takes for gone out what nothing could be made of."""

    def due(self) -> Released | None:
        what = super().due()
        return what and self.release(what)


@pytest.mark.parametrize(
    ("errs", "members_max", "commits"),
    [
        (ForgetsWhatIsTaken, 1, 0.3),
        (HandsOutWhatComesLater, 1, 1.0),
        (TrustsItsMemory, 3, 1.0),
        (TrustsWhatIsCommitted, 1, 1.0),
        (ForgetsWhatIsDue, 1, 1.0),
    ],
)
def test_reader_that_errs_is_found(errs: type[StreamReader], members_max: int, commits: float) -> None:
    def is_found(seed: int) -> bool:
        try:
            unmade = 0.3 if errs is ForgetsWhatIsDue else 0.0
            return lived(seed, errs, members_max=members_max, commits=commits, unmade=unmade) > 0
        except WrongError:
            return True

    assert any(is_found(seed) for seed in SEEDS_FOR_ERRORS), errs.__doc__
