"""What to do about everything that a registration, a stream or a message can go wrong with: pure decisions.

Sources: docs/formats/cdcpb.md §5 for region errors, §1 and §9 for streams. Whatever it is, the range lock is released
with the range's resolved ts (the next checkpoint_ts), and the matcher is dropped: its open prewrites are void.

======================================  ========  ==========================  ======================================
seen                                    step      waits                       then
======================================  ========  ==========================  ======================================
*of a region*
not_leader, leader named                REGISTER                              at the named store, if it has a peer
not_leader, no leader                   LOCATE                                PD says who leads
epoch_not_match, with regions or not    LOCATE                                split or merged: PD says into what
region_not_found                        LOCATE                                also TiKV's answer to inner errors
congested                               REGISTER                              the store's memory quota is used up
server_is_busy                          REGISTER  its backoff_ms, ≤ 10 min
no field set, or one that is unknown    REGISTER
duplicate_request                       FAIL                                  a bug of ours
compatibility                           FAIL                                  an operator must act
cluster_id_mismatch                     FAIL                                  an operator must act
*of a stream, for all its regions*
OK, CANCELLED, ABORTED, INTERNAL, …     LOCATE    1 s                         cut anywhere, by a proxy or a restart
UNAVAILABLE                             LOCATE    1 s                         restarts, refuses, has moved: ask PD
UNKNOWN                                 LOCATE    1 s                         TiKV's watchdog: we read too slowly
RESOURCE_EXHAUSTED                      LOCATE    5 s                         the store is short of something
RESOURCE_EXHAUSTED, message too large   LOCATE    1 s; bounded                a row above our limit comes again
UNIMPLEMENTED on EventFeedV2            LOCATE                                EventFeed, a stream for each span
UNIMPLEMENTED on EventFeed              LOCATE    30 s                        no change feed there
UNAUTHENTICATED, PERMISSION_DENIED      LOCATE    30 s                        certificate or common name
FAILED_PRECONDITION with cluster id     FAIL                                  an operator must act
INVALID_ARGUMENT                        LOCATE    1 s; bounded                a request of ours is refused
silent for long or since its opening    LOCATE                                black hole; each time twice as patient
our TLS files unusable as it is opened  LOCATE    1 s                         they are being renewed
*of data*
bytes that are no ChangeDataEvent       LOCATE    1 s; bounded                stream is cut: whose they were is lost
a ts that no clock gives (≥ 2^63)       LOCATE    1 s; bounded                the same
COMMIT without PREWRITE, initialized    REGISTER  bounded                     a new scan brings the row whole
row or op type of no protocol           REGISTER  bounded                     the same
a row's number beyond 2^63              REGISTER  bounded                     the same
spilled rows do not come back           REGISTER  bounded                     the same
no room for rows on disk                REGISTER  30 s                        that of the largest transaction in memory
row at or below its resolved ts         FAIL                                  what was said is wrong: nothing heals
event of a region never registered                                            passed over, counted, logged
======================================  ========  ==========================  ======================================

The caller's back-off comes on top of each wait; a stream's store is left alone by all meanwhile. *Bounded*: a range
that has met :data:`FAULTS_MAX` of these without a step of its resolved ts between stops the feed with the error. All
else is tried for ever, seen in the span's reason and in the feed's count of each kind. What PD does not know (regions
without leader, a store that is gone or a tombstone) the locator asks again, with the same back-off and in plain sight.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.errors import Action, BusError, shortened
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2

BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 2_000
"""50 ms doubling to 2 s, as the new engine; reset when the region is INITIALIZED."""
BUSY_WAIT_MAX_MS: Final = 600_000
"""The new engine's cap on a server's own `backoff_ms`."""
SAID_CHARS_MAX: Final = 500
"""Of what a store says and people are shown."""
FAULTS_MAX: Final = 10
"""With the back-off some ten seconds: enough for a store that was caught in a bad moment."""


class RecoveryStep(Enum):
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
    """What follows from a trouble."""

    kind: str
    """Counted under this name."""
    step: RecoveryStep
    reason: str
    """Shown to people as the reason of the span's stall."""
    new_leader: StoreId | None = None
    """The store to try next, if the error names it."""
    wait_ms: int = 0
    """At least so long; the caller's back-off comes on top. Of a stream: the store is left alone so long."""
    error: BusError | None = None
    """With FAIL: raised now. Else raised after FAULTS_MAX in a row."""
    old_protocol: bool = False
    """From now on EventFeed, not EventFeedV2, for this store."""

    @property
    def bounded(self) -> bool:
        """Say whether it counts towards FAULTS_MAX."""
        return self.error is not None and self.step is not RecoveryStep.FAIL


def decide(error: cdcpb_pb2.Error) -> Decision:
    """Return what to do about a region error; the message is no oneof, so its fields are tried in the order of §5."""
    if error.HasField("not_leader"):
        leader = error.not_leader.leader
        # 179 of 188 such errors of a real cluster had no hint (§9, 8).
        if leader.store_id:
            return Decision(
                kind="not_leader",
                step=RecoveryStep.REGISTER,
                reason=f"leader moved to store {leader.store_id}",
                new_leader=StoreId(leader.store_id),
            )
        return Decision(kind="not_leader", step=RecoveryStep.LOCATE, reason="not leader, new leader unknown")
    if error.HasField("epoch_not_match"):
        return Decision(kind="epoch_not_match", step=RecoveryStep.LOCATE, reason="region was split or merged")
    if error.HasField("region_not_found"):
        return Decision(kind="region_not_found", step=RecoveryStep.LOCATE, reason="region not found on its store")
    if error.HasField("congested"):
        return Decision(
            kind="congested",
            step=RecoveryStep.REGISTER,
            reason="store is congested: its change-data memory quota is used up",
        )
    if error.HasField("server_is_busy"):
        busy = error.server_is_busy
        return Decision(
            kind="server_is_busy",
            step=RecoveryStep.REGISTER,
            reason=f"server is busy: {shortened(busy.reason, SAID_CHARS_MAX)}",
            wait_ms=min(busy.backoff_ms, BUSY_WAIT_MAX_MS),
        )
    return _fatal(error) or Decision(
        kind="unknown_error", step=RecoveryStep.REGISTER, reason="region error of an unknown kind"
    )


def _fatal(error: cdcpb_pb2.Error) -> Decision | None:
    fatal: BusError | None = None
    if error.HasField("duplicate_request"):
        fatal = DuplicateRequestError("region is registered twice", region_id=error.duplicate_request.region_id)
    elif error.HasField("compatibility"):
        fatal = VersionIncompatibleError(
            "store needs a newer client", required_version=error.compatibility.required_version
        )
    elif error.HasField("cluster_id_mismatch"):
        mismatch = error.cluster_id_mismatch
        fatal = ClusterMismatchError(
            "store belongs to another cluster", store_cluster=mismatch.current, our_cluster=mismatch.request
        )
    if fatal is None:
        return None
    return Decision(kind=fatal.code.partition(".")[2], step=RecoveryStep.FAIL, reason=fatal.message, error=fatal)


def backoff_ms(attempt: int, jitter: float) -> int:
    """Return the wait before retry number ``attempt`` (from 0): half of it fixed, half by ``jitter`` in [0, 1).

    >>> [backoff_ms(attempt, 0.0) for attempt in (0, 1, 9)]
    [25, 50, 1000]
    """
    whole = min(BACKOFF_FIRST_MS << min(attempt, 16), BACKOFF_MAX_MS)
    return whole // 2 + int(jitter * (whole - whole // 2))
