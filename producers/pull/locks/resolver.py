"""Resolves locks over gRPC: the shell of :mod:`producers.pull.core.locks.resolving`."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from producers.errors import KvRefusedError
from producers.pull.core.locks.messages import (
    Asked,
    BeginScan,
    CheckSecondaries,
    CheckTxn,
    Determined,
    Message,
    PrimaryMismatch,
    Refused,
    Request,
    Resolve,
    Resolved,
    Scan,
    Scanned,
    Secondaries,
    SeenLock,
    Status,
    TxnNotFound,
    Unreached,
    WaitMs,
    Woken,
)
from producers.pull.core.locks.resolving import (
    SCAN_LIMIT,
    Phase,
    Task,
    locks_task,
    range_task,
    reader_task,
    step,
)
from producers.pull.core.regions.region_map import RegionInfo
from producers.pull.locks.kv_client import KvClient, raw_end
from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.ids import Ts
from schemas.proto import kvrpcpb_pb2

log = logging.getLogger(__name__)

ENDED_MAX: Final = 2048
"""Transactions whose end is remembered, as client-go: a large one has locks in many regions."""
_NO_DATA: Final = (kvrpcpb_pb2.PessimisticLock, kvrpcpb_pb2.SharedLock, kvrpcpb_pb2.SharedPessimisticLock)


@dataclass(slots=True)
class LockCounters:
    """What the resolver has done since its start."""

    tasks: int = 0
    committed: int = 0
    """Transactions whose locks, in one region or all, were committed."""
    rolled_back: int = 0
    left_alive: int = 0
    troubles: int = 0


class LockResolver:
    """Resolves one task at a time for each calling thread. :meth:`close` makes tasks under way end soon."""

    def __init__(self, kv: KvClient) -> None:
        self._kv = kv
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._ended: OrderedDict[Ts, Ts] = OrderedDict()
        self.counters = LockCounters()

    def close(self) -> None:
        """End waits and calls."""
        self._closed.set()
        self._kv.close()

    def resolve_range(self, start: bytes, end: bytes, max_version: Ts) -> Task:
        """Resolve the locks in ``[start, end)`` (raw) of transactions up to ``max_version``; return how it ended."""
        return self._run(range_task(start, end, max_version))

    def resolve(self, locks: Iterable[SeenLock]) -> Task:
        """Resolve locks that a reader met."""
        return self._run(locks_task(locks))

    def resolve_for_read(self, locks: Iterable[SeenLock], reader_ts: Ts) -> Task:
        """Resolve locks that keep a reader at a version out; the task says which it may pass by or read through."""
        return self._run(reader_task(locks, reader_ts))

    def _run(self, task: Task) -> Task:
        """Drive one task to its end.

        Raises:
            PdUnreachableError: PD does not answer.
            PdRefusedError, ClusterMismatchError: PD does not take us.
        """
        with self._lock:
            self.counters.tasks += 1
        inbox: deque[Message] = deque([BeginScan(self._kv.cache.pd.now())])
        while inbox and task.phase is not Phase.DONE and not self._closed.is_set():
            try:
                task, requests = step(task, inbox.popleft())
            except InvariantBrokenError as error:
                # Nothing of ours is wrong by it, and no lock is touched: the span stays where it is and says why.
                log.error("stores contradict each other about a transaction", extra={"error": str(error)})
                task = replace(task, troubles=(*task.troubles, str(error)))
                break
            for request in requests:
                inbox.extend(self._perform(request))
        return self._count(task)

    def _count(self, task: Task) -> Task:
        with self._lock:
            counters = self.counters
            counters.committed += task.committed
            counters.rolled_back += task.rolled_back
            counters.left_alive += len(task.held)
            counters.troubles += len(task.troubles)
        return task

    def _perform(self, request: Request) -> Iterator[Message]:
        match request:
            case Determined(start_ts, commit_ts):
                with self._lock:
                    self._ended[start_ts] = commit_ts
                    while len(self._ended) > ENDED_MAX:
                        self._ended.popitem(last=False)
            case WaitMs(ms):
                self._closed.wait(ms / 1000)
                yield Woken(self._kv.cache.pd.now())
            case Scan():
                yield from self._guarded(request, (request.start,), self._scan(request))
            case CheckTxn():
                yield from self._guarded(request, (request.primary,), self._check(request))
            case CheckSecondaries() | Resolve():
                yield from self._in_regions(request)

    def _guarded(self, request: Asked, keys: tuple[bytes, ...], work: Iterator[Message]) -> Iterator[Message]:
        """Turn errors that a call may end with into answers."""
        try:
            yield from work
        except KvRefusedError as error:
            yield Refused(request, str(error))
        except BusError as error:
            if error.action is not Action.RETRY:
                raise
            yield Unreached(request, keys, str(error))

    def _in_regions(self, request: CheckSecondaries | Resolve) -> Iterator[Message]:
        groups: list[tuple[RegionInfo, tuple[bytes, ...]]] = []

        def group() -> Iterator[Message]:
            groups.extend(self._kv.by_region(request.keys))
            yield from ()

        yield from self._guarded(request, request.keys, group())
        for region, keys in groups:
            if isinstance(request, CheckSecondaries):
                work = self._secondaries(request, region, keys)
            else:
                work = self._resolve(request, region, keys)
            yield from self._guarded(request, keys, work)

    def _scan(self, request: Scan) -> Iterator[Message]:
        region = self._kv.region_of(request.start)
        stop = raw_end(region, request.end)
        wanted = kvrpcpb_pb2.ScanLockRequest(
            max_version=request.max_version, start_key=request.start, end_key=stop, limit=SCAN_LIMIT
        )
        reply: kvrpcpb_pb2.ScanLockResponse = self._kv.call("KvScanLock", region, wanted)
        if reply.HasField("error"):
            yield Refused(request, _text(reply.error))
            return
        locks = tuple(lock_of(info) for info in reply.locks)
        after = locks[-1].key + b"\0" if len(locks) >= SCAN_LIMIT else stop
        yield Scanned(request, locks, after if after < request.end else None)

    def _check(self, request: CheckTxn) -> Iterator[Message]:
        if not request.force_sync_commit:
            with self._lock:
                known = self._ended.get(request.start_ts)
            if known is not None:
                yield Status(request, 0, known)
                return
        wanted = kvrpcpb_pb2.CheckTxnStatusRequest(
            primary_key=request.primary,
            lock_ts=request.start_ts,
            caller_start_ts=request.caller_start_ts,
            current_ts=request.current_ts,
            rollback_if_not_exist=request.rollback_if_not_exist,
            force_sync_commit=request.force_sync_commit,
            verify_is_primary=True,
        )
        region = self._kv.region_of(request.primary)
        reply: kvrpcpb_pb2.CheckTxnStatusResponse = self._kv.call("KvCheckTxnStatus", region, wanted)
        if reply.HasField("error"):
            if reply.error.HasField("txn_not_found"):
                yield TxnNotFound(request)
            elif reply.error.HasField("primary_mismatch"):
                yield PrimaryMismatch(request, reply.error.primary_mismatch.lock_info.primary_lock)
            else:
                yield Refused(request, _text(reply.error))
            return
        lock = lock_of(reply.lock_info) if reply.HasField("lock_info") else None
        pushed = reply.action == kvrpcpb_pb2.MinCommitTSPushed
        yield Status(request, reply.lock_ttl, Ts(reply.commit_version), lock, pushed=pushed)

    def _secondaries(self, request: CheckSecondaries, region: RegionInfo, keys: tuple[bytes, ...]) -> Iterator[Message]:
        wanted = kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=keys, start_version=request.start_ts)
        reply: kvrpcpb_pb2.CheckSecondaryLocksResponse = self._kv.call("KvCheckSecondaryLocks", region, wanted)
        if reply.HasField("error"):
            yield Refused(request, _text(reply.error))
        else:
            yield Secondaries(request, keys, tuple(map(lock_of, reply.locks)), Ts(reply.commit_ts))

    def _resolve(self, request: Resolve, region: RegionInfo, keys: tuple[bytes, ...]) -> Iterator[Message]:
        wanted = kvrpcpb_pb2.ResolveLockRequest(
            start_version=request.start_ts, commit_version=request.commit_ts, keys=keys if request.lite else ()
        )
        reply: kvrpcpb_pb2.ResolveLockResponse = self._kv.call("KvResolveLock", region, wanted)
        yield Refused(request, _text(reply.error)) if reply.HasField("error") else Resolved(request, keys)


def lock_of(info: kvrpcpb_pb2.LockInfo) -> SeenLock:
    """Return what the resolution needs of a lock."""
    return SeenLock(
        key=info.key,
        primary=info.primary_lock,
        start_ts=Ts(info.lock_version),
        ttl_ms=info.lock_ttl,
        txn_size=info.txn_size,
        use_async_commit=info.use_async_commit,
        min_commit_ts=Ts(info.min_commit_ts),
        secondaries=tuple(info.secondaries),
        holds=info.lock_type not in _NO_DATA,
    )


def _text(error: kvrpcpb_pb2.KeyError) -> str:
    return "store answers: " + " ".join(str(error).split())
