"""What to do about each error that a region's registration can end with (reference/cdcpb.md §5): a pure decision.

Whatever it is, the range lock is released with the range's resolved ts (the next checkpoint_ts), and the matcher is
dropped: its open prewrites are void.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.errors import Action, BusError
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2

BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 2_000
"""50 ms doubling to 2 s, as the new engine; reset when the region is INITIALIZED."""
BUSY_WAIT_MAX_MS: Final = 600_000
"""The new engine's cap on a server's own `backoff_ms`."""


class Step(Enum):
    """What happens to the range next."""

    REGISTER = "register"
    """The same region again, as the cache knows it (perhaps with a new leader)."""
    LOCATE = "locate"
    """Ask PD which regions cover the range now."""
    FAIL = "fail"
    """Nothing that a client can mend."""


class ClusterMismatchError(BusError):
    """A store belongs to another cluster than PD said."""

    code, action = "producer.cluster_id_mismatch", Action.STOP_CHANGEFEED


class VersionIncompatibleError(BusError):
    """TiKV refuses clients of the version that we say we are."""

    code, action = "producer.version_incompatible", Action.STOP_CHANGEFEED


class DuplicateRequestError(BusError):
    """One (request id, region) was registered twice on a stream: a bug of ours."""

    code, action = "producer.duplicate_request", Action.CRASH


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One error's consequences."""

    step: Step
    reason: str
    """For people: shown as the span's stall reason."""
    new_leader: StoreId | None = None
    """The store to try next, if the error names it."""
    wait_ms: int = 0
    """At least so long; the caller's back-off comes on top."""
    error: BusError | None = None
    """With FAIL."""


def decide(error: cdcpb_pb2.Error) -> Decision:
    """Return what to do about ``error``; the message is no oneof, so its fields are tried in the order of §5."""
    if error.HasField("not_leader"):
        leader = error.not_leader.leader
        # 179 of 188 such errors of a real cluster had no hint (§9, 8).
        if leader.store_id:
            return Decision(
                step=Step.REGISTER,
                reason=f"leader moved to store {leader.store_id}",
                new_leader=StoreId(leader.store_id),
            )
        return Decision(step=Step.LOCATE, reason="not leader, new leader unknown")
    if error.HasField("epoch_not_match"):
        return Decision(step=Step.LOCATE, reason="region was split or merged")
    if error.HasField("region_not_found"):
        return Decision(step=Step.LOCATE, reason="region not found on its store")
    if error.HasField("congested"):
        return Decision(step=Step.REGISTER, reason="store is congested: its change-data memory quota is used up")
    if error.HasField("server_is_busy"):
        busy = error.server_is_busy
        return Decision(
            step=Step.REGISTER,
            reason=f"server is busy: {busy.reason}",
            wait_ms=min(busy.backoff_ms, BUSY_WAIT_MAX_MS),
        )
    return _fatal(error) or Decision(step=Step.REGISTER, reason="region error of an unknown kind")


def _fatal(error: cdcpb_pb2.Error) -> Decision | None:
    found: BusError | None = None
    if error.HasField("duplicate_request"):
        found = DuplicateRequestError("region is registered twice", region_id=error.duplicate_request.region_id)
    elif error.HasField("compatibility"):
        found = VersionIncompatibleError(
            "store needs a newer client", required_version=error.compatibility.required_version
        )
    elif error.HasField("cluster_id_mismatch"):
        mismatch = error.cluster_id_mismatch
        found = ClusterMismatchError(
            "store belongs to another cluster", store_cluster=mismatch.current, our_cluster=mismatch.request
        )
    return None if found is None else Decision(step=Step.FAIL, reason=found.message, error=found)


def backoff_ms(attempt: int, jitter: float) -> int:
    """Return the wait before retry number ``attempt`` (from 0): half of it fixed, half by ``jitter`` in [0, 1).

    >>> [backoff_ms(attempt, 0.0) for attempt in (0, 1, 9)]
    [25, 50, 1000]
    """
    whole = min(BACKOFF_FIRST_MS << min(attempt, 16), BACKOFF_MAX_MS)
    return whole // 2 + int(jitter * (whole - whole // 2))
