"""A machine that is suspended with a capture on it, and wakes up when another one is the owner."""

import time

import pytest

from compose.stack.local import Addresses
from edges.zookeeper import session as sessions
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import LeaseLostError, Session


def test_lease_is_over_after_a_suspension_that_the_monotonic_clock_does_not_see(
    stack: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sessions._LEASE_CLOCK == time.CLOCK_BOOTTIME
    asleep_s = 0.0
    true_clock = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: true_clock(clock) + (asleep_s if clock == time.CLOCK_BOOTTIME else 0.0)
    )
    with Session(ZooKeeperAccess(stack.zookeeper)) as session:
        session.check_lease()
        asleep_s = 3600.0
        with pytest.raises(LeaseLostError):
            session.check_lease()
