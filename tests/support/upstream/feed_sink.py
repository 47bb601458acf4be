"""A sink for an event feed that keeps what it is given, and a wait that shows why it was in vain."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection

from producers.pull.core.match.change_columns import Change
from schemas.errors import BusError
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.spans import TableSpan


class Collected:
    """Changes in the order of their coming, and each table's resolved ts."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.resolved_ts: dict[TableId, Ts] = defaultdict(lambda: Ts(0))
        self.errors: list[BusError] = []

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        self.changes += changes

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        self.resolved_ts[span.table_id] = ts

    def turn(self, now_s: float) -> float:
        return 0.05

    def saturated(self) -> bool:
        return False


def wait_until(condition: Callable[[], bool], what: Callable[[], object], timeout_s: float = 180.0) -> None:
    """Wait for a condition; show ``what`` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
