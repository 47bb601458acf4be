"""A sink topic's partition as processors read it: every row once, in order, whatever is repeated, rewound or cut off.

The log is written as sorters write it: cuts of whole commit_ts, each partition in its order, rows joined to messages
cut by cut. A sorter may die anywhere within a cut and starts again at its checkpoint, with other cuts.
"""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.partition import Claim, PartitionQueue, start_position
from schemas.ids import Ts
from schemas.sink.parts import cut_message
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.sql_rows import (
    SqlDdl,
    SqlRow,
    TableForm,
    decode_form,
    encode_ddl,
    encode_form,
    encode_rows,
    encode_watermark,
)

START_TS = 10
FORMS = [
    encode_form(TableForm(schema="d", table=name, version=Ts(1), columns=("a",), key=("a",))) for name in ("t", "u")
]
Record = tuple[bytes, bytes | None, bytes]
"""position, key, value"""
Thing = tuple[int, str]
"""What is applied: (commit_ts, text of a row's key literal or of a DDL)."""


@dataclass
class Row:
    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    form: bytes

    @property
    def position(self) -> bytes:
        return Position(
            Ts(self.commit_ts), PositionClass.ROW, Ts(self.start_ts), RowOp(self.op), self.form + self.key
        ).encode()

    @property
    def record(self) -> SqlRow:
        return SqlRow(self.commit_ts, self.start_ts, self.op, self.key, b"()")


@dataclass
class World:
    """What upstream did in one partition, and the log that sorters made of it."""

    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    ddls: list[int] = field(default_factory=list)
    tables: int = 0
    """Made as of the start, before all else."""
    end_ts: int = START_TS
    log: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.tables = rng.choice([0, 0, 1, 3])
        for _ in range(rng.randint(0, 12)):
            self.end_ts += rng.randint(0, 2)
            start_ts = self.end_ts * 10 + len(self.rows)
            for number in range(rng.choice([1, 1, 2, 5])):
                form = rng.choice(FORMS)
                self.rows.append(Row(self.end_ts + 1, start_ts, rng.randint(1, 3), b"%d" % number, form))
        self.end_ts += 2
        self.rows.sort(key=lambda row: row.position)
        self.ddls = sorted(rng.sample(range(START_TS + 1, self.end_ts + 1), min(rng.randint(0, 3), 2)))
        self._write()

    def _write(self) -> None:
        """Sorters write all up to the end, dying now and then."""
        rng, checkpoint = self.rng, START_TS
        while checkpoint < self.end_ts:
            after, dies = checkpoint, rng.random() < 0.4
            while after < self.end_ts:
                upto = rng.randint(after + 1, self.end_ts)
                records = self._cut(after, upto)
                last = dies and rng.random() < 0.5
                self.log += records[: rng.randint(0, len(records))] if last else records
                if last:
                    break
                after = upto
                if not dies or rng.random() < 0.5:
                    checkpoint = after  # else it dies before it has said so
        self.log += self._cut(rng.randint(START_TS, self.end_ts - 1), self.end_ts) if rng.random() < 0.3 else []

    def _cut(self, after: int, upto: int) -> list[Record]:
        records: list[Record] = self._tables() if after == START_TS else []
        group: list[Row] = []
        rows_max = self.rng.choice([1, 3, 100])

        def close() -> None:
            if group:
                form = group[0].form
                records.append(
                    (group[-1].position, form, encode_rows(decode_form(form), [row.record for row in group]))
                )
                group.clear()

        for row in (row for row in self.rows if after < row.commit_ts <= upto):
            if group and (group[0].form != row.form or len(group) == rows_max):
                close()
            if group and any(group[-1].commit_ts <= ts < row.commit_ts for ts in self.ddls):
                close()
            records += self._ddls(group[-1].commit_ts if group else self._said(records, after), row.commit_ts - 1)
            group.append(row)
        close()
        records += self._ddls(self._said(records, after), upto)
        watermark = Position(Ts(upto), PositionClass.WATERMARK).encode()
        records.sort(key=lambda record: record[0])
        written = [part for record in records for part in self._in_parts(record)]
        return [*written, (watermark, None, encode_watermark(Ts(upto)))]

    def _in_parts(self, record: Record) -> list[Record]:
        """Some messages are too large for the topic, however short they are; which ones may change."""
        position, key, value = record
        if key is None or self.rng.random() < 0.7:
            return [record]
        parts = cut_message(key, value, len(key) + self.rng.choice([40, 60, 1000]))
        return [(position, part_key, bytes(piece)) for part_key, piece in parts]

    def _said(self, records: list[Record], after: int) -> int:
        seen = [int.from_bytes(position[:8], "big") for position, key, _ in records if key is None]
        return max([after, *seen])

    def _tables(self) -> list[Record]:
        return [
            (
                Position(Ts(START_TS), PositionClass.BOOTSTRAP, key=bytes((number,))).encode(),
                None,
                _ddl(START_TS, f"table {number}"),
            )
            for number in range(self.tables)
        ]

    def _ddls(self, after: int, upto: int) -> list[Record]:
        return [
            (
                Position(Ts(ts), PositionClass.DDL, Ts(ts - 1), key=bytes(4)).encode(),
                None,
                _ddl(ts, f"ddl {ts}"),
            )
            for ts in self.ddls
            if after < ts <= upto
        ]

    def expected(self) -> list[Thing]:
        things = [(row.commit_ts, 0, row.position, f"{row.form.decode()} {row.op} {row.key!r}") for row in self.rows]
        things += [(ts, 1, b"", f"ddl {ts}") for ts in self.ddls]
        things += [(START_TS, 2, b"", f"table {number}") for number in range(self.tables)]
        return [(ts, text) for ts, _, _, text in sorted(things)]


def _ddl(ts: int, query: str) -> bytes:
    return encode_ddl(
        SqlDdl(commit_ts=Ts(ts), ddl_type=5, schema="d", table="t", pre_schema="", pre_table="", query=query)
    )


def _things(claim: Claim) -> list[Thing]:
    return [(row.commit_ts, f"{encode_form(form).decode()} {row.op} {row.key!r}") for form, row in claim.rows]


class Reader:
    """A destination and the processors that come and go before it."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.applied: list[Thing] = []
        self.steps = 0
        self.position, self.offset = start_position(Ts(START_TS)), 0
        self.restart()

    def restart(self) -> None:
        """A new processor: all that it knows is what the destination holds."""
        self.queue = PartitionQueue(0, self.position, self.offset)
        self.at = self.offset

    @property
    def is_calm(self) -> bool:
        """Processors die no more, so that one lives long enough to read a long log of repeats."""
        return self.steps > 1500

    def step(self) -> None:
        rng, queue = self.rng, self.queue
        choice = rng.random()
        self.steps += 1
        if choice < 0.04 and not self.is_calm:
            self.restart()
        elif choice < 0.6 and self.at < len(self.world.log):
            position, key, value = self.world.log[self.at]
            queue.feed(position=position, offset=self.at, key=key, value=value)
            self.at += 1
        elif (mark := queue.barrier) is not None:
            self.applied.append((mark.ddl.commit_ts, mark.ddl.query))
            queue.pass_barrier(mark.position)
            self._keep()
        elif (claim := queue.claim(rng.choice([1, 4, 100]), bytes_max=10**6)) is not None:
            self._pass_on(claim)
        self._check()

    def _pass_on(self, claim: Claim) -> None:
        """Some records are read while it is on its way; then it arrives, or the processor dies."""
        queue = self.queue
        for _ in range(self.rng.randint(0, 4)):
            if self.at < len(self.world.log):
                position, key, value = self.world.log[self.at]
                queue.feed(position=position, offset=self.at, key=key, value=value)
                self.at += 1
        fate = 1.0 if self.is_calm else self.rng.random()
        if fate < 0.05:
            self.restart()  # the transaction did not commit
            return
        self.applied += _things(claim)
        self.position, self.offset = claim.position, claim.next_offset
        if fate < 0.1:
            self.restart()  # it did, and nobody was told
            return
        queue.arrived()
        self._keep()

    def _keep(self) -> None:
        self.position, self.offset = self.queue.applied, self.queue.offset

    def _check(self) -> None:
        expected = self.world.expected()
        assert self.applied == expected[: len(self.applied)], "in order, each once"
        if len(self.applied) < len(expected):
            cut = expected[len(self.applied)]
            # A table as of the start is none of what the start ts promises.
            is_true = cut[0] > self.queue.applied_ts or cut[0] == self.queue.applied_ts == START_TS
            assert is_true, "the applied watermark is true"

    @property
    def done(self) -> bool:
        return self.at == len(self.world.log) and self.queue.applied_ts >= self.world.end_ts


@given(st.integers(0, 2**64))
def test_partition_under_repeats_rewinds_and_crashes_applies_each_row_once_in_order(seed: int) -> None:
    reader = Reader(World(random.Random(seed)))
    for _ in range(3000):
        reader.step()
        if reader.done:
            break
    assert reader.done
    assert reader.applied == reader.world.expected()


@given(st.integers(0, 2**64))
def test_partition_claims_never_part_a_transaction_nor_pass_a_barrier(seed: int) -> None:
    world = World(random.Random(seed))
    queue = PartitionQueue(0, start_position(Ts(START_TS)), 0)
    barrier, sizes = Ts(world.rng.randint(START_TS, world.end_ts)), dict[tuple[int, int], int]()
    for row in world.rows:
        sizes[row.commit_ts, row.start_ts] = sizes.get((row.commit_ts, row.start_ts), 0) + 1
    for offset, (position, key, value) in enumerate(world.log):
        queue.feed(position=position, offset=offset, key=key, value=value)
        while (claim := queue.claim(2, bytes_max=10**6, barrier_ts=barrier)) is not None:
            seen: dict[tuple[int, int], int] = {}
            for _, applied in claim.rows:
                seen[applied.commit_ts, applied.start_ts] = seen.get((applied.commit_ts, applied.start_ts), 0) + 1
            assert all(sizes[txn] == count for txn, count in seen.items())
            assert claim.last_commit_ts <= barrier
            assert len(claim.rows) <= 2 or claim.txns == 1
            queue.arrived()
        if (mark := queue.barrier) is not None and mark.ddl.commit_ts <= barrier:
            queue.pass_barrier(mark.position)
    while True:
        claim, mark = queue.claim(2, bytes_max=10**6, barrier_ts=barrier), queue.barrier
        if claim is not None:
            queue.arrived()
        elif mark is not None and mark.ddl.commit_ts <= barrier:
            queue.pass_barrier(mark.position)
        else:
            break
    assert queue.stands_at(barrier)


def test_partition_that_has_read_part_of_a_row_begins_there_again() -> None:
    """A record of a sorter that lost its lock has landed between the parts of the next one's row."""
    form, offsets = FORMS[0], iter(range(10))
    early, late = (Row(ts, ts * 10, RowOp.INSERT, b"1", form) for ts in (11, 13))
    first, *rest = cut_message(form, encode_rows(decode_form(form), [late.record]), len(form) + 40)
    assert rest
    marks = [(Position(Ts(ts), PositionClass.WATERMARK).encode(), None, encode_watermark(Ts(ts))) for ts in (12, 20)]
    queue = PartitionQueue(0, start_position(Ts(START_TS)), 0)

    def feed(position: bytes, key: bytes | None, value: bytes | memoryview) -> None:
        queue.feed(position=position, offset=next(offsets), key=key, value=bytes(value))

    feed(late.position, *first)
    feed(early.position, form, encode_rows(decode_form(form), [early.record]))
    feed(*marks[0])
    assert queue.claim(9, bytes_max=10**6) is not None
    queue.arrived()
    assert (queue.offset, queue.applied_ts) == (0, 12)
    for part in rest:
        feed(late.position, *part)
    feed(*marks[1])
    claim = queue.claim(9, bytes_max=10**6)
    assert claim is not None
    assert [row.commit_ts for _, row in claim.rows] == [13]
    queue.arrived()
    assert (queue.offset, queue.applied_ts) == (next(offsets), 20)
