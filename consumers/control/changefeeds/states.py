"""The owner's side of all changefeeds of one upstream: what users and sorters have written goes through the machine of
:mod:`consumers.control.core.changefeeds.state`, and what follows is written back, by compare-and-set.

A look reads what watches have told of (:mod:`consumers.control.changefeeds.feed_nodes`), and nothing while nothing has
changed. How far a running changefeed is, its sorter service writes elsewhere: no ``status`` is written for that. What a
process that is no owner any more writes is a transition that was right for the nodes as it has read them, or is
refused: their versions are in the transaction.

Back-off is kept in memory: a new owner begins it anew, as TiCDC's does.
"""

import datetime
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError

from consumers.control.changefeeds.feed_nodes import FeedNodes, FeedView
from consumers.control.changefeeds.feed_troubles import FeedTroubles
from consumers.control.changefeeds.processor_nodes import read_applied_ts
from consumers.control.changefeeds.verbs import feed_of
from consumers.control.core.changefeeds.errors import WAITS, FeedError
from consumers.control.core.changefeeds.service_plan import WantedFeed
from consumers.control.core.changefeeds.sink_errors import EventType, event_type_of
from consumers.control.core.changefeeds.state import (
    PATIENCE,
    Failed,
    Feed,
    Message,
    Patience,
    Retrying,
    SorterProgress,
    Tick,
    WaitsForTables,
    step,
)
from edges.secrets import encode_info
from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.session import Session, ZooKeeperError
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError, ConfigError, CorruptDataError
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    encode_changefeed_status,
)
from schemas.nodes.sorter_service import FeedEntry, FeedName, with_progress

log = logging.getLogger(__name__)

DIED = "sorter.died"
"""Code of a sorter that has ended without saying why: it was killed, had no memory, or its JVM crashed."""
WRITES_MAX = 5
"""Tries to write a transition against a sorter that keeps writing how far it is; then it waits for the next look."""
DEATHS_SHARED_MAX = 1
"""A service that dies of a changefeed once more than so often leaves it to a service of its own."""
STOPPING_S = 2.0
"""After a pause: for so long the status is left to a sorter that may still be writing down its last batch."""


@dataclass(frozen=True, slots=True)
class _Nodes:
    """One changefeed as it was read; a version is None where there is no node."""

    created_zxid: int
    info_version: int
    info: ChangefeedInfo
    status_version: int | None
    status: ChangefeedStatus | None
    """None also where the node is of a removed changefeed of its name."""
    entry: FeedEntry | None
    """How far its sorter service says that it is."""

    @property
    def progress(self) -> ChangefeedStatus | None:
        return with_progress(self.status, self.entry)


@dataclass(slots=True)
class _Known:
    nodes: _Nodes
    feed: Feed
    seen_at_s: float
    deaths: int
    wants_process: bool
    errors: Counter[EventType | None]
    """Of its sink, since it was created; None: those that were not the sink's."""
    held: FeedError | None = None
    """What it waited for at the last look."""
    is_settled: bool = False
    """All that follows from its nodes is written."""


@dataclass(frozen=True, slots=True)
class Death:
    """A sorter has ended; whether it has said why is in the changefeed's status."""

    name: FeedName
    epoch: int
    message: str


class FeedStates:
    """Not thread-safe; close it."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        upstream: UpstreamId,
        *,
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),  # noqa: S311 # spreads load
        held: Callable[[ChangefeedInfo], FeedError | None] = lambda _: None,
    ) -> None:
        """``patience.total_s`` gives way to what a changefeed's own file says.

        ``held`` says for which tables of the upstream a changefeed waits, and why; the same object while that stands.
        """
        self._held = held
        self._session, self._paths, self._upstream = session, paths, upstream
        self._stored = FeedNodes(session, paths)
        self._patience, self._clock, self._jitter = patience, clock, jitter
        self._known: dict[FeedName, _Known] = {}
        self._unreadable = FeedTroubles(log, "changefeed is not readable")
        self._others: set[FeedName] = set()
        self._deaths: dict[FeedName, Death] = {}
        """Not judged yet: why they ended stands in the status, which could not be read."""

    @property
    def feeds(self) -> Mapping[FeedName, Feed]:
        """All changefeeds as of the last look."""
        return {name: known.feed for name, known in self._known.items()}

    def wanted(self) -> dict[FeedName, int]:
        """Return the changefeeds that want a sorter, with their epochs."""
        return {name: known.feed.epoch for name, known in self._known.items() if known.feed.runs}

    def close(self) -> None:
        """Hear of nothing any more."""
        self._stored.close()

    def wanted_feeds(self) -> list[WantedFeed]:
        """Return the changefeeds that are to run, and which of them not beside others."""
        return [
            WantedFeed(
                name=name,
                created_zxid=known.nodes.created_zxid,
                epoch=known.feed.epoch,
                is_alone=known.wants_process or known.deaths > DEATHS_SHARED_MAX,
            )
            for name, known in self._known.items()
            if known.feed.runs
        ]

    def look(self, busy: Collection[FeedName] = (), deaths: Iterable[Death] = ()) -> None:
        """Take in what has been written since the last look, and write what follows from it.

        Args:
            busy: changefeeds whose sorter has not ended yet.
            deaths: sorters that have ended since the last look; each is told once.

        Raises:
            LeaseLostError: the session is over.
            ZooKeeperError: another reason; the same look may work later, and before it no sorter should be started.
        """
        self._deaths |= {death.name: death for death in deaths}
        if self._deaths:  # what a sorter has written before it ended is to be read
            self._stored.refresh(is_exact=True)
        nodes_by_name, deaths_by_name = self._read(), self._deaths
        self._deaths = {}
        for name in self._known.keys() - nodes_by_name.keys():
            del self._known[name]
            log.info("changefeed is gone", extra={"changefeed": name[1], "namespace": name[0]})
        for name, nodes in nodes_by_name.items():
            self._take_in(name, nodes, deaths_by_name.get(name), busy)

    def _take_in(self, name: FeedName, nodes: _Nodes, death: Death | None, busy: Collection[FeedName]) -> None:
        """Bring one changefeed up to date."""
        if death is None and self._is_settled(name, nodes):
            return
        for _ in range(WRITES_MAX):
            self._note(name, nodes)
            self._take(name, self._messages(self._known[name], death))
            death = None
            if self._write(name, busy):
                return
            again = self._reread(name)
            if again is None:
                return  # the next look sees that it is gone
            nodes = again

    def _is_settled(self, name: FeedName, nodes: _Nodes) -> bool:
        """Tell whether nothing can follow: neither its nodes nor what it waits for have changed, and no time counts."""
        known = self._known.get(name)
        if known is None or known.nodes is not nodes or not known.is_settled:
            return False
        if known.feed.state == "pending" or known.feed.retrying is not None:
            return False
        return self._held(nodes.info) == known.held

    def _note(self, name: FeedName, nodes: _Nodes) -> None:
        """Keep what was read; a changefeed that a user has changed, or that is new here, begins from its nodes."""
        known = self._known.get(name)
        identity = (nodes.created_zxid, nodes.info_version)
        if known is not None and identity == (known.nodes.created_zxid, known.nodes.info_version):
            known.nodes = nodes
            return
        patience, wants_process = self._settings_of(nodes.info)
        feed = replace(feed_of(nodes.info, nodes.progress), patience=patience)
        if feed.state == "warning":  # of a former owner
            feed = _warned(feed, self._clock())
        status = nodes.status
        deaths = status.sorter_deaths if status else 0
        errors = Counter[EventType | None]({"dml": status.dml_errors, "ddl": status.ddl_errors} if status else {})
        self._known[name] = _Known(nodes, feed, self._clock(), deaths, wants_process, errors)
        log.info("changefeed seen", extra={"changefeed": name[1], "namespace": name[0], "state": feed.state})

    def _messages(self, known: _Known, death: Death | None) -> Iterable[Message]:
        """Yield what a changefeed's status tells the machine; what was told before changes nothing."""
        now_s, status, epoch = self._clock(), known.nodes.progress, known.nodes.info.epoch
        failure = status.failure if status is not None else None
        if status is not None:
            has_failed = death is not None or (failure is not None and failure.epoch == known.feed.epoch)
            is_asked = known.feed.runs and (has_failed or known.feed.retrying is not None)
            applied_ts = read_applied_ts(self._session, self._paths, known.nodes.info) if is_asked else None
            yield SorterProgress(epoch, status.checkpoint_ts, status.resolved_ts, now_s, applied_ts)
        known.held = self._held(known.nodes.info)
        yield WaitsForTables(known.held)
        if failure is not None and failure.epoch == known.feed.epoch:
            if known.feed.runs:  # once: what follows from it is another epoch
                known.deaths += failure.code == DIED
                known.errors[event_type_of(failure.code)] += 1
            error = FeedError(
                code=failure.code,
                message=failure.message,
                time=failure.time,
                may_heal=failure.may_heal,
                ddl=failure.ddl,
            )
            yield Failed(error, now_s, failure.epoch, self._jitter())
        elif death is not None and death.epoch == known.feed.epoch and known.feed.runs:
            known.deaths += 1
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            yield Failed(FeedError(code=DIED, message=death.message, time=now), now_s, death.epoch, self._jitter())
        yield Tick(now_s)

    def _take(self, name: FeedName, messages: Iterable[Message]) -> None:
        known = self._known[name]
        for message in messages:
            before = known.feed.state
            known.feed = step(known.feed, message)
            if known.feed.state != before:
                self._tell(name, before, known.feed)

    def _tell(self, name: FeedName, before: str, feed: Feed) -> None:
        extra: dict[str, object] = {"changefeed": name[1], "namespace": name[0], "before": before, "state": feed.state}
        error = feed.held or feed.error
        if error is not None:
            extra |= {"code": error.code, "error": error.message}
        if feed.state == "pending" and feed.retrying is not None:
            extra["again_in_s"] = round(feed.retrying.retry_at_s - self._clock(), 1)
        level = {"failed": logging.ERROR, "pending": logging.WARNING}.get(feed.state, logging.INFO)
        log.log(level, "changefeed changed its state", extra=extra)

    def _settings_of(self, info: ChangefeedInfo) -> tuple[Patience, bool]:
        try:  # how long to try again, and whether its file asks for a service of its own
            config = load_changefeed(info.sink_uri, info.config)
        except ConfigError:  # its sorter says so, and fails
            return self._patience, False
        patience = replace(self._patience, total_s=float(config.error_stuck_duration_s))
        return patience, config.sorter.isolation == "process"

    def _write(self, name: FeedName, busy: Collection[FeedName]) -> bool:
        """Write what the machine has decided; False: another has written since the nodes were read."""
        known = self._known[name]
        nodes, feed = known.nodes, known.feed
        leave = feed.state == "stopped" and (name in busy or self._clock() - known.seen_at_s < STOPPING_S)
        known.is_settled = not leave
        if leave:
            return True
        status = _status_after(nodes, feed, known)
        info = nodes.info if nodes.info.epoch == feed.epoch else replace(nodes.info, epoch=feed.epoch)
        if status == nodes.status and info is nodes.info:
            return True
        status = with_progress(status, nodes.entry) or status  # whoever reads the state finds how far it was then
        self._session.check_lease()
        with self._session.requests("writing a changefeed's state") as client:
            transaction = client.transaction()
            path = self._paths.changefeed_info(*name)
            if info != nodes.info:
                transaction.set_data(path, encode_info(info), nodes.info_version)
            else:
                transaction.check(path, nodes.info_version)
            path = self._paths.changefeed_status(*name)
            # The versions would also be those of another changefeed of its name: its sorter is to see whose word it is.
            node = encode_changefeed_status(replace(status, created_zxid=nodes.created_zxid))
            if nodes.status_version is None:
                transaction.create(path, node)
            else:
                transaction.set_data(path, node, nodes.status_version)
            results = transaction.commit_async().get(timeout=ANSWER_S)
        if not _written(results):
            return False
        known.nodes = replace(
            nodes,
            info=info,
            info_version=nodes.info_version + (info != nodes.info),
            status=status,
            status_version=0 if nodes.status_version is None else nodes.status_version + 1,
        )
        return True

    def _read(self) -> dict[FeedName, _Nodes]:
        """Read all changefeeds of the upstream. One that does not decode is said once, and stays as it was known."""
        nodes_by_name = {name: self._decoded(view) for name, view in self._stored.refresh().items()}
        self._others &= nodes_by_name.keys()
        return {name: nodes for name, nodes in nodes_by_name.items() if nodes is not None}

    def _reread(self, name: FeedName) -> _Nodes | None:
        """Return what another has written over what was read."""
        view = self._stored.refresh(is_exact=True).get(name)
        return None if view is None else self._decoded(view)

    def _decoded(self, view: FeedView) -> _Nodes | None:
        """Return a changefeed of ours; None: it is another upstream's, or was never readable."""
        name = view.name
        try:
            info, status = view.info(), view.status()
            if (info.namespace, info.changefeed_id) != name:
                raise CorruptDataError("changefeed is another's", changefeed=name[1], namespace=name[0])
        except BusError as error:  # its bytes, or its key: others have readable ones
            self._unreadable.tell(name, error)
            known = self._known.get(name)
            return None if known is None else known.nodes
        self._unreadable.end(name)
        if info.upstream != self._upstream:
            if name not in self._others:
                log.warning(
                    "changefeed is of another upstream, which this capture does not pull",
                    extra={"changefeed": name[1], "namespace": name[0], "upstream": info.upstream},
                )
            self._others.add(name)
            return None
        self._others.discard(name)
        version = None if view.status_node is None else view.status_node.version
        nodes = _Nodes(view.info_node.created_zxid, view.info_node.version, info, version, status, view.entry)
        known = self._known.get(name)
        return known.nodes if known is not None and known.nodes == nodes else nodes


def _warned(feed: Feed, now_s: float) -> Feed:
    """Return a changefeed with a warning as another process has stored it: what it waits for is told anew, and an error
    is over once the checkpoint has moved."""
    if feed.error is not None and feed.error.code in WAITS:
        return replace(feed, error=None, held=feed.error)
    return replace(feed, retrying=Retrying(since_s=now_s, attempt=0, retry_at_s=now_s, reached_ts=feed.reached_ts))


def _status_after(nodes: _Nodes, feed: Feed, known: _Known) -> ChangefeedStatus:
    """Return the status with what the machine has decided; how far it is stays as its sorter has written it."""
    before = nodes.status or ChangefeedStatus(
        state=feed.state, checkpoint_ts=feed.checkpoint_ts, resolved_ts=feed.resolved_ts
    )
    error = feed.held or feed.error
    shown = None
    if error is not None:
        shown = ChangefeedError(code=error.code, message=error.message, time=error.time, ddl=error.ddl)
    return replace(
        before,
        state=feed.state,
        error=shown,
        failure=None,
        sorter_deaths=known.deaths,
        dml_errors=known.errors["dml"],
        ddl_errors=known.errors["ddl"],
    )


def _written(results: list[object]) -> bool:
    errors = [result for result in results if isinstance(result, KazooException)]
    if any(isinstance(error, BadVersionError | NoNodeError | NodeExistsError) for error in errors):
        return False
    for error in errors:
        if not isinstance(error, RolledBackError):
            raise ZooKeeperError("a changefeed's state could not be written", reason=repr(error))
    return not errors
