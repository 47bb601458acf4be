"""What to do about the region error of a unary call to TiKV (``errorpb.Error``): pure decisions.

======================================  ==========  ==========================  =================================
seen                                    region      next try                    why
======================================  ==========  ==========================  =================================
not_leader, leader named                KEEP        at the named store          it has moved
not_leader, no leader                   DROP                                    PD says who leads
epoch_not_match, region_not_found       DROP                                    split, merged, moved: PD says
key_not_in_region, store_not_match      DROP                                    what we know of it is wrong
server_is_busy                          KEEP        after its backoff_ms
stale_command                           KEEP                                    its term has changed
read_index_not_ready                    KEEP        at the leader               a follower that cannot ask it
data_is_not_ready                       KEEP        at the leader               a stale read above its safe_ts
no field set, or one that is unknown    DROP
======================================  ==========  ==========================  =================================

The caller's back-off comes on top of each wait, and the caller says when it gives up.
"""

from dataclasses import dataclass
from typing import Final

from producers.pull.core.regions.region_errors import BUSY_WAIT_MAX_MS
from schemas.ids import StoreId
from schemas.proto import errorpb_pb2

_KEEP: Final = ("stale_command", "read_index_not_ready", "data_is_not_ready")
_DROP: Final = ("epoch_not_match", "region_not_found", "key_not_in_region", "store_not_match")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecision:
    """What follows from a region error."""

    kind: str
    """The error's own name, or ``unknown_error``."""
    keep: bool
    """Whether what is known of the region stands; else PD is asked."""
    new_leader: StoreId | None = None
    wait_ms: int = 0
    """At least so long before the next try."""


def decide_call(error: errorpb_pb2.Error) -> CallDecision:
    """Return what to do about a region error."""
    if error.HasField("not_leader"):
        leader = StoreId(error.not_leader.leader.store_id)
        return CallDecision(kind="not_leader", keep=leader != 0, new_leader=leader or None)
    if error.HasField("server_is_busy"):
        return CallDecision(
            kind="server_is_busy", keep=True, wait_ms=min(error.server_is_busy.backoff_ms, BUSY_WAIT_MAX_MS)
        )
    for kind in (*_KEEP, *_DROP):
        if error.HasField(kind):
            return CallDecision(kind=kind, keep=kind in _KEEP)
    return CallDecision(kind="unknown_error", keep=False)
