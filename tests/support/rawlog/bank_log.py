"""The bank as the raw log has it, added up at every record of the frontier that there ever was.

Output topics hold a watermark for each batch of a sorter, which may be few; the frontier has thousands of places, and a
changefeed may begin at any of them. What a reader finds between two of them is by the frontier law
(:mod:`schemas.rawlog.frontier`), which is written out here once more.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from compose.kafka_follower import TopicFollower
from edges.kafka.access import KafkaAccess
from schemas.ids import TableId, UpstreamId
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from schemas.rawlog.topics import raw_topics
from schemas.tidb.row_v2 import decode_row_v2
from tests.support.database.bank import BALANCE_COLUMN

Identity = tuple[int, bytes]
"""commit_ts and key of a row change."""


@dataclass
class BankLog:
    """``take`` the raw log, then ``read`` places in their order."""

    tables: frozenset[TableId]
    total: int
    broken: list[str] = field(default_factory=list)
    sums: int = 0
    """At how many places the whole sum stood."""
    _balances: dict[Identity, int] = field(default_factory=dict)
    _copies: dict[Identity, list[tuple[int, int]]] = field(default_factory=dict)

    def take(self, kafka: str, upstream: UpstreamId) -> None:
        """Read what has landed of the bank's tables."""
        with TopicFollower(KafkaAccess(kafka), raw_topics(upstream).region_events) as follower:
            for record in follower.read_to_end():
                if record.value is None or read_batch_head(record.value).table_id not in self.tables:
                    continue
                rows = decode_region_batch(record.value).rows
                for at in range(len(rows)):
                    identity = (int(rows.commit_ts[at]), rows.key[at].as_py())
                    balance = decode_row_v2(rows.value[at].as_py())[BALANCE_COLUMN]
                    self._balances[identity] = int.from_bytes(balance or b"", "little", signed=True)
                    self._copies.setdefault(identity, []).append((record.partition, record.offset))

    def read(self, places: Iterable[FrontierRecord]) -> None:
        """Add up at each record; where one of the bank's tables is held, at its ts."""
        changes = sorted(self._balances)
        accounts: dict[bytes, int] = {}
        before: tuple[int, Sequence[int]] | None = None
        for frontier_record in places:
            mine = [held for held in frontier_record.held if self.tables & set(held.tables)]
            ts = min([int(frontier_record.resolved_ts), *(int(held.ts) for held in mine)])
            low = [min(each) for each in zip(frontier_record.low, *(held.low for held in mine), strict=True)]
            if before is not None and ts > before[0]:
                first, last = (
                    bisect_right(changes, ts_bound, key=lambda change: change[0]) for ts_bound in (before[0], ts)
                )
                for identity in changes[first:last]:
                    if any(before[1][at] <= offset < frontier_record.high[at] for at, offset in self._copies[identity]):
                        accounts[identity[1]] = self._balances[identity]
                if accounts:
                    self.sums += 1
                    if sum(accounts.values()) != self.total:
                        self.broken.append(
                            f"at {ts} the sum is {sum(accounts.values())}, not {self.total}: {frontier_record}"
                        )
            if before is not None and ts < before[0]:
                self.broken.append(f"it goes back to {ts}: {frontier_record}")
            before = (ts, low)
