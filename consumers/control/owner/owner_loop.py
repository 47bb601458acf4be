"""A capture's candidacy and its reigns: campaign, reign until told to end, stand again.

    the owner's thread:   campaign --> begin a reign --hand over--.                     .--> wind it up, campaign again
    the agent's thread:                                            tick, tick, ... tick --give back

What takes long (an election, the first reading of the schema, the end of sorters) happens in a thread of its own.
Between its beginning and its end a reign belongs to the thread that owns the agent of the capture: nobody else ticks
either. That thread ticks the agent just before the reign: what the puller of the owner has landed then reaches the
frontier in the same tick.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from consumers.control.cluster.capture_registry import CaptureWatch
from consumers.control.cluster.election import Election
from consumers.control.cluster.upstream_node import UpstreamNode
from consumers.control.core.changefeeds.errors import FeedError
from consumers.control.core.scheduling.coordinator import Identity
from consumers.control.owner.held_feeds import HeldFeeds, ReplicatedTables
from consumers.control.owner.images.image_progress import FeedProgress, images_status
from consumers.control.owner.images.image_wishes import KnowsWishes
from consumers.control.owner.images.imaged_tables import ImagedTables, history_ts
from consumers.control.owner.owned_upstream import KeepsHistory, OwnedUpstream, RunningDdlFeed
from consumers.control.owner.owner import Owner
from consumers.control.owner.pace import GATHER_S, rest_s
from consumers.control.owner.reign import Reign
from consumers.control.owner.reign_orders import ReignOrders
from consumers.control.owner.reign_parts import ReignOptions, ReignParts
from consumers.control.owner.reign_status import reign_status
from consumers.control.peers.interface import FeedKey, Peers
from edges.zookeeper.session import Session
from schemas.errors import BusError, InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.frontier import FrontierRecord
from schemas.tidb.spans import Boundaries

log = logging.getLogger(__name__)

JOIN_S: Final = 60.0
"""For a reign that is just being begun, which reads the schema and cannot be cut short; then it is left behind."""


class LocalPuller(Protocol):
    """What is asked of the capture's own :class:`producers.pull.puller.Puller`."""

    @property
    def landed(self) -> threading.Event:
        """Set whenever more has landed; whoever has seen it clears it."""

    def table_regions(self, tables: Collection[TableId], at_least: int) -> Boundaries:
        """Return where the regions of tables begin, of those that have so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerParts:
    """What an owner works with.

    ``sorters`` gives changefeeds to sorter services while inside; its arguments are the owner's revision and what
    says for what a changefeed waits. ``image_wishes`` knows which changefeeds want table images while inside.
    ``prologues`` has changefeeds' prologues landed while inside.
    """

    capture: CaptureId
    version: str
    session: Session
    election: Election
    node: UpstreamNode
    peers: Peers
    feed: FeedKey
    watch: CaptureWatch
    puller: LocalPuller
    upstream: OwnedUpstream
    replicated: ReplicatedTables
    sorters: Callable[[int, Callable[[ChangefeedInfo], FeedError | None]], AbstractContextManager[object]]
    image_wishes: Callable[[], AbstractContextManager[KnowsWishes]]
    prologues: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext


@dataclass(slots=True)
class Reigning:
    """A reign that is on; one thread has it at a time. ``began_at_s`` by the monotonic clock."""

    reign: Reign
    ddl: RunningDdlFeed
    keeper: KeepsHistory
    held: HeldFeeds
    images: ImagedTables
    began_at_s: float
    status_at_s: float = 0.0
    image_progress: Sequence[FeedProgress] = ()
    """As of the last status."""
    kept: FrontierRecord | None = None
    """For which TiKV's history is kept."""
    given_back: threading.Event = field(default_factory=threading.Event)


class OwnerLoop:
    """One capture's. :meth:`tick`, :meth:`rest` and :meth:`close` are for the thread that owns the capture's agent,
    all else may be called from any thread.
    """

    def __init__(
        self,
        parts: OwnerParts,
        options: ReignOptions,
        on_failure: Callable[[BusError], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stand for nothing yet. ``on_failure`` takes what ended the candidacy; the capture must end, too. While it
        ``is_stopping`` it is not elected, also before it is told to :meth:`leave`.
        """
        self._parts, self._options, self._on_failure = parts, options, on_failure
        self._is_stopping = is_stopping
        self._leaving = threading.Event()
        self._sequence = 0
        self.reigning: Reigning | None = None
        """None: this capture is not the owner, or is still beginning."""
        self._lock = threading.Lock()
        self._handed_over: Reigning | None = None
        self._is_closed = False
        self._mine: Reigning | None = None
        """The ticking thread's."""
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
        self._parts.puller.landed.set()  # the ticking thread may be waiting for that

    def close(self) -> None:
        """Resign, stand no more, and wait until that is so."""
        self.leave()
        with self._lock:
            self._is_closed = True
            handed_over, self._handed_over = self._handed_over, None
        for reigning in (handed_over, self._mine):
            if reigning is not None:
                reigning.given_back.set()
        self._mine = None
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    # -- the thread that owns the agent --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Tick the reign, if one is on.

        Raises:
            BusError: what ends the reign, and the capture with it.
        """
        if self._mine is None:
            with self._lock:
                self._mine, self._handed_over = self._handed_over, None
        mine = self._mine
        if mine is None:
            return
        if self._leaving.is_set() or mine.reign.is_resigning:
            self._mine = None
            mine.given_back.set()
            return
        try:
            self._tick(mine)
        except BusError:
            raise
        except Exception as error:
            log.exception("owner failed")
            raise InvariantBrokenError("owner failed", error=repr(error)) from error

    def rest(self, spent_s: float, *, is_agent_settled: bool, interrupted: threading.Event) -> None:
        """Rest until the next tick, by how long the last one took.

        An owner rests until its puller has landed more: a row's way is shorter by half a tick. What landed a moment ago
        is followed by other spans of its round of resolved ts: the least rest gathers them.
        """
        mine, tick_s = self._mine, self._options.tick_s
        if mine is None:
            interrupted.wait(rest_s(spent_s, tick_s, is_settled=is_agent_settled))
            return
        is_settled = mine.reign.is_settled
        rest, least = (rest_s(spent_s, interval_s, is_settled=is_settled) for interval_s in (tick_s, GATHER_S))
        landed = self._parts.puller.landed
        if landed.wait(rest - least):
            landed.clear()
        self._leaving.wait(least)

    def _tick(self, mine: Reigning) -> None:
        mine.reign.tick()
        record = mine.reign.published
        if record is not mine.kept:
            mine.kept = record
            mine.keeper.keep(history_ts(record))
        now_s = time.monotonic()
        if now_s >= mine.status_at_s:
            mine.status_at_s = now_s + self._options.status_s
            self._write_status(mine)

    def _write_status(self, mine: Reigning) -> None:
        """Say how the upstream is, to whoever looks at its node and to the changefeeds that wait for it."""
        parts = self._parts
        reports = parts.peers.reports(parts.feed)
        tables = mine.reign.held_tables(reports)
        status = reign_status(parts.capture, mine.reign, reports, tables)
        mine.image_progress = mine.images.progress()
        status["images"] = images_status(mine.image_progress)
        ddl = mine.ddl.status().reason
        if ddl:
            status["stalls"].insert(0, f"ddl jobs: {ddl}")
        mine.held.note(tables, mine.reign.published.resolved_ts, status["stalls"])
        parts.node.tell(status)

    # -- the owner's thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (revision := self._parts.election.campaign(self._stands_no_more)) is not None:
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

    def _stands_no_more(self) -> bool:
        return self._leaving.is_set() or self._is_stopping()

    def _reign(self, revision: int) -> None:
        parts, options, upstream = self._parts, self._options, self._parts.upstream
        with contextlib.ExitStack() as stack:
            partitions = upstream.ensure_topics()
            topic = stack.enter_context(contextlib.closing(upstream.open_frontier()))
            last = topic.newest()
            ids = upstream.look_at_log(last)
            ddl = upstream.new_ddl_feed(last)
            stack.callback(ddl.stop)
            snapshot_ts = ddl.start()
            draw = stack.enter_context(upstream.ts_source())
            images = ImagedTables(
                revision, stack.enter_context(parts.image_wishes()), draw, count_regions=parts.puller.table_regions
            )
            stack.callback(images.close)
            owner = Owner(
                topic,
                parts.session,
                revision,
                partitions,
                topic_ids=ids,
                held_lag_s=options.held_lag_s,
                images=images.next_images,
            )
            record = owner.start(lambda: snapshot_ts)
            # TiKV registers a region at any ts, also where the changes after it are collected already.
            keeper = stack.enter_context(upstream.keep_history(history_ts(record)))
            stack.enter_context(upstream.watch_log(lambda: owner.published))
            is_past = stack.enter_context(upstream.clock_bound())
            parts.watch.refresh()  # whoever is registered after the election may hold spans of a predecessor's
            reign = Reign(
                replace(self._reign_parts(revision, owner, ddl, is_past), images=images),
                options,
                had_predecessor=last is not None,
                sequence=self._sequence,
            )
            held = HeldFeeds(parts.replicated)
            stack.enter_context(parts.prologues())
            stack.enter_context(parts.sorters(revision, held.why))
            reigning = Reigning(reign, ddl, keeper, held, images, time.monotonic())
            stack.callback(self._end, reign)
            stack.callback(parts.election.resign)  # before all else: the next owner need not wait for our sorters' end
            self.reigning = reigning
            self._hand_over(reigning)

    def _reign_parts(
        self, revision: int, owner: Owner, ddl: RunningDdlFeed, is_past: Callable[[Ts], bool]
    ) -> ReignParts:
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
            count_partitions=parts.upstream.count_partitions,
            is_past=is_past,
        )

    def _hand_over(self, reigning: Reigning) -> None:
        """Let the other thread have a reign, until it is given back."""
        with self._lock:
            if self._is_closed:
                return
            self._handed_over = reigning
        reigning.given_back.wait()

    def _end(self, reign: Reign) -> None:
        self.reigning = None
        self._sequence = reign.sequence
        reign.close()
