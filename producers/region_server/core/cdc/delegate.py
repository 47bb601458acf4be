"""The delegate of one region: everyone who subscribed to it, and what each is sent for every applied write.

A **downstream** is one subscription (stream, request id, region). It starts *initializing*: live rows flow already, in
between those of the incremental scan; with the INITIALIZED row it becomes *initialized*, and only then its resolved ts
counts. A region error stops it for good; the client registers again.

Which writes show, and how (TiKV's rules):

    lock that will be a version -> PREWRITE with value and old value     commit of it -> COMMIT, value only if short
    1PC                         -> COMMITTED with value and old value    rollback mark -> ROLLBACK, no op; where it
    lock written again (heartbeat) -> nothing                            is protected, with a value that is no row
    pessimistic lock, LOCK-type lock and their ends -> nothing
    lossy-DDL or physical-import source -> never; another CDC's source -> not with filter_loop
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from producers.region_server.core.cdc.resolver import Resolver
from producers.region_server.core.store.mvcc import (
    Change,
    Committed,
    Lock,
    Locked,
    Refreshed,
    RolledBack,
    Unlocked,
    Write,
)
from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2

SHORT_VALUE_MAX_BYTES = 255
"""TiKV keeps values up to this size in the write record itself, so a COMMIT can carry them. Source: tikv ``txn_types``,
``SHORT_VALUE_MAX_LEN``."""
EVENT_MAX_BYTES = 512 * 1024
"""A live command is cut into events of about this size, so that 6 MiB messages can hold whole events."""
_NEVER_SENT_SOURCES = ~0xFF
_CDC_WRITE_SOURCE = 0xFF

_Row = cdcpb_pb2.Event.Row
_PREWRITE = cdcpb_pb2.Event.PREWRITE
_COMMIT = cdcpb_pb2.Event.COMMIT
_COMMITTED = cdcpb_pb2.Event.COMMITTED
_ROLLBACK = cdcpb_pb2.Event.ROLLBACK


@dataclass(slots=True, eq=False, kw_only=True)
class Downstream:
    """One subscription. ``[start, end)`` is the observed part of the region in raw keys, ``end`` empty: no bound."""

    region_id: RegionId
    request_id: int
    start: bytes
    end: bytes
    checkpoint_ts: Ts
    filter_loop: bool = False
    fake_prewrites: bool = False
    """As older TiKV: a lock that is written again without its long value shows as a PREWRITE with an empty one."""
    resolver: Resolver = field(default_factory=Resolver)
    initialized: bool = False
    stopped: bool = False
    failed: bool = False
    """Whether a region error stopped it."""

    def is_stopped(self) -> bool:
        """Ask again after every wait: whoever waits may be stopped meanwhile."""
        return self.stopped

    def covers(self, key: bytes) -> bool:
        """Whether a raw key is observed."""
        return self.start <= key and (not self.end or key < self.end)

    def sees(self, txn_source: int) -> bool:
        """Whether rows of that source are sent at all."""
        return not (txn_source & _NEVER_SENT_SOURCES or (self.filter_loop and txn_source & _CDC_WRITE_SOURCE))


class EventBuilder:
    """Gathers rows into events of one downstream and cuts them at a size."""

    def __init__(self, downstream: Downstream, max_bytes: int) -> None:
        self._downstream = downstream
        self._max_bytes = max_bytes
        self._event: cdcpb_pb2.Event | None = None
        self._bytes = 0

    def rows(self, payload_bytes: int) -> "cdcpb_pb2.Event.Entries":
        """The entries to add one row of that size to. Ask :meth:`full` after each row."""
        if self._event is None:
            self._event = cdcpb_pb2.Event(
                region_id=self._downstream.region_id, request_id=self._downstream.request_id
            )  # fmt: skip
            self._bytes = 0
        self._bytes += payload_bytes
        return self._event.entries

    @property
    def full(self) -> bool:
        """Whether the event is large enough to be taken."""
        return self._bytes >= self._max_bytes

    def take(self) -> cdcpb_pb2.Event | None:
        """The gathered event, or None if no row was added since."""
        event, self._event, self._bytes = self._event, None, 0
        return event


def add_prewrite(to: EventBuilder, key: bytes, lock: Lock, old_value: bytes) -> None:
    """Add a PREWRITE row."""
    txn, value = lock.txn, lock.value
    to.rows(len(key) + len(value) + len(old_value)).entries.add(
        start_ts=txn.start_ts,
        type=_PREWRITE,
        op_type=lock.kind,  # the same numbers, by design
        key=key,
        value=value,
        old_value=old_value,
        txn_source=txn.txn_source,
        generation=txn.generation,
    )


def add_committed(to: EventBuilder, key: bytes, write: Write) -> None:
    """Add a COMMITTED row, with the value and the old value."""
    value, old_value = write.value, write.old_value
    to.rows(len(key) + len(value) + len(old_value)).entries.add(
        start_ts=write.start_ts,
        commit_ts=write.commit_ts,
        type=_COMMITTED,
        op_type=write.op,
        key=key,
        value=value,
        old_value=old_value,
        txn_source=write.txn_source,
    )


def _add_commit(to: EventBuilder, key: bytes, write: Write) -> None:
    value = write.value if len(write.value) <= SHORT_VALUE_MAX_BYTES else b""
    to.rows(len(key) + len(value)).entries.add(
        start_ts=write.start_ts,
        commit_ts=write.commit_ts,
        type=_COMMIT,
        op_type=write.op,
        key=key,
        value=value,
        txn_source=write.txn_source,
    )


def live_events(downstream: Downstream, changes: Sequence[Change]) -> Iterator[cdcpb_pb2.Event]:
    """Turn applied writes into events of one downstream and keep its resolver in step.

    Locks count for the resolved ts even where their rows are filtered out, as in TiKV.
    """
    build = EventBuilder(downstream, EVENT_MAX_BYTES)
    resolver, sees = downstream.resolver, downstream.sees
    for change in changes:
        key = change.key
        if not downstream.covers(key):
            continue
        match change:
            case Locked(_, lock, old_value):
                resolver.track(key, lock.txn.start_ts)
                if sees(lock.txn.txn_source):
                    add_prewrite(build, key, lock, old_value)
            case Committed(_, write, one_pc):
                resolver.untrack(key)
                if sees(write.txn_source):
                    (add_committed if one_pc else _add_commit)(build, key, write)
            case RolledBack(_, start_ts, mark):
                resolver.untrack_of(key, start_ts)
                build.rows(len(key)).entries.add(start_ts=start_ts, type=_ROLLBACK, key=key, value=mark)
            case Refreshed(_, lock, old_value):
                if downstream.fake_prewrites and len(lock.value) > SHORT_VALUE_MAX_BYTES and sees(lock.txn.txn_source):
                    add_prewrite(build, key, Lock(lock.txn, lock.kind, b""), old_value)
            case Unlocked():
                resolver.untrack(key)
        if build.full and (event := build.take()) is not None:
            yield event
    if (event := build.take()) is not None:
        yield event


class Delegate:
    """The downstreams of one region on the store that leads it.

    A downstream is first *enrolled*: it waits for a turn to scan and sees nothing yet, but a region error ends it. Once
    *subscribed* it sees every further write; the snapshot that it scans is taken in the same step.
    """

    def __init__(self, region_id: RegionId) -> None:
        self.region_id = region_id
        self.enrolled: list[Downstream] = []
        self.downstreams: list[Downstream] = []

    @property
    def everyone(self) -> list[Downstream]:
        """All downstreams, in the order in which they came into their state."""
        return [*self.downstreams, *self.enrolled]

    def enroll(self, downstream: Downstream) -> None:
        """Add a downstream that will be subscribed later."""
        self.enrolled.append(downstream)

    def subscribe(self, downstream: Downstream, locks: Iterable[tuple[bytes, Lock]]) -> None:
        """Let a downstream see writes; ``locks`` are those open in its range now, before any further write."""
        if downstream in self.enrolled:
            self.enrolled.remove(downstream)
        for key, lock in locks:
            if lock.writes_data:
                downstream.resolver.track(key, lock.txn.start_ts)
        self.downstreams.append(downstream)

    def unsubscribe(self, downstream: Downstream) -> None:
        """Stop a downstream; nothing is sent to it from here on."""
        downstream.stopped = True
        for held in (self.enrolled, self.downstreams):
            if downstream in held:
                held.remove(downstream)

    def observe(self, changes: Sequence[Change]) -> Iterator[tuple[Downstream, cdcpb_pb2.Event]]:
        """Yield the events of every downstream for one applied command. A downstream may be stopped meanwhile."""
        for downstream in list(self.downstreams):
            for event in live_events(downstream, changes):
                if downstream.stopped:
                    break
                yield downstream, event

    def resolve(self, min_ts: Ts) -> Iterator[tuple[Downstream, Ts]]:
        """Yield the resolved ts of every initialized downstream."""
        for downstream in self.downstreams:
            if downstream.initialized:
                yield downstream, downstream.resolver.resolve(min_ts)
