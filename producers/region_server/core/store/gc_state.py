"""PD's GC state (the new API): barriers hold history, the txn safe point follows the least of them.

Invariant: ``gc_safe_point <= txn_safe_point <= every live barrier_ts``. Times are seconds of any steady clock.
"""

from dataclasses import dataclass
from typing import Final

from schemas.errors import Action, BusError
from schemas.ids import Ts

NEVER_EXPIRES_S: Final = (1 << 63) - 1
RESERVED_ID: Final = "gc_worker"
BEHIND: Final = "ErrGCBarrierTSBehindTxnSafePoint"
"""What clients look for in the message."""


class BarrierRefusedError(BusError):
    """A barrier that PD does not set; the message is PD's answer."""

    code, action = "region_server.gc_barrier_refused", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class GcBarrier:
    """History from ``ts`` on is kept for ``ttl_s`` more seconds."""

    barrier_id: str
    ts: Ts
    ttl_s: int


class GcState:
    """The state of the null keyspace. Global barriers are apart by name and hold history all the same."""

    def __init__(self) -> None:
        self.txn_safe_point = Ts(0)
        self.gc_safe_point = Ts(0)
        self._barriers: dict[tuple[bool, str], tuple[Ts, float]] = {}

    def set_barrier(self, barrier_id: str, ts: Ts, ttl_s: int, now_s: float, *, globally: bool = False) -> GcBarrier:
        """Set or move a barrier.

        Raises:
            BarrierRefusedError: its id is empty or reserved, its ttl not positive, or that history may be gone.
        """
        if not barrier_id or barrier_id == RESERVED_ID:
            raise BarrierRefusedError("barrier id is empty or reserved", barrier_id=barrier_id)
        if ttl_s <= 0:
            raise BarrierRefusedError("ttl must be positive", ttl_s=ttl_s)
        if ts < self.txn_safe_point:
            raise BarrierRefusedError(
                f"{BEHIND}: trying to set a GC barrier on ts {ts} which is already behind the txn safe point "
                f"{self.txn_safe_point}"
            )
        expires = float("inf") if ttl_s >= NEVER_EXPIRES_S else now_s + ttl_s
        self._barriers[globally, barrier_id] = (ts, expires)
        return GcBarrier(barrier_id, ts, ttl_s)

    def delete_barrier(self, barrier_id: str, now_s: float, *, globally: bool = False) -> GcBarrier | None:
        """Remove a barrier and return it; None if there is none."""
        deleted = [barrier for barrier in self.barriers(now_s, globally=globally) if barrier.barrier_id == barrier_id]
        self._barriers.pop((globally, barrier_id), None)
        return deleted[0] if deleted else None

    def barriers(self, now_s: float, *, globally: bool = False) -> list[GcBarrier]:
        """Return live barriers by id, each with the seconds that it has left."""
        return [
            GcBarrier(name, ts, NEVER_EXPIRES_S if expires == float("inf") else max(1, int(expires - now_s)))
            for (is_global, name), (ts, expires) in sorted(self._barriers.items())
            if is_global == globally and expires > now_s
        ]

    def collect(self, wanted: Ts, now_s: float) -> Ts:
        """Advance both safe points to ``wanted``, but never past a live barrier; return the GC safe point."""
        held = [ts for ts, expires in self._barriers.values() if expires > now_s]
        self.txn_safe_point = max(self.txn_safe_point, min([wanted, *held]))
        self.gc_safe_point = self.txn_safe_point
        return self.gc_safe_point

    def update_service(self, service_id: str, safe_point: Ts, ttl_s: int, now_s: float) -> tuple[Ts, int]:
        """The old call as a new PD maps it: a barrier named by the service. Returns (min safe point, its ttl).

        The least is the txn safe point, so it is usually below what was asked; above it, that history may be gone.
        """
        if service_id == RESERVED_ID:
            self.collect(safe_point, now_s)
        elif ttl_s <= 0:
            self.delete_barrier(service_id, now_s)
        elif safe_point >= self.txn_safe_point:
            self.set_barrier(service_id, safe_point, ttl_s, now_s)
        return self.txn_safe_point, NEVER_EXPIRES_S
