"""A capture's candidacy and its reigns, in a thread of their own: campaign, reign until told to end, stand again.

While a reign is on, this thread ticks the capture's agent, too, just before the reign: what the owner's own puller has
landed then reaches the frontier in the same tick.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compose.capture.reign_status import reign_status
from compose.capture.replicated_tables import replicated_tables
from compose.capture.sorter_fleet import SorterFleet, SorterPlaces, SorterSettings
from consumers.control.cluster.capture_registry import CaptureWatch
from consumers.control.cluster.election import Election
from consumers.control.cluster.puller_agent import PullerAgent
from consumers.control.cluster.upstream_node import UpstreamNode
from consumers.control.core.scheduling.coordinator import Identity
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.owner.held_feeds import HeldFeeds
from consumers.control.owner.owner import Owner
from consumers.control.owner.reign import Reign, ReignOptions, ReignParts
from consumers.control.owner.reign_orders import ReignOrders
from consumers.control.peers.interface import FeedKey, Peers
from edges.zookeeper.session import Session
from producers.pull.ddl.ddl_feed import DdlFeed
from producers.pull.feed.types import SpanStatus
from producers.pull.landing.raw_log import ensure_raw_topics
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import SafePointKeeper, keep_safe_point
from producers.pull.puller import Puller, PullerSettings, PullerStats, needed_ts
from producers.tls import Channels
from schemas.errors import BusError, InvariantBrokenError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.topics import raw_topics

log = logging.getLogger(__name__)

BUSY_SHARE_MAX: Final = 0.2
ASSIGNING_SHARE_MAX: Final = 0.6
"""Of the time in ticks: with very many tables one takes long, and the puller needs the interpreter too. While spans are
on their way, the frontier waits for them: then the owner may have more."""
GATHER_S: Final = 0.005
"""The least rest."""
REST_MAX_S: Final = 1.0
"""After one long tick, such as the first, which reads the schema of all tables."""
JOIN_S: Final = 60.0
"""For a reign that is just being begun, which reads the schema and cannot be cut short; then it is left behind."""


def rest_s(spent_s: float, tick_s: float, *, is_settled: bool = True) -> float:
    """Return how long to rest after a tick that took ``spent_s``."""
    share = BUSY_SHARE_MAX if is_settled else ASSIGNING_SHARE_MAX
    return max(tick_s, min(spent_s / share - spent_s, REST_MAX_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPlaces:
    """Where the upstream and the raw log are, and when to do what."""

    upstream: UpstreamId
    pd: str
    kafka: str
    start_ts: Ts | None
    settings: PullerSettings
    options: ReignOptions
    sorters: SorterSettings
    sorter_places: SorterPlaces
    paths: ZkPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureParts:
    """What the capture has whether or not it is the owner."""

    capture: CaptureId
    version: str
    session: Session
    election: Election
    node: UpstreamNode
    peers: Peers
    feed: FeedKey
    watch: CaptureWatch
    puller: Puller
    agent: PullerAgent


@dataclass(frozen=True, slots=True)
class Reigning:
    """A reign that is on. ``began_at_s`` by the monotonic clock."""

    reign: Reign
    ddl: DdlFeed
    began_at_s: float

    def seen(self, puller: Puller) -> tuple[FrontierRecord, PullerStats, SpanStatus]:
        """Return the published place, the puller's numbers and the DDL feed's span; from any thread."""
        return self.reign.place, puller.stats(), self.ddl.status()


class OwnerLoop:
    """One capture's. Methods may be called from any thread."""

    def __init__(self, parts: CaptureParts, places: OwnerPlaces, on_failure: Callable[[BusError], None]) -> None:
        """Stand for nothing yet. ``on_failure``: told of what ended a reign; the capture must end, too."""
        self._parts, self._places, self._on_failure = parts, places, on_failure
        self._leaving = threading.Event()
        self._ticking = threading.Lock()
        self._drives_agent = False
        self._sequence = 0
        self.reigning: Reigning | None = None
        """None: this capture is not the owner, or is still beginning."""
        self._thread = threading.Thread(target=self._run, name="owner", daemon=True)

    def start(self) -> None:
        """Stand for election."""
        self._thread.start()

    @property
    def orders(self) -> ReignOrders | None:
        """What an operator may ask of the reign; None: this capture has none."""
        reigning = self.reigning
        return None if reigning is None else reigning.reign.orders

    def leave(self) -> None:
        """Resign, and stand no more; returns at once."""
        self._leaving.set()
        self._parts.puller.landed.set()  # it may be waiting for that

    def close(self) -> None:
        """Resign, stand no more, and wait until that is so."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def tick_agent(self) -> None:
        """Tick the agent, unless a reign does so."""
        with self._ticking:
            if not self._drives_agent:
                self._parts.agent.tick()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (revision := self._parts.election.campaign(self._leaving.is_set)) is not None:
                log.info("capture is owner", extra={"capture": self._parts.capture, "owner_rev": revision})
                self._reign(revision)
                log.info("capture is owner no more", extra={"capture": self._parts.capture, "owner_rev": revision})
        except BusError as error:
            self._on_failure(error)
        except Exception as error:
            log.exception("owner failed")
            self._on_failure(InvariantBrokenError("owner failed", error=repr(error)))
        finally:
            self._parts.election.resign()

    def _reign(self, revision: int) -> None:
        parts, places = self._parts, self._places
        settings, topics = places.settings, raw_topics(places.upstream, places.settings.topic_prefix)
        with contextlib.ExitStack() as stack:
            partitions = ensure_raw_topics(places.kafka, topics, settings.raw_log)
            topic = stack.enter_context(contextlib.closing(FrontierTopic(places.kafka, topics.frontier)))
            last = topic.newest()
            ddl, snapshot_ts = self._begin_ddl(stack, last)
            owner = Owner(topic, parts.session, revision, partitions, held_lag_s=places.options.held_lag_s)
            place = owner.start(lambda: snapshot_ts)
            keeper = self._begin_keeping(stack, place)
            parts.watch.refresh()  # whoever is registered after the election may hold spans of a predecessor's
            reign = Reign(
                self._reign_parts(revision, owner, ddl),
                places.options,
                had_predecessor=last is not None,
                sequence=self._sequence,
            )
            held = HeldFeeds(replicated_tables)
            fleet = SorterFleet(
                parts.session, places.paths, places.sorter_places, places.sorters, self._on_failure, held.why
            )
            stack.enter_context(fleet)
            stack.callback(self._end, reign)
            stack.callback(parts.election.resign)  # before all else: the next owner need not wait for our sorters' end
            self.reigning = Reigning(reign, ddl, time.monotonic())
            self._drive(reign, keeper, held)

    def _begin_ddl(self, stack: contextlib.ExitStack, last: FrontierRecord | None) -> tuple[DdlFeed, Ts]:
        places = self._places
        ddl = DdlFeed(
            upstream=places.upstream,
            pd_address=places.pd,
            bootstrap_servers=places.kafka,
            start_ts=places.start_ts,
            frontier=last,
            on_fatal=self._on_failure,
            settings=places.settings,
        )
        stack.callback(ddl.stop)
        return ddl, ddl.start()

    def _begin_keeping(self, stack: contextlib.ExitStack, place: FrontierRecord) -> SafePointKeeper:
        settings = self._places.settings
        pd = stack.enter_context(contextlib.closing(PdClient(self._places.pd, channels=Channels(settings.tls))))
        service_id = settings.gc_service_id(self._places.upstream)
        # TiKV registers a region at any ts, also where the changes after it are collected already.
        keep_safe_point(pd, service_id, needed_ts(place), settings.gc_ttl_s)
        keeper = SafePointKeeper(pd, service_id, ttl_s=settings.gc_ttl_s, on_fatal=self._on_failure)
        stack.callback(keeper.stop)
        keeper.start()
        return keeper

    def _reign_parts(self, revision: int, owner: Owner, ddl: DdlFeed) -> ReignParts:
        parts = self._parts
        return ReignParts(
            me=Identity(
                capture=parts.capture,
                version=parts.version,
                owner_revision=revision,
                changefeed_epoch=parts.node.epoch(),
            ),
            owner=owner,
            ddl=ddl,
            peers=parts.peers,
            feed=parts.feed,
            captures=lambda: parts.watch.captures,
            count_regions=parts.puller.table_regions,
            save_epoch=parts.node.write_epoch,
        )

    def _drive(self, reign: Reign, keeper: SafePointKeeper, held: HeldFeeds) -> None:
        parts, options = self._parts, self._places.options
        kept, status_at = None, 0.0
        with self._ticking:
            self._drives_agent = True
        while not self._leaving.is_set() and not reign.is_resigning:
            began_at = time.monotonic()
            parts.session.check_lease()
            parts.agent.tick()
            reign.tick()
            if reign.place is not kept:
                kept = reign.place
                keeper.keep(needed_ts(kept))
            now = time.monotonic()
            if now >= status_at:
                status_at = now + options.status_s
                self._tell_status(reign, held)
            self._rest(time.monotonic() - began_at, is_settled=reign.is_settled)

    def _rest(self, spent_s: float, *, is_settled: bool) -> None:
        """Rest until the next tick, or until our puller has landed more: a row's way is shorter by half a tick.

        What landed a moment ago is followed by other spans of its round of resolved ts: the least rest gathers them.
        """
        landed = self._parts.puller.landed
        rest, least = (
            rest_s(spent_s, tick_s, is_settled=is_settled) for tick_s in (self._places.options.tick_s, GATHER_S)
        )
        if landed.wait(rest - least):
            landed.clear()
        self._leaving.wait(least)

    def _tell_status(self, reign: Reign, held: HeldFeeds) -> None:
        """Say how the upstream is, to whoever looks at its node and to the changefeeds that wait for it."""
        parts, reigning = self._parts, self.reigning
        reports = parts.peers.reports(parts.feed)
        tables = reign.held_tables(reports)
        status = reign_status(parts.capture, reign, reports, tables)
        ddl = reigning.ddl.status().reason if reigning is not None else ""
        if ddl:
            status["stalls"].insert(0, f"ddl jobs: {ddl}")
        held.note(tables, reign.place.resolved_ts, status["stalls"])
        parts.node.tell(status)

    def _end(self, reign: Reign) -> None:
        with self._ticking:
            self._drives_agent = False
        self.reigning = None
        self._sequence = reign.sequence
        reign.close()
