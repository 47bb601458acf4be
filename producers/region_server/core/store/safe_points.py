"""PD's service safe points (the old API, which TiDB still uses): who keeps which history from garbage collection."""

from dataclasses import dataclass

from schemas.ids import Ts

GC_WORKER = b"gc_worker"
NEVER_EXPIRES_S = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SafePointHolder:
    """The service with the least safe point, and the seconds that it still has."""

    service_id: bytes
    ttl_s: int
    safe_point: Ts


class ServiceSafePoints:
    """Safe points by service with the time at which each expires. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        # TiDB's own collector is a service like the others, and the only one that is always there.
        self._services: dict[bytes, tuple[Ts, float]] = {GC_WORKER: (Ts(0), float("inf"))}

    @property
    def collected(self) -> Ts:
        """The GC safe point: history below it may be gone."""
        return self._services[GC_WORKER][0]

    def update(self, service_id: bytes, safe_point: Ts, ttl_s: int, now_s: float) -> SafePointHolder:
        """Store a safe point and return the least of all.

        ``ttl_s`` <= 0 deletes the service. A safe point below the present least is **not** stored: that history may be
        gone, and the caller sees it from the answer being above what it asked.
        """
        if ttl_s <= 0:
            if service_id != GC_WORKER:
                self._services.pop(service_id, None)
        elif safe_point >= self.least(now_s).safe_point:
            expires = float("inf") if ttl_s >= NEVER_EXPIRES_S else now_s + ttl_s
            self._services[service_id] = (safe_point, expires)
        return self.least(now_s)

    def least(self, now_s: float) -> SafePointHolder:
        """The holder of the least safe point among live services."""
        self._services = {name: held for name, held in self._services.items() if held[1] > now_s}
        name, (safe_point, expires) = min(self._services.items(), key=lambda item: (item[1][0], item[0]))
        ttl_s = NEVER_EXPIRES_S if expires == float("inf") else int(expires - now_s)
        return SafePointHolder(name, ttl_s, safe_point)

    def collect(self, wanted: Ts, now_s: float) -> Ts:
        """Advance TiDB's collector to ``wanted``, but never past another service; return the GC safe point."""
        others = [held[0] for name, held in self._services.items() if name != GC_WORKER and held[1] > now_s]
        present = self._services[GC_WORKER][0]
        point = max(present, min([wanted, *others]))
        self._services[GC_WORKER] = (point, float("inf"))
        return point
