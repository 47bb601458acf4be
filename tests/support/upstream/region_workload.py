"""A random workload of transactions of every kind on the embedded cluster, and what a feed must make of it."""

import random

from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.mvcc import Write
from producers.region_server.core.store.refusals import CommandRefusedError
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer


class Workload:
    """Transactions of all kinds on sixty keys, some of them open at any time; what the store refuses is given up."""

    def __init__(self, server: RegionServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._open: list[tuple[ServerTransaction, bool]] = []
        self.committed = 0

    def step(self) -> None:
        """Begin one transaction, or go on with an open one."""
        if len(self._open) < 4 and self._random.random() < 0.6:
            self._begin()
        elif self._open:
            self._go_on(*self._open.pop(self._random.randrange(len(self._open))))

    def finish(self) -> None:
        while self._open:
            self._go_on(*self._open.pop())

    def _begin(self) -> None:
        draw = self._random
        keys = {b"k%02d" % draw.randrange(60) for _ in range(draw.randrange(1, 5))}
        source = draw.choice([0, 0, 0, 1, 0x100])
        writes = [Mutation("put", key, draw.randbytes(draw.choice([3, 400]))) for key in sorted(keys)]
        writes[0] = draw.choice([writes[0], Mutation("delete", writes[0].key), Mutation("lock", writes[0].key)])
        transaction = ServerTransaction(self._server.store, self._server.oracle.tso, writes, txn_source=source)
        kind = draw.choice(["optimistic", "pessimistic", "async", "one_pc", "pipelined"])
        try:
            if kind == "one_pc":
                transaction.commit_at_once()
                self.committed += 1
                return
            if kind == "pessimistic":
                transaction.lock(*transaction.keys)
            if kind == "pipelined":
                transaction.flush()
                transaction.write(Mutation("put", writes[-1].key, b"later"))
                transaction.flush()
            else:
                transaction.prewrite(async_commit=kind == "async")
        except CommandRefusedError:
            transaction.rollback()
        else:
            self._open.append((transaction, False))

    def _go_on(self, transaction: ServerTransaction, decided: bool) -> None:
        if decided:
            transaction.commit_secondaries()
        elif self._random.random() < 0.15:
            transaction.rollback()
        elif self._random.random() < 0.5:
            transaction.commit_primary()
            self.committed += 1
            self._open.append((transaction, True))
        else:
            transaction.commit()
            self.committed += 1


def split(server: RegionServer, *keys: bytes) -> None:
    """Split regions at keys, in one step of the server's loop."""

    def act(store: ClusterStore) -> None:
        for key in keys:
            store.split(key)

    server.act(act)


def versions(store: ClusterStore) -> dict[tuple[bytes, int, int], object]:
    """Every version that the feed must have brought: all but those of a lossy DDL."""
    versions_of: dict[tuple[bytes, int, int], object] = {}
    for region in store.regions:
        for key, newest in region.data.writes.items():
            write: Write | None = newest
            while write is not None:
                if write.txn_source < 0x100:
                    change = (int(write.op), write.value, write.old_value, write.txn_source)
                    versions_of[key, write.commit_ts, write.start_ts] = change
                write = write.previous
    return versions_of
