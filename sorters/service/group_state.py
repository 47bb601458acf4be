"""What a service's changefeeds begin and how far they are, written for all of them together.

    ask(entry)  --.                               .--> all who asked have leave
    ask(entry)  --+--> one transaction: check our registration, check our assignment, set the nodes that changed
    note(entry) --'      |                        the figures of entries too, where they are due
                         '--> refused: the assignment is read again; who is not in it any more is refused, others wait

So a cut is begun only by who is, at that moment, the changefeed's one sorter, and its successor knows of it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.progress import readable_entries, readable_figures
from schemas.errors import BusError
from schemas.nodes.feed_figures import FeedFigures, RunKey, encode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assigned,
    Assignment,
    FeedEntry,
    decode_assignment,
    encode_entries,
    with_figures,
)
from sorters.core.service.progress_book import FeedKey, NodeKey, Part, ProgressBook, in_transactions, key_of
from sorters.core.service.slow_words import SlowWords
from sorters.cut.leave import Leave
from sorters.run.nodes.feed_lock import SorterLockLostError

log = logging.getLogger(__name__)

GROUP_S = 0.03
"""Between two transactions at least: what is ready meanwhile goes with the next one."""
BYTES_PER_S = 2 * 1024 * 1024
"""What ZooKeeper gets at most. It keeps its last 500 transactions in memory; and where many hundred changefeeds begin
and end cuts, or figures of all of them are due, more would be written in a second than it can."""
FLUSH_S = 0.5
"""How long news of how far a changefeed is may wait for others to go with."""
FIGURES_S = 2.0
"""Between two writes of figures: they are nearly as large as all else, and nobody needs them sooner."""
REREAD_S = 10.0
"""Between two readings of the assignment, beside the watch that should tell: without it nothing is ever run again."""
ANSWER_S = 2.0
"""A third of the session's time, as for a lock."""


def feed_key(assigned: Assigned) -> FeedKey:
    return assigned.name, assigned.created_zxid


class _Asked:
    """A :class:`~sorters.cut.leave.Leave` that the next transaction gives or refuses."""

    def __init__(self, key: FeedKey | None, is_heard: Callable[[], bool]) -> None:
        """``key`` is None where nobody's right to write is asked for. ``is_heard``: somebody runs transactions."""
        self.key, self._is_heard = key, is_heard
        self._ended = threading.Event()
        self._error: BusError | None = None

    @property
    def is_given(self) -> bool:
        return self._ended.is_set() and self._error is None

    def wait(self) -> None:
        while not self._ended.wait(ANSWER_S):
            if not self._is_heard():
                self.end(_lost(self.key, "the service has ended its session"))
        if self._error is not None:
            raise self._error

    def end(self, error: BusError | None) -> None:
        self._error = error
        self._ended.set()


class GroupState:
    """A thread of its own, for one session. :meth:`close` must be called."""

    def __init__(
        self,
        client: ZooKeeperClient,
        paths: ServicePaths,
        service: str,
        on_assignment: Callable[[Assignment], None],
        is_lost: Callable[[], bool],
    ) -> None:
        """``client`` is a connected KazooClient, whose session has registered the service.

        Args:
            on_assignment: gets the assignment whenever it was read; it must return at once.
            is_lost: tells whether the session's lease is over: nothing is asked of ZooKeeper then.

        Raises:
            KazooException, KazooTimeoutError: ZooKeeper does not answer.
            CorruptDataError: a node does not decode.
        """
        self._client, self._paths, self._service = client, paths, service
        self._on_assignment, self._is_lost = on_assignment, is_lost
        self._versions: dict[NodeKey, int] = {}
        self._is_unsure = False
        """Nobody knows whether the last transaction was done: the versions are asked for before the next one."""
        self._book = ProgressBook(self._load())
        self._figured_at, self._written_bytes = -FIGURES_S, 0
        self._assigned: frozenset[FeedKey] = frozenset()
        self._assignment_version = -1
        """-1: there is no such node."""
        self._lock = threading.Condition()
        self._asked: list[_Asked] = []
        self._closed = self._is_stale = False
        self._read_at = 0.0
        self._unreadable = SlowWords()
        self.read_assignment()
        self._thread = threading.Thread(target=self._run, name="group-state", daemon=True)
        self._thread.start()

    def begin(self, entry: FeedEntry) -> None:
        """Write an entry, and return when it stands there.

        Raises:
            SorterLockLostError: this service is not confirmed to have the changefeed; nothing may be written for it.
        """
        self.ask_to_begin(entry).wait()

    def ask_to_begin(self, entry: FeedEntry) -> Leave:
        """Return at once; the leave is given when the entry stands there.

        Raises:
            SorterLockLostError: the session is over.
        """
        return self._ask(key_of(entry), entry)

    def ask(self, key: FeedKey) -> Leave:
        """Return at once; the leave is given when ZooKeeper has confirmed that the changefeed is this service's.

        Raises:
            SorterLockLostError: the session is over.
        """
        return self._ask(key, None)

    def note(self, entry: FeedEntry) -> None:
        """Write an entry with the next transaction, soon."""
        with self._lock:
            self._book.put(entry)
            self._lock.notify_all()

    def drop(self, key: FeedKey) -> None:
        """Take an entry away, for its changefeed's own nodes say as much; return when it is gone.

        Raises:
            SorterLockLostError: the session is over, or ZooKeeper does not answer.
        """
        asked = _Asked(None, self._is_heard)
        with self._lock:
            self._book.drop(key)
            self._asked.append(asked)
            self._lock.notify_all()
        asked.wait()

    def read_assignment(self) -> None:
        """Read the assignment, and be told when it changes.

        Raises:
            KazooException, KazooTimeoutError, CorruptDataError
        """
        self._is_stale = False  # before: what changes while it is read makes it stale again
        try:
            assignment, version = self._watched_assignment()
        except BaseException:
            self._is_stale = True  # the watch that has told of this one is used up
            raise
        self._read_at = time.monotonic()
        with self._lock:
            self._assigned, self._assignment_version = frozenset(map(feed_key, assignment.feeds)), version
        self._on_assignment(assignment)

    def close(self) -> None:
        """End, with those who wait refused."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join()

    def _watched_assignment(self) -> tuple[Assignment, int]:
        path = self._paths.assignment(self._service)
        while True:
            try:
                node, stat = self._client.get_async(path, watch=self._on_change).get(timeout=ANSWER_S)
                return decode_assignment(node), int(stat.version)
            except NoNodeError:
                if self._client.exists_async(path, watch=self._on_change).get(timeout=ANSWER_S) is None:
                    return Assignment(), -1
            # It was made between the two requests, and no watch tells of that.

    def _ask(self, key: FeedKey, entry: FeedEntry | None) -> Leave:
        asked = _Asked(key, self._is_heard)
        with self._lock:
            if self._closed:
                raise _lost(key, "the service has ended its session")
            if entry is not None:
                self._book.put(entry)
            self._asked.append(asked)
            self._lock.notify_all()
        return asked

    def _is_heard(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        last_at = flushed_at = time.monotonic()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or bool(self._asked) or self._is_stale, timeout=FLUSH_S / 2)
                if self._closed:
                    unheard, self._asked = self._asked, []
                    break
                late = time.monotonic() >= flushed_at + FLUSH_S and bool(
                    self._book.dirty(are_figures_due=self._are_figures_due())
                )
            if self._is_stale or time.monotonic() >= self._read_at + REREAD_S:
                self._reread()
            if not self._asked and not late:
                continue
            rest_s = last_at + pause_s(self._written_bytes) - time.monotonic()
            if rest_s > 0:
                time.sleep(rest_s)
            last_at = flushed_at = time.monotonic()
            self._commit()
        for asked in unheard:
            asked.end(_lost(asked.key, "the service has ended its session"))

    def _commit(self) -> None:
        """Run one transaction for all who have asked, or as many as ZooKeeper needs."""
        with self._lock:
            all_asked, self._asked = self._asked, []
            version, assigned, are_figures_due = self._assignment_version, self._assigned, self._are_figures_due()
            dirty = self._book.dirty(are_figures_due=are_figures_due)
        waiting = []
        for asked in all_asked:
            if asked.key is None or asked.key in assigned:
                waiting.append(asked)
            else:
                asked.end(_lost(asked.key, "the changefeed was given to another service"))
        if self._is_lost():
            _refuse(waiting, "zookeeper does not confirm the session")
            return
        try:
            nodes = {key: _encoded(key.part, entries) for key, (_, entries) in dirty.items()}
            self._written_bytes = sum(map(len, nodes.values()))
            for part in in_transactions(nodes):
                if not self._write(version, part):
                    self.read_assignment()
                    with self._lock:
                        self._asked = waiting + self._asked
                    return
        except (KazooException, KazooTimeoutError, BusError) as error:
            self._is_unsure = True
            _refuse(waiting, repr(error))
            return
        with self._lock:
            for key, (change, _) in dirty.items():
                self._book.written(key, change)
            if are_figures_due and any(key.part is Part.FIGURES for key in dirty):
                self._figured_at = time.monotonic()
            self._lock.notify_all()
        for asked in waiting:
            asked.end(None)

    def _are_figures_due(self) -> bool:
        return time.monotonic() >= self._figured_at + FIGURES_S

    def _write(self, assignment_version: int, nodes: dict[NodeKey, bytes]) -> bool:
        """Write the nodes if the service is registered and its assignment is the known one; False: that has changed.

        Raises:
            KazooException, KazooTimeoutError: ZooKeeper does not answer, or nobody knows what it has done.
            SorterLockLostError: the session is over, or another process writes as this service.
        """
        if self._is_unsure:
            for key in {*self._versions, *nodes}:
                stat = self._client.exists_async(self._path(key)).get(timeout=ANSWER_S)
                if stat is None:
                    self._versions.pop(key, None)
                else:
                    self._versions[key] = int(stat.version)
            self._is_unsure = False
        transaction = self._client.transaction()
        transaction.check(self._paths.service(self._service), -1)
        if assignment_version >= 0:
            transaction.check(self._paths.assignment(self._service), assignment_version)
        for key, node in nodes.items():
            if key in self._versions:
                transaction.set_data(self._path(key), node, self._versions[key])
            else:
                transaction.create(self._path(key), node)
        results = transaction.commit_async().get(timeout=ANSWER_S)
        failed = [(at, result) for at, result in enumerate(results) if isinstance(result, KazooException)]
        reasons = [(at, error) for at, error in failed if not isinstance(error, RolledBackError)]
        if not failed:
            for key in nodes:
                self._versions[key] = self._versions.get(key, -1) + 1
            return True
        at, reason = reasons[0] if reasons else failed[0]
        if at == 1 and assignment_version >= 0 and isinstance(reason, BadVersionError | NoNodeError):
            return False
        if at == 0 and isinstance(reason, NoNodeError):
            raise SorterLockLostError("the service's registration is gone with its session", service=self._service)
        if isinstance(reason, BadVersionError | NodeExistsError | NoNodeError):
            raise SorterLockLostError(
                "another process writes as this service", service=self._service, reason=repr(reason)
            )
        raise reason

    def _reread(self) -> None:
        try:
            self.read_assignment()
        except (KazooException, KazooTimeoutError, BusError) as error:
            reason = str(error) if isinstance(error, BusError) else repr(error)
            if self._unreadable.are_due(reason, time.monotonic()):
                path = self._paths.assignment(self._service)
                extra = {"service": self._service, "path": path, "reason": reason}
                log.warning("assignment is not readable; trying again", extra=extra)
            time.sleep(FLUSH_S)
        else:
            if self._unreadable.end():
                log.info("assignment is readable again", extra={"service": self._service})

    def _load(self) -> dict[int, list[FeedEntry]]:
        """Read what this service has said in an earlier life. A node that nobody can read says nothing, to owners too,
        and is written anew: its changefeeds begin where their ``status`` is.
        """
        stored = {
            number: readable_entries(node, self._path(NodeKey(Part.PROGRESS, number)))
            for number, node in self._read(Part.PROGRESS)
        }
        figures: dict[RunKey, FeedFigures] = {}
        for number, node in self._read(Part.FIGURES):
            figures |= readable_figures(node, self._path(NodeKey(Part.FIGURES, number)))
        return {number: [with_figures(entry, figures) for entry in entries] for number, entries in stored.items()}

    def _read(self, part: Part) -> Iterator[tuple[int, bytes]]:
        folder = self._folder(part)
        self._client.ensure_path_async(folder).get(timeout=ANSWER_S)
        for name in filter(str.isdecimal, self._children(folder)):
            node, stat = self._client.get_async(f"{folder}/{name}").get(timeout=ANSWER_S)
            self._versions[NodeKey(part, int(name))] = int(stat.version)
            yield int(name), bytes(node)

    def _folder(self, part: Part) -> str:
        of_service = self._paths.service_progress if part is Part.PROGRESS else self._paths.service_figures
        return of_service(self._service)

    def _path(self, key: NodeKey) -> str:
        of_number = self._paths.entries if key.part is Part.PROGRESS else self._paths.entry_figures
        return of_number(self._service, key.number)

    def _children(self, path: str) -> Iterable[str]:
        try:
            return sorted(self._client.get_children_async(path).get(timeout=ANSWER_S))
        except NoNodeError:
            return []

    def _on_change(self, _event: object) -> None:
        # In kazoo's thread: only notes, and returns at once.
        self._is_stale = True


def pause_s(written_bytes: int) -> float:
    """Return how long the next transaction waits after the begin of one that wrote so many bytes."""
    return max(GROUP_S, written_bytes / BYTES_PER_S)


def _encoded(part: Part, entries: Iterable[FeedEntry]) -> bytes:
    if part is Part.PROGRESS:
        return encode_entries(entries)
    return encode_figures((entry.run, entry.figures) for entry in entries)


def _lost(key: FeedKey | None, reason: str) -> SorterLockLostError:
    (namespace, changefeed_id), _ = key or (("", ""), 0)
    return SorterLockLostError(
        "this service may not write for the changefeed", changefeed=changefeed_id, namespace=namespace, reason=reason
    )


def _refuse(waiting: Iterable[_Asked], reason: str) -> None:
    for asked in waiting:
        asked.end(_lost(asked.key, reason))
