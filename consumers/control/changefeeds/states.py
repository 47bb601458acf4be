"""The owner's side of all changefeeds of one upstream: what users and sorters have written goes through the machine of
:mod:`consumers.control.core.changefeeds.state`, and what follows is written back, by compare-and-set.

ZooKeeper is polled: a look asks for the ``info`` of every changefeed, and for the ``status`` of those that run or have
changed, all at once; decoding is done only where a version has changed. What a process that is no owner any more writes
is a transition that was right for the nodes as it has read them, or is refused: their versions are in the transaction.

Back-off is kept in memory: a new owner begins it anew, as TiCDC's does.
"""

import datetime
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError

from consumers.control.changefeeds.verbs import feed_of
from consumers.control.core.changefeeds.errors import WAITS, FeedError
from consumers.control.core.changefeeds.sorter_plan import FeedName
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
from edges.secrets import decode_info, encode_info
from edges.zookeeper.session import Session, ZooKeeperError
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError, CorruptDataError
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
)

log = logging.getLogger(__name__)

DIED = "sorter.died"
"""Code of a sorter that has ended without saying why: it was killed, had no memory, or its JVM crashed."""
ANSWER_S = 5.0
"""For one request: kazoo keeps it until the connection is back, and who is asked to stop must not wait for that."""
WRITES_MAX = 5
"""Tries to write a transition against a sorter that keeps writing how far it is; then it waits for the next look."""
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


@dataclass(slots=True)
class _Known:
    nodes: _Nodes
    feed: Feed
    seen_at_s: float
    deaths: int


@dataclass(frozen=True, slots=True)
class Death:
    """A sorter has ended; whether it has said why is in the changefeed's status."""

    name: FeedName
    epoch: int
    message: str


class FeedStates:
    """Not thread-safe."""

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
        self._patience, self._clock, self._jitter = patience, clock, jitter
        self._known: dict[FeedName, _Known] = {}
        self._unreadable: dict[FeedName, str] = {}
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
        if self._deaths:
            self._sync()
        nodes_by_name, deaths_by_name = self._read(), self._deaths
        self._deaths = {}
        for name in self._known.keys() - nodes_by_name.keys():
            del self._known[name]
            log.info("changefeed is gone", extra={"changefeed": name[1], "namespace": name[0]})
        for name, nodes in nodes_by_name.items():
            self._take_in(name, nodes, deaths_by_name.get(name), busy)

    def _take_in(self, name: FeedName, nodes: _Nodes, death: Death | None, busy: Collection[FeedName]) -> None:
        """Bring one changefeed up to date."""
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

    def _note(self, name: FeedName, nodes: _Nodes) -> None:
        """Keep what was read; a changefeed that a user has changed, or that is new here, begins from its nodes."""
        known = self._known.get(name)
        identity = (nodes.created_zxid, nodes.info_version)
        if known is not None and identity == (known.nodes.created_zxid, known.nodes.info_version):
            known.nodes = nodes
            return
        feed = replace(feed_of(nodes.info, nodes.status), patience=self._patience_of(nodes.info))
        if feed.state == "warning":  # of a former owner
            feed = _warned(feed, self._clock())
        deaths = nodes.status.sorter_deaths if nodes.status else 0
        self._known[name] = _Known(nodes, feed, self._clock(), deaths)
        log.info("changefeed seen", extra={"changefeed": name[1], "namespace": name[0], "state": feed.state})

    def _messages(self, known: _Known, death: Death | None) -> Iterable[Message]:
        """Yield what a changefeed's status tells the machine; what was told before changes nothing."""
        now_s, status, epoch = self._clock(), known.nodes.status, known.nodes.info.epoch
        if status is not None:
            yield SorterProgress(epoch, status.checkpoint_ts, status.resolved_ts, now_s)
        yield WaitsForTables(self._held(known.nodes.info))
        failure = status.failure if status is not None else None
        if failure is not None and failure.epoch == known.feed.epoch:
            error = FeedError(code=failure.code, message=failure.message, time=failure.time, may_heal=failure.may_heal)
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
        extra: dict[str, Any] = {"changefeed": name[1], "namespace": name[0], "before": before, "state": feed.state}
        error = feed.held or feed.error
        if error is not None:
            extra |= {"code": error.code, "error": error.message}
        if feed.state == "pending" and feed.retrying is not None:
            extra["again_in_s"] = round(feed.retrying.retry_at_s - self._clock(), 1)
        level = {"failed": logging.ERROR, "pending": logging.WARNING}.get(feed.state, logging.INFO)
        log.log(level, "changefeed changed its state", extra=extra)

    def _patience_of(self, info: ChangefeedInfo) -> Patience:
        try:
            total_s = float(load_changefeed(info.sink_uri, info.config).error_stuck_duration_s)
        except ConfigError:  # its sorter says so, and fails
            return self._patience
        return replace(self._patience, total_s=total_s)

    def _write(self, name: FeedName, busy: Collection[FeedName]) -> bool:
        """Write what the machine has decided; False: another has written since the nodes were read."""
        known = self._known[name]
        nodes, feed = known.nodes, known.feed
        leave = feed.state == "stopped" and (name in busy or self._clock() - known.seen_at_s < STOPPING_S)
        if leave:
            return True
        status = _status_after(nodes, feed, known.deaths)
        info = replace(nodes.info, epoch=feed.epoch)
        if (info, status) == (nodes.info, nodes.status):
            return True
        self._session.check_lease()
        with self._session.requests("writing a changefeed's state") as client:
            transaction = client.transaction()
            path = self._paths.changefeed_info(*name)
            if info != nodes.info:
                transaction.set_data(path, encode_info(info), nodes.info_version)
            else:
                transaction.check(path, nodes.info_version)
            path = self._paths.changefeed_status(*name)
            if nodes.status_version is None:
                transaction.create(path, encode_changefeed_status(status))
            else:
                transaction.set_data(path, encode_changefeed_status(status), nodes.status_version)
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

    def _sync(self) -> None:
        """Make sure that what a sorter has written before it ended is what we read."""
        with self._session.requests("asking for the newest state") as client:
            client.sync_async(self._paths.root).get(timeout=ANSWER_S)

    def _read(self) -> dict[FeedName, _Nodes]:
        """Read all changefeeds of the upstream. One that does not decode is said once, and stays as it was known."""
        with self._session.requests("reading changefeeds") as client:
            namespaces = _children(client, [self._paths.changefeeds])[0]
            folders = [f"{self._paths.changefeeds}/{namespace}" for namespace in namespaces]
            names = [
                (namespace, changefeed_id)
                for namespace, ids in zip(namespaces, _children(client, folders), strict=True)
                for changefeed_id in ids
            ]
            infos = _values(client, [self._paths.changefeed_info(*name) for name in names])
            with_status = [
                name
                for name, info in zip(names, infos, strict=True)
                if info is not None and self._needs_status(name, info)
            ]
            statuses = dict(
                zip(
                    with_status,
                    _values(client, [self._paths.changefeed_status(*name) for name in with_status]),
                    strict=True,
                )
            )
        nodes_by_name: dict[FeedName, _Nodes] = {}
        for name, info in zip(names, infos, strict=True):
            if info is not None:
                nodes = self._decoded(name, info, statuses.get(name), has_status=name in statuses)
                if nodes is not None:
                    nodes_by_name[name] = nodes
        return nodes_by_name

    def _needs_status(self, name: FeedName, info: tuple[bytes, Any]) -> bool:
        known = self._known.get(name)
        if known is None or known.feed.state in ("normal", "warning", "pending"):
            return name not in self._others
        is_same = (info[1].czxid, info[1].version) == (known.nodes.created_zxid, known.nodes.info_version)
        return not is_same or known.nodes.status is None or known.nodes.status.state != known.feed.state

    def _reread(self, name: FeedName) -> _Nodes | None:
        with self._session.requests("reading a changefeed") as client:
            info = _values(client, [self._paths.changefeed_info(*name)])[0]
            status = _values(client, [self._paths.changefeed_status(*name)])[0]
        return None if info is None else self._decoded(name, info, status, has_status=True)

    def _decoded(
        self, name: FeedName, info: tuple[bytes, Any], status: tuple[bytes, Any] | None, *, has_status: bool
    ) -> _Nodes | None:
        known = self._known.get(name)
        nodes = known.nodes if known is not None else None
        stat = info[1]
        try:
            same = nodes is not None and (stat.czxid, stat.version) == (nodes.created_zxid, nodes.info_version)
            read = nodes.info if nodes is not None and same else decode_info(info[0])
            if read.upstream != self._upstream:
                if name not in self._others:
                    log.warning(
                        "changefeed is of another upstream, which this capture does not pull",
                        extra={"changefeed": name[1], "namespace": name[0], "upstream": read.upstream},
                    )
                self._others.add(name)
                return None
            self._others.discard(name)
            if not has_status and nodes is not None:
                return replace(nodes, info=read)
            shown = None if status is None else decode_changefeed_status(status[0])
        except CorruptDataError as error:
            if self._unreadable.get(name) != str(error):
                log.error("changefeed is not readable", extra={"changefeed": name[1], "error": str(error)})
            self._unreadable[name] = str(error)
            return nodes
        self._unreadable.pop(name, None)
        return _Nodes(stat.czxid, stat.version, read, None if status is None else status[1].version, shown)


def _warned(feed: Feed, now_s: float) -> Feed:
    """Return a changefeed with a warning as another process has stored it: what it waits for is told anew, and an error
    is over once the checkpoint has moved."""
    if feed.error is not None and feed.error.code in WAITS:
        return replace(feed, error=None, held=feed.error)
    return replace(
        feed, retrying=Retrying(since_s=now_s, attempt=0, retry_at_s=now_s, checkpoint_ts=feed.checkpoint_ts)
    )


def _status_after(nodes: _Nodes, feed: Feed, deaths: int) -> ChangefeedStatus:
    """Return the status with what the machine has decided; how far it is stays as its sorter has written it."""
    before = nodes.status or ChangefeedStatus(
        state=feed.state, checkpoint_ts=feed.checkpoint_ts, resolved_ts=feed.resolved_ts
    )
    error = feed.held or feed.error
    shown = None if error is None else ChangefeedError(code=error.code, message=error.message, time=error.time)
    return replace(before, state=feed.state, error=shown, failure=None, sorter_deaths=deaths)


def _written(results: list[Any]) -> bool:
    errors = [result for result in results if isinstance(result, KazooException)]
    if any(isinstance(error, BadVersionError | NoNodeError | NodeExistsError) for error in errors):
        return False
    for error in errors:
        if not isinstance(error, RolledBackError):
            raise ZooKeeperError("a changefeed's state could not be written", reason=repr(error))
    return not errors


def _children(client: Any, paths: list[str]) -> list[list[str]]:
    """Return the names below each path, in order; none below one that is not there."""
    names = []
    for answer in [client.get_children_async(path) for path in paths]:
        try:
            names.append(sorted(answer.get(timeout=ANSWER_S)))
        except NoNodeError:
            names.append([])
    return names


def _values(client: Any, paths: list[str]) -> list[tuple[bytes, Any] | None]:
    """Return each node's bytes and stat; None for one that is not there."""
    values: list[tuple[bytes, Any] | None] = []
    for answer in [client.get_async(path) for path in paths]:
        try:
            values.append(answer.get(timeout=ANSWER_S))
        except NoNodeError:
            values.append(None)
    return values
