"""A machine that is suspended with a capture on it, and wakes up when another one is the owner."""

import time
from collections.abc import Callable

import pytest

from compose.stack.local import Addresses
from edges.zookeeper import lease as leases
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.connection import zookeeper_client
from edges.zookeeper.session import LeaseLostError, Session
from sorters.run.nodes.feed_lock import SESSION_S, FeedLock


def test_lease_is_over_after_a_suspension_that_the_monotonic_clock_does_not_see(
    stack: Addresses, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leases._LEASE_CLOCK == time.CLOCK_BOOTTIME
    asleep_s = 0.0
    true_clock = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: true_clock(clock) + (asleep_s if clock == time.CLOCK_BOOTTIME else 0.0)
    )
    access = ZooKeeperAccess(stack.zookeeper)
    with Session(access) as session, zookeeper_client(access, SESSION_S) as zookeeper:
        lock = FeedLock(zookeeper, f"/{fresh_name('sorter')}")
        assert lock.acquire(lambda: True)
        session.check_lease()
        assert not lock.is_lost()
        asleep_s = 3600.0
        assert lock.is_lost()
        with pytest.raises(LeaseLostError):
            session.check_lease()
