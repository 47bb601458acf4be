"""Reads the rows of a key range at a version, by KvScan: the shell of :mod:`producers.pull.core.images.scan`.

KvScan and not the coprocessor, follower reads, priority: docs/decisions/2026-11-22-reading-table-images.md.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producers.errors import RegionMovedError, StoreUnavailableError
from producers.pull.core.images.pace import PAGE_ROWS_FIRST
from producers.pull.core.images.scan import (
    LocksResolved,
    Message,
    NotRead,
    PageRead,
    ReadPage,
    Request,
    ResolveLocks,
    Scan,
    TimeUp,
    WaitFor,
    Woken,
    read,
    step,
)
from producers.pull.core.locks.messages import SeenLock
from producers.pull.core.regions.region_errors import backoff_ms
from producers.pull.core.regions.region_map import Peer, RegionInfo
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.settings import REQUEST_SOURCE, ImageScanSettings
from producers.pull.locks.kv_client import KvClient, raw_end
from producers.pull.locks.resolver import LockResolver, lock_of
from schemas.changes import BinaryArray
from schemas.errors import Action, BusError
from schemas.ids import StoreId, Ts
from schemas.proto import kvrpcpb_pb2
from schemas.rawlog.image_batch import ImageRows

_TROUBLE: Final = "store answers: "


@dataclass(frozen=True, slots=True)
class Page:
    """All rows of ``[start, next_key)``; there may be none."""

    rows: ImageRows
    start: bytes
    next_key: bytes


class _Read(NamedTuple):
    message: Message
    page: Page | None = None
    pause_s: float = 0.0
    rows_read: int = 0
    bytes_read: int = 0
    """With rows of a page that the scan has no room for: the store has read them."""


class PageReader:
    """Reads for one scan, in one thread; ``stopped`` ends it from any."""

    def __init__(
        self,
        kv: KvClient,
        resolver: LockResolver,
        quotas: StoreQuotas,
        settings: ImageScanSettings,
        stopped: threading.Event,
    ) -> None:
        self._kv = kv
        self._resolver = resolver
        self._quotas = quotas
        self._settings = settings
        self._stopped = stopped
        self._no_followers: set[StoreId] = set()
        """Stores that serve no reads of ours: TiFlash, and those that PD does not know."""
        self.trouble = ""
        """What the scan last could not get past; '' if it is done, or got on."""
        self.owes_s = 0.0
        """How long nothing more is to be read, for what its last page has cost."""

    def pages(self, start: bytes, end: bytes, version: Ts, bytes_max: int) -> Iterator[Page]:
        """Yield the rows of ``[start, end)`` (raw) at a version, ascending, until ``bytes_max`` of keys and values are
        there, the time is up, or it was stopped.

        Raises:
            BusError: one that trying again does not mend.
        """
        began_s = time.monotonic()
        deadline = last_s = began_s + self._settings.scan_s_max
        # What a first page costs is known once it is here: a quota of bytes is not spent on rows of unknown size.
        limit = 1 if self._settings.bytes_per_s else PAGE_ROWS_FIRST
        state, request = read(Scan(cursor=start, end=end, version=version, bytes_left=bytes_max, limit=limit))
        while request is not None:
            if self._stopped.is_set() or time.monotonic() >= deadline:
                done = _Read(TimeUp())
            else:
                done = self._perform(state, request, deadline)
            if done.page is not None:
                yield done.page
            state, request = step(state, done.message)
            self.trouble = state.trouble
            if done.pause_s and state.cursor < end:
                # What it owes it pays itself: the first page of the next scan does not wait. What its last page costs,
                # where its bytes are used up, whoever takes the scan's result pays once that is out.
                owes_until_s = time.monotonic() + done.pause_s
                deadline = min(last_s, max(began_s + self._settings.slowed_scan_s_max, owes_until_s))
                if request is None:
                    self.owes_s = max(0.0, min(done.pause_s, deadline - time.monotonic()))
                else:
                    self._pause(done.pause_s, deadline)

    def _perform(self, state: Scan, request: Request, deadline: float) -> _Read:
        match request:
            case WaitFor(attempt, ms):
                wait_ms = max(backoff_ms(attempt, random.random()), ms)  # noqa: S311  # spreads retries, no secret
                self._pause(wait_ms / 1000, deadline)
                return _Read(Woken())
            case ResolveLocks(locks):
                return _Read(self._resolve(locks, state.version))
            case ReadPage():
                try:
                    return self._read(state, request)
                except BusError as error:
                    if error.action is not Action.RETRY:
                        raise
                    if isinstance(error, RegionMovedError):
                        return _Read(NotRead(str(error), error.wait_ms, error.is_too_much))
                    return _Read(NotRead(str(error)))

    def _pause(self, wait_s: float, deadline: float) -> None:
        self._stopped.wait(max(0.0, min(wait_s, deadline - time.monotonic())))

    def _resolve(self, locks: tuple[SeenLock, ...], version: Ts) -> LocksResolved:
        try:
            task = self._resolver.resolve_for_read(locks, version)
        except BusError as error:
            if error.action is not Action.RETRY:
                raise
            return LocksResolved((), (), str(error))
        known = {*task.passable, *task.readable}
        in_the_way = sorted({lock.start_ts for lock in locks} - known)
        if not in_the_way:
            return LocksResolved(task.passable, task.readable)
        why = "; ".join([*(f"alive for {live.ttl_ms} ms: {live.start_ts}" for live in task.held), *task.troubles])
        return LocksResolved(task.passable, task.readable, f"locks of transactions {in_the_way} stand ({why})")

    def _read(self, state: Scan, request: ReadPage) -> _Read:
        region = self._kv.region_of(request.start)
        stop = raw_end(region, request.end)
        replica = None if request.at_leader else self._replica(region)
        wanted = kvrpcpb_pb2.ScanRequest(
            context=self._context(request, is_follower=replica is not None),
            start_key=request.start,
            end_key=stop,
            limit=request.limit,
            version=state.version,
        )
        try:
            reply: kvrpcpb_pb2.ScanResponse = self._kv.call(
                "KvScan", region, wanted, at=replica, timeout_s=self._settings.call_s_max
            )
        except StoreUnavailableError:
            if replica is not None:
                self._no_followers.add(replica.store_id)
            raise
        except RegionMovedError as error:
            if replica is not None and error.is_late:
                # It may be a black hole, each page of which takes a call's time. Or the page is too large for any
                # store in that time, so the leader is asked for less, too.
                self._no_followers.add(replica.store_id)
            raise
        served_by = replica or region.leader
        assert served_by is not None, "region_of gives only regions with a leader"
        if reply.HasField("error"):
            return _Read(_refused(reply.error, request.start))
        done = _page_of(reply, request, stop, state.bytes_left)
        if isinstance(done.message, PageRead):
            pause_s = self._quotas.spend(served_by.store_id, done.rows_read, done.bytes_read)
            return done._replace(pause_s=pause_s)
        return done

    def _replica(self, region: RegionInfo) -> Peer | None:
        """Return the follower that is asked, always the same one of a region; None: the leader."""
        if self._settings.read_from == "leader":
            return None
        followers = [peer for peer in region.peers if peer != region.leader and peer.store_id not in self._no_followers]
        return followers[region.region_id % len(followers)] if followers else None

    def _context(self, request: ReadPage, *, is_follower: bool) -> kvrpcpb_pb2.Context:
        group = self._settings.resource_group
        return kvrpcpb_pb2.Context(
            priority=kvrpcpb_pb2.Low,
            isolation_level=kvrpcpb_pb2.SI,
            not_fill_cache=True,  # rows that are read once must not drive out those that users read
            resolved_locks=request.passable,
            committed_locks=request.readable,
            replica_read=is_follower and self._settings.read_from == "follower",
            stale_read=is_follower and self._settings.read_from == "stale",
            request_source=REQUEST_SOURCE,
            resource_control_context=kvrpcpb_pb2.ResourceControlContext(resource_group_name=group) if group else None,
            max_execution_duration_ms=int(self._settings.call_s_max * 1000),
        )


def _page_of(reply: kvrpcpb_pb2.ScanResponse, request: ReadPage, stop: bytes, bytes_left: int) -> _Read:
    """Return the page's rows up to its first lock, or to the one that uses ``bytes_left`` up."""
    pairs = reply.pairs
    keys, values = [pair.key for pair in pairs], [pair.value for pair in pairs]
    locks: tuple[SeenLock, ...] = ()
    next_key = stop if len(pairs) < request.limit or not keys else keys[-1] + b"\0"
    # A pair with an error has no value, and TiKV gives it no key either; no row of TiDB is empty.
    errors = [(at, pair.error) for at, pair in enumerate(pairs) if pair.HasField("error")] if b"" in values else []
    if errors:
        other = next((error for _, error in errors if not error.HasField("locked")), None)
        if other is not None:
            return _Read(_refused(other, request.start))
        first = errors[0][0]
        keys, values = keys[:first], values[:first]
        next_key = keys[-1] + b"\0" if keys else request.start
        locks = tuple(lock_of(error.locked) for _, error in errors)
    key_sizes, value_sizes = _sizes(keys), _sizes(values)
    size = int(key_sizes.sum() + value_sizes.sum())
    rows_read, bytes_read = len(keys), size
    if keys and size > bytes_left:
        count = int(np.searchsorted(np.cumsum(key_sizes + value_sizes), bytes_left)) + 1
        if count < len(keys):
            keys, values, key_sizes, value_sizes = keys[:count], values[:count], key_sizes[:count], value_sizes[:count]
            next_key, locks = keys[-1] + b"\0", ()
            size = int(key_sizes.sum() + value_sizes.sum())
    rows = ImageRows(key=_column(keys, key_sizes), value=_column(values, value_sizes))
    message = PageRead(rows=len(keys), bytes=size, next_key=next_key, locks=locks)
    page = Page(rows, request.start, next_key) if next_key > request.start else None
    return _Read(message, page, rows_read=rows_read, bytes_read=bytes_read)


def _refused(error: kvrpcpb_pb2.KeyError, start: bytes) -> Message:
    if error.HasField("locked"):  # of the whole range: a lock that is just being written, in the store's memory
        return PageRead(rows=0, bytes=0, next_key=start, locks=(lock_of(error.locked),))
    return NotRead(_TROUBLE + " ".join(str(error).split()))


def _sizes(items: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, items), np.int64, len(items))


def _column(items: Sequence[bytes], sizes: npt.NDArray[np.int64]) -> BinaryArray:
    offsets = np.zeros(len(items) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(items))]
    column: BinaryArray = pa.BinaryArray.from_buffers(pa.binary(), len(items), buffers)
    return column
