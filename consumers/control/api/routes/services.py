"""Sorter services: who is there, which changefeeds each has, and moving one. TiCDC has nothing like it."""

from collections.abc import Sequence

from fastapi import APIRouter

from consumers.control.api.backend import Backend
from consumers.control.api.bodies import list_body
from consumers.control.api.context import Bus, FeedId, Namespace, User
from consumers.control.api.errors import NoSuchCaptureError, SchedulerRefusedError
from consumers.control.api.requests import MoveFeedBody
from consumers.control.api.sorter_bodies import feed_places, prologue_body, sorter_body
from consumers.control.changefeeds.pins import service_at
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.owner.figures.service_figures import capture_of

router = APIRouter(prefix="/api/tidebus", dependencies=[User], tags=["tidebus"])


@router.get("/services", summary="Sorter services and their changefeeds")
def services(bus: Bus) -> dict[str, object]:
    """Return the services that live, with the capture that runs each ('': it was started by hand)."""
    stored, captures = bus.services(), bus.captures()
    return list_body([_service_body(service, stored, captures) for service in sorted(stored.services)])


@router.get("/changefeeds/{changefeed_id}/sorter", summary="Who runs a changefeed")
def feed_sorter(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return service, capture and process of a changefeed's sorter; empty: none runs it, or is to.

    ``prologue``: while it has still to run what was before the raw log.
    """
    feed, name = bus.feed(feed_id, namespace), (namespace, feed_id)
    body = sorter_body(bus, name, feed_places(bus.services(), bus.captures()).get(name)) or {}
    return body | prologue_body(feed)


@router.post("/changefeeds/{changefeed_id}/move", summary="Move a changefeed to another capture, and keep it there")
def move_feed(bus: Bus, namespace: Namespace, feed_id: FeedId, body: MoveFeedBody) -> dict[str, object]:
    """Let a capture's sorter service run it whenever that lives, also once the capture was started again at the same
    address; '': whichever the owner takes.
    """
    bus.pin(feed_id, namespace, _service_of(bus, body.capture_id) if body.capture_id else "")
    return {}


def _service_body(service: str, stored: StoredServices, captures: Sequence[CaptureInfo]) -> dict[str, object]:
    info, entries = stored.services[service], {entry.name: entry for entry in stored.progress.get(service, ())}
    assignment = stored.assignments[service][0] if service in stored.assignments else None
    feeds = []
    for assigned in assignment.feeds if assignment is not None else ():
        entry = entries.get(assigned.name)
        shown: dict[str, object] = {"namespace": assigned.namespace, "id": assigned.changefeed_id}
        shown |= {"epoch": assigned.epoch, "revision": assigned.revision, "pinned": assigned.name in stored.pins}
        if entry is not None and entry.revision == assigned.revision:
            shown |= {"checkpoint_ts": entry.checkpoint_ts, "rows_total": entry.rows_total}
            shown |= {"spark_rows_total": entry.spark_rows_total, "cpu_s": entry.cpu_s}
            shown["reason"] = entry.figures.reason
        feeds.append(shown)
    return {
        "id": service,
        "capture": capture_of(service, stored, captures),
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "started_at_s": info.started_at_s,
        "master": info.master,
        "spark_ui": info.spark_ui,
        "dedicated": info.dedicated,
        "is_stopping": info.is_stopping,
        "changefeeds": feeds,
    }


def _service_of(bus: Backend, wanted: str) -> str:
    """Return what a pin names by (:class:`~consumers.control.changefeeds.pins.Pin`): the service of a capture, which
    ``wanted`` is the id or address of, or the service of that id.

    Raises:
        NoSuchCaptureError: neither lives.
        SchedulerRefusedError: it runs no service.
    """
    for capture in bus.captures():
        if wanted in (capture.capture_id, capture.address):
            if not capture.service_id:
                raise SchedulerRefusedError("this capture runs no sorter service", capture=wanted[:50])
            return service_at(capture.address)
    known = bus.services().services.get(wanted)
    if known is None:
        raise NoSuchCaptureError("there is no such capture, nor a sorter service of this id", capture=wanted[:50])
    if known.dedicated:
        raise SchedulerRefusedError("this service takes one changefeed alone", service=wanted[:80])
    return wanted
