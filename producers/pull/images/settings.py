"""How a capture scans table images."""

from dataclasses import dataclass
from typing import Final, Literal

ReadFrom = Literal["leader", "follower", "stale"]
REQUEST_SOURCE: Final = "external_tidebus_image"
"""What stores count our reads under, in their metrics and for resource groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScanSettings:
    """All of them are of one capture."""

    scans_at_once: int = 2
    """More wait; each reads one region at a time."""
    scan_s_max: float = 5.0
    """A scan ends with what it has by then: the owner gives a barrier up after ten seconds, and its changefeeds stand
    still meanwhile."""
    slowed_scan_s_max: float = 1.0
    """The same where a quota slows it down. What a barrier has scanned goes out at once, and few rows at a time disturb
    other changefeeds less than many."""
    call_s_max: float = 3.0
    """For the answer to one page."""
    read_from: ReadFrom = "leader"
    """Whom pages are asked of first. "follower": a replica that asks its leader how far it must be, which spares the
    leader's disk and CPU. "stale": one that does not ask; above its safe_ts it says so. Who cannot serve a page is not
    asked again for it, but the leader."""
    rows_per_s: int = 0
    """Of each store; 0: no bound."""
    bytes_per_s: int = 0
    """Of each store, keys and values; 0: no bound."""
    resource_group: str = ""
    """TiDB's resource group whose quota the reads count towards; "": the default one."""
    in_flight_bytes_max: int = 32 << 20
    """Landed and not acknowledged, of each scan."""
