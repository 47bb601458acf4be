"""A thread that looks at the bus every few seconds, so that its history is there when somebody asks for it."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumers.control.api.backend import Backend
from consumers.control.api.bodies import StoredFeed, shown_state
from consumers.control.api.context import ApiContext
from consumers.control.console.core.history import History, SeenBus, SeenFeed
from schemas.errors import BusError
from schemas.nodes.sorter_service import FeedName

log = logging.getLogger(__name__)

LOOK_S: Final = 3.0
"""Between two looks: each reads what watches keep, and ZooKeeper three times."""


class HistoryWatch:
    """Looks until the API ends."""

    def __init__(self, context: ApiContext) -> None:
        """Begin; the history of ``context`` is ours from now on."""
        self._context, self._history, self._lock = context, History(), threading.Lock()
        context.history = self
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def events(self, name: FeedName | None = None) -> Sequence[Mapping[str, Any]]:
        """Return what has changed, newest first, of one changefeed where it is named."""
        with self._lock:
            return self._history.events(name)

    def batches(self, name: FeedName) -> Sequence[Mapping[str, Any]]:
        """Return a changefeed's newest batches, newest first."""
        with self._lock:
            return self._history.batches(name)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join(LOOK_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                seen = seen_bus(self._context.backend)
                with self._lock:
                    self._history.take(seen, time.time())
            except Exception:
                log.exception("history is not kept")
            self._closed.wait(LOOK_S)


def seen_bus(bus: Backend | None) -> SeenBus:
    """Return what a capture sees of the bus; None: it has no session."""
    if bus is None:
        return SeenBus(trouble="it has no session with ZooKeeper")
    try:
        live = bus.captures()
        captures = {str(capture.capture_id): capture.address for capture in live}
        stored = bus.services()
        services, entries = stored.service_of(), stored.entries()
        reasons = {name: entry.figures.reason for (name, _), entry in entries.items()}
        addresses = {capture.service_id: capture.address for capture in live if capture.service_id}
        feeds = {}
        for feed in bus.all_feeds():
            name = (feed.info.namespace, feed.info.changefeed_id)
            service = services.get(name, "")
            feeds[name] = _seen_feed(feed, service, addresses.get(service, service), reasons.get(name, ""))
        stalls = {str(stall) for view in bus.upstreams() for stall in view.status.get("stalls", ())}
        return SeenBus(captures=captures, owner=str(bus.owner() or ""), feeds=feeds, stalls=frozenset(stalls))
    except BusError as error:
        return SeenBus(trouble=error.code)


def _seen_feed(feed: StoredFeed, service: str, at: str, reason: str) -> SeenFeed:
    status = feed.sorter_status or feed.status
    if status is None:
        return SeenFeed(state=shown_state(feed.state), service=service, at=at)
    return SeenFeed(
        state=shown_state(feed.state),
        code=feed.status.error.code if feed.status and feed.status.error else "",
        service=service,
        at=at,
        checkpoint_ts=status.checkpoint_ts,
        rows_total=status.rows_total,
        spark_rows_total=status.spark_rows_total,
        batch_rows=status.batch_rows,
        batch_s=status.batch_s,
        reason=reason,
    )
