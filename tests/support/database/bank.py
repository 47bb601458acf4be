"""A bank: accounts in two tables, money that moves between them in transactions, and a sum that never changes.

Two tables that lie in regions of their own, are pulled by different captures as it comes, and land in topics of their
own: a reader that sees half of a transfer sees another sum.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.row_shapes import int_value
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.topics.messages import Decoder, Message, TopicRecord

SCHEMA, OPENING = "bank", 1_000
BALANCE, BALANCE_COLUMN = "k", 2
"""The accounts are rows of sysbench's table; this is its one number."""


@dataclass
class Bank:
    """``server.spawn(bank.run())``; :meth:`stop` ends it."""

    server: RegionServer
    accounts: int = 20
    """In each of the two tables."""
    pause_s: float = 0.02
    """Between two transfers."""
    last_commit_ts: Ts = Ts(0)
    transfers: int = 0
    _stopped: bool = False
    _balances: dict[tuple[TableId, int], int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """What all accounts hold together, always."""
        return 2 * self.accounts * OPENING

    @property
    def names(self) -> dict[TableId, str]:
        """Return the tables' names by id."""
        return {table: f"{SCHEMA}.sbtest1_{number}" for number, table in enumerate(self.tables, 1)}

    @property
    def tables(self) -> list[TableId]:
        """The two tables."""
        return list(dict.fromkeys(table for table, _ in self._balances))

    def stop(self) -> None:
        """Begin no transfer any more."""
        self._stopped = True

    async def run(self) -> None:
        """Open all accounts in one transaction, then move money."""
        generator = Generator(self.server, GeneratorOptions(schema=SCHEMA, tables=2, rows_max=1))
        generator._create_schema()
        tables = [table.table_id for table in generator._tables]
        self._balances = {(table, number): OPENING for table in tables for number in range(1, self.accounts + 1)}
        self._commit(*self._balances)
        dice = random.Random(7)
        keys = list(self._balances)
        while not self._stopped:
            first = dice.choice(keys[: self.accounts])
            second = dice.choice(keys[self.accounts :])
            amount = dice.randint(-50, 50)
            self._balances[first] -= amount
            self._balances[second] += amount
            self._commit(first, second)
            self.transfers += 1
            await asyncio.sleep(self.pause_s)

    def _commit(self, *accounts: tuple[TableId, int]) -> None:
        mutations = [
            Mutation(
                "put",
                row_key(table, number),
                encode_row_v2({BALANCE_COLUMN: int_value(self._balances[table, number]), 3: b"c", 4: b"pad"}),
            )
            for table, number in accounts
        ]
        transaction = ServerTransaction(self.server.store, self.server.oracle.tso, mutations)
        transaction.prewrite()
        self.last_commit_ts = transaction.commit()


@dataclass
class BankReader:
    """A consumer that applies rows up to a watermark when every partition has reached it, and adds up."""

    decode: Decoder
    total: int
    broken: list[str] = field(default_factory=list)
    sums: int = 0
    """At how many ts the whole sum stood."""

    def read(self, records: Iterable[TopicRecord]) -> None:
        """Judge all records of the bank's topics; each partition's in its order."""
        partitions: defaultdict[tuple[str, int], list[Message]] = defaultdict(list)
        for record in records:
            partitions[record.topic, record.partition].append(self.decode(record))
        marks = [
            {message.commit_ts for message in messages if message.kind == "watermark"}
            for messages in partitions.values()
        ]
        waiting: dict[tuple[int, str, str], Message] = {}
        balances: dict[tuple[str, str], int] = {}
        reached = dict.fromkeys(partitions, 0)
        applied = 0
        for mark in sorted(set.intersection(*marks)) if marks else ():  # type: ignore[type-var]
            assert mark is not None
            for partition, messages in partitions.items():
                at = reached[partition]
                # Up to the first watermark that high: what stands behind it is not known to a reader here.
                while not (messages[at].kind == "watermark" and (messages[at].commit_ts or 0) >= mark):
                    _note(waiting, messages[at], applied)
                    at += 1
                reached[partition] = at
            for key in sorted(key for key in waiting if key[0] <= mark):
                message = waiting.pop(key)
                assert message.columns is not None
                balances[key[1:]] = int(message.columns[BALANCE])
            applied = mark
            self._add_up(mark, balances)

    def read_each_commit(self, records: Iterable[TopicRecord]) -> None:
        """Judge the sum after every transaction: at whatever ts a watermark had stood, a reader would have seen it."""
        changes: dict[tuple[int, str, str], Message] = {}
        for record in records:
            _note(changes, self.decode(record), 0)
        balances: dict[tuple[str, str], int] = {}
        for commit_ts, keys in groupby(sorted(changes), key=itemgetter(0)):
            for key in keys:
                columns = changes[key].columns
                assert columns is not None
                balances[key[1:]] = int(columns[BALANCE])
            self._add_up(commit_ts, balances)

    def _add_up(self, mark: int, balances: dict[tuple[str, str], int]) -> None:
        balance_sum = sum(balances.values())
        if balances and balance_sum != self.total:
            self.broken.append(f"at {mark} the sum is {balance_sum}, not {self.total}")
        self.sums += bool(balances)


def _note(waiting: dict[tuple[int, str, str], Message], message: Message, applied: int) -> None:
    if message.kind != "row":
        return
    assert message.columns is not None
    assert message.commit_ts is not None
    if message.commit_ts > applied:  # else a repeat of what is applied
        waiting[message.commit_ts, message.name, str(message.columns["id"])] = message
