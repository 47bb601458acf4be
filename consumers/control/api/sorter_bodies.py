"""What several answers say of who runs a changefeed."""

from collections.abc import Mapping, Sequence

from consumers.control.api.backend import Backend
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.changefeeds.stored_feed import StoredFeed
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.owner.figures.service_figures import capture_of
from schemas.nodes.sorter_service import FeedName


def feed_places(stored: StoredServices, captures: Sequence[CaptureInfo]) -> dict[FeedName, dict[str, object]]:
    """Return the service and the capture that each changefeed is assigned to, and why its last cut ran where it ran."""
    reasons = {
        (entry.name, service): entry.figures.reason
        for service, entries in stored.progress.items()
        for entry in entries
        if entry.figures.reason
    }
    return {
        name: {
            "service": service,
            "capture": capture_of(service, stored, captures),
            "is_alone": name in _alone(stored),
            "pinned": name in stored.pins,
            **({"reason": reasons[name, service]} if (name, service) in reasons else {}),
        }
        for name, service in stored.service_of().items()
    }


def sorter_body(bus: Backend, name: FeedName, assigned: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return who runs a changefeed: the process that holds its lock, and where it is assigned; None: nobody."""
    holder = bus.sorter(name[1], name[0])
    return {**(holder or {}), **(assigned or {})} if holder or assigned else None


def prologue_body(feed: StoredFeed) -> dict[str, object]:
    """Return how far a changefeed's prologue is; empty: it has none to run."""
    prologue = feed.prologue_to_run
    if prologue is None:
        return {}
    failure = prologue.failure
    return {
        "prologue": {
            "start_ts": prologue.start_ts,
            "end_ts": prologue.end_ts,
            "attempt": prologue.attempt,
            "is_complete": prologue.is_complete,
            "error": None if failure is None else {"code": failure.code, "message": failure.message},
        }
    }


def _alone(stored: StoredServices) -> set[FeedName]:
    return {name for assignment, _ in stored.assignments.values() for name in assignment.dedicated}
