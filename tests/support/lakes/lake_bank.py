"""Money that moves between two tables, as a raw log by hand, and what each table holds at each ts."""

import random
import struct
from dataclasses import dataclass, field

from schemas.changes import Op
from schemas.rawlog.images import NO_IMAGES, ImageState
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.rawlog.raw_log import Change, RawLog, row_key

TABLES = {201: "debit", 202: "credit"}
ACCOUNTS, BALANCE = 20, 100
TOTAL = BALANCE * ACCOUNTS * len(TABLES)


def row(balance: int) -> bytes:
    """Return the value of a row ``(id INT PRIMARY KEY, v INT)``."""
    return encode_row_v2({2: struct.pack("<i", balance)})


@dataclass
class LakeBank:
    """Its rows and the changes of them; deterministic."""

    log: RawLog
    ts: int
    balances: dict[int, dict[int, int]] = field(default_factory=dict)
    history: list[tuple[int, str, int, int, int | None]] = field(default_factory=list)
    """commit_ts, op, table, account, new balance (of a delete the last one) of each change, in order."""
    at: dict[int, dict[int, dict[int, int]]] = field(default_factory=dict)
    """What the tables held at each ts of :meth:`advance`."""
    partitions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Of tables that have some: account n is in number n modulo their count."""
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _waiting: dict[int, list[Change]] = field(default_factory=dict)

    def physical(self, table: int, account: int) -> int:
        """Return the id that the key of an account carries."""
        parts = self.partitions.get(table, (table,))
        return parts[account % len(parts)]

    def open(self, *, is_landed: bool = True) -> None:
        """Give each account its first balance, in one transaction; not landed: before any changefeed."""
        self.ts += 1
        for table in TABLES:
            self.balances[table] = {}
            for account in range(ACCOUNTS):
                self._put(table, account, BALANCE)
        if not is_landed:
            self._waiting.clear()
            self.history.clear()

    def transfer(self, count: int) -> None:
        """Move money between the tables; sometimes an account is closed, and its balance goes with the money."""
        for _ in range(count):
            self.ts += 10
            source, target = self._random.sample(sorted(TABLES), 2)
            giver = self._random.choice(sorted(self.balances[source]))
            taker = self._random.randrange(ACCOUNTS)
            closes = self._random.random() < 0.2 and len(self.balances[source]) > 2
            amount = self.balances[source][giver] if closes else self._random.randrange(1, 20)
            if closes:
                self._delete(source, giver)
            else:
                self._put(source, giver, self.balances[source][giver] - amount)
            self._put(target, taker, self.balances[target].get(taker, 0) + amount)

    def put(self, table: int, account: int, balance: int) -> None:
        """Give an account a balance from nowhere."""
        self.ts += 10
        self._put(table, account, balance)

    def close(self, table: int, account: int) -> None:
        """Close an account; its balance is gone."""
        self.ts += 10
        self._delete(table, account)

    def take(self, table: int, number: int) -> dict[int, int]:
        """Take the accounts of one of two partitions away, as DDL does it: by no change; return them."""
        taken = {each: balance for each, balance in self.balances[table].items() if each % 2 == number}
        self.balances[table] = {each: balance for each, balance in self.balances[table].items() if each not in taken}
        return taken

    def lose(self) -> None:
        """Let nobody hear of what was not published yet."""
        self._waiting.clear()

    def advance(self, after: int = 1_000, images: ImageState = NO_IMAGES) -> int:
        """Publish all of it, and what the owner says of images; return the frontier's ts."""
        self.ts += after
        for number, (table, changes) in enumerate(self._waiting.items()):
            self.log.rows(table, changes, number % self.log.partitions)
        self._waiting.clear()
        self.at[self.ts] = {table: dict(accounts) for table, accounts in self.balances.items()}
        self.log.advance(self.ts, images=images)
        return self.ts

    def _put(self, table: int, account: int, balance: int) -> None:
        before = self.balances[table].get(account)
        old = b"" if before is None else row(before)
        self._change(table, account, row(balance), old)
        self.history.append((self.ts, "I" if before is None else "U", table, account, balance))
        self.balances[table][account] = balance

    def _delete(self, table: int, account: int) -> None:
        balance = self.balances[table].pop(account)
        self._change(table, account, b"", row(balance), Op.DELETE)
        self.history.append((self.ts, "D", table, account, balance))

    def _change(self, table: int, account: int, value: bytes, old: bytes, op: Op = Op.PUT) -> None:
        physical = self.physical(table, account)
        change = Change(self.ts, row_key(physical, account), value, old, op=op)
        self._waiting.setdefault(physical, []).append(change)
