"""Resolving locks that transactions left behind (docs/formats/cdcpb.md §7, after client-go's lock resolver). Pure.

Locks of one key range, or some locks that a reader met, transaction by transaction::

    SCAN --page of locks--> next transaction ---none left---> SCAN of the next page, or DONE
                               |      ^
                               v      |- alive: noted in `held`, left alone
                             CHECK ---|- primary mismatch, refused: noted in `troubles`, left alone
      its primary says how it  |  |   |
      ended, no TTL            |  |   |
                               |  '-async commit, TTL expired--> SECONDARIES --a lock that is not async--> CHECK, forced
                               v                                      |
                            RESOLVE <---commit_ts is known------------'
                               '--all keys done--> next transaction

A key that is not reached (its region moved, its store is away) is asked for again after a back-off; when the task has
waited for :data:`GIVE_UP_MS` in all, the transaction is left and noted, and the others get at least one try. Nothing is
lost by that: the span is still stuck and is looked at again.

A transaction that is alive is never ended: only a TTL that has run out by PD's clock lets TiKV roll it back. Nor is it
pushed, unless somebody reads (``reader_ts``): then its least commit_ts is moved above the reader's version, and the
reader learns whose locks it may pass by (``passable``: rolled back, or committed above its version if at all) and whose
it must read through (``readable``: committed at or below it). Async commit cannot be pushed: a reader waits it out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, assert_never

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
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts

SCAN_LIMIT: Final = 1024
"""Locks of one page, as TiCDC."""
LITE_KEYS_MAX: Final = 16
"""A transaction of fewer keys is resolved by keys, else TiKV looks through the region (client-go's bigTxnThreshold)."""
BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 2_000
GIVE_UP_MS: Final = 20_000
"""Of waiting in one task; as client-go's back-off for locating a region."""
READER_GIVE_UP_MS: Final = 2_000
"""As GIVE_UP_MS, for who reads: a reader has a time of its own."""
TS_MAX: Final = Ts((1 << 64) - 1)

Phase = Enum("Phase", ["START", "SCAN", "CHECK", "SECONDARIES", "RESOLVE", "DONE"])


@dataclass(frozen=True, slots=True)
class LockedTxn:
    """The locks of one transaction that stand on one page."""

    start_ts: Ts
    locks: tuple[SeenLock, ...]


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A lock that was left alone, for its transaction is alive."""

    key: bytes
    primary: bytes
    start_ts: Ts
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One range (or some locks) under resolution."""

    cursor: bytes | None
    """Where the next page starts; None: there is none."""
    end: bytes = b""
    max_version: Ts = TS_MAX
    phase: Phase = Phase.START
    now: Ts = Ts(0)
    todo: tuple[LockedTxn, ...] = ()
    """todo[0] is the transaction at work, outside SCAN."""
    reader_ts: Ts = Ts(0)
    """At which version somebody reads; 0: nobody."""
    passable: tuple[Ts, ...] = ()
    """For a reader: start_ts of transactions of which nothing shows at its version, now or ever."""
    readable: tuple[Ts, ...] = ()
    """For a reader: start_ts of transactions that are committed at or below its version."""
    asked: Asked | None = None
    """The request under way; an answer to any other is a repeat."""
    after_wait: Asked | None = None
    pending: frozenset[bytes] = frozenset()
    """Keys of a request to several regions that have no answer yet."""
    unreached: tuple[bytes, ...] = ()
    """Keys to ask for again once nothing is pending."""
    primary_lock: SeenLock | None = None
    """The primary's lock of an async commit whose TTL has run out."""
    commit_ts: Ts = Ts(0)
    lock_missing: bool = False
    """Some secondary has no lock any more, so commit_ts is what the stores say and not ours to choose."""
    attempt: int = 0
    waited_ms: int = 0
    give_up_ms: int = GIVE_UP_MS
    held: tuple[LiveLock, ...] = ()
    troubles: tuple[str, ...] = ()
    committed: int = 0
    """Transactions whose locks here were committed."""
    rolled_back: int = 0


Stepped = tuple[Task, tuple[Request, ...]]


def range_task(start: bytes, end: bytes, max_version: Ts) -> Task:
    """Return the task for all locks in ``[start, end)`` (raw keys) of transactions up to ``max_version``."""
    return Task(cursor=start, end=end, max_version=max_version)


def locks_task(locks: Iterable[SeenLock]) -> Task:
    """Return the task for locks that a reader met."""
    return Task(cursor=None, todo=_grouped(locks))


def reader_task(locks: Iterable[SeenLock], reader_ts: Ts) -> Task:
    """Return the task for locks that keep a reader at ``reader_ts`` out."""
    return Task(cursor=None, todo=_grouped(locks), reader_ts=reader_ts, give_up_ms=READER_GIVE_UP_MS)


def step(state: Task, message: Message) -> Stepped:
    """Advance one task; an answer to anything but the request under way changes nothing.

    Raises:
        InvariantBrokenError: the stores contradict each other about one transaction.
    """
    match message:
        case BeginScan(now):
            return _next_txn(replace(state, now=now)) if state.phase is Phase.START else (state, ())
        case Woken(now):
            again = state.after_wait
            if again is None:
                return state, ()
            return _ask(replace(state, now=now, after_wait=None), _renewed(again, now))
        case _ if message.request != state.asked:
            return state, ()
        case Scanned():
            return _next_txn(replace(state, todo=_grouped(message.locks), cursor=message.next_start))
        case Status() | TxnNotFound() | PrimaryMismatch():
            return _checked(state, message)
        case Secondaries():
            return _secondaries(state, message)
        case Resolved():
            return _answered(state, message.keys)
        case Unreached():
            return _unreached(state, message)
        case Refused():
            return _leave(state, trouble=message.reason)
        case _:
            assert_never(message)


def _grouped(locks: Iterable[SeenLock]) -> tuple[LockedTxn, ...]:
    by_txn: dict[Ts, list[SeenLock]] = {}
    for lock in locks:
        if lock.holds:
            by_txn.setdefault(lock.start_ts, []).append(lock)
    return tuple(LockedTxn(start_ts, tuple(by_txn[start_ts])) for start_ts in sorted(by_txn))


def _ask(state: Task, request: Asked) -> Stepped:
    match request:
        case Scan():
            phase, keys = Phase.SCAN, frozenset[bytes]()
        case CheckTxn():
            phase, keys = Phase.CHECK, frozenset[bytes]()
        case CheckSecondaries():
            phase, keys = Phase.SECONDARIES, frozenset(request.keys)
        case Resolve():
            phase, keys = Phase.RESOLVE, frozenset(request.keys)
        case _:
            assert_never(request)
    return replace(state, phase=phase, asked=request, pending=keys, unreached=()), (request,)


def _next_txn(state: Task) -> Stepped:
    state = replace(state, primary_lock=None, commit_ts=Ts(0), lock_missing=False, attempt=0)
    if state.todo:
        return _check(state)
    if state.cursor is None:
        return replace(state, phase=Phase.DONE, asked=None), ()
    return _ask(state, Scan(state.cursor, state.end, state.max_version))


def _check(state: Task, *, rollback_if_not_exist: bool = False, force_sync_commit: bool = False) -> Stepped:
    lock = state.todo[0].locks[0]
    request = CheckTxn(
        primary=lock.primary,
        start_ts=lock.start_ts,
        # A lock with TTL 0 asks to be resolved whatever the clock says.
        current_ts=TS_MAX if lock.ttl_ms == 0 else state.now,
        caller_start_ts=state.reader_ts,
        rollback_if_not_exist=rollback_if_not_exist,
        force_sync_commit=force_sync_commit,
    )
    return _ask(state, request)


def _checked(state: Task, message: Status | TxnNotFound | PrimaryMismatch) -> Stepped:
    txn, request = state.todo[0], message.request
    match message:
        case PrimaryMismatch():
            names, instead = request.primary.hex(), message.primary.hex()
            return _leave(state, trouble=f"transaction {txn.start_ts} names primary {names}, which names {instead}")
        case TxnNotFound():
            if txn.locks[0].expired(state.now):
                return _check(state, rollback_if_not_exist=True, force_sync_commit=request.force_sync_commit)
            # Its prewrite is on the way to the primary. Who needs the answer looks again.
            return _leave(state, alive_ms=txn.locks[0].ttl_ms)
        case Status():
            lock = message.lock
            # TiKV never ends an async commit by its TTL: its fate lies with all its keys, and is ours to find out.
            if lock is not None and lock.use_async_commit and not request.force_sync_commit and not message.commit_ts:
                if lock.expired(state.now) or request.current_ts == TS_MAX:
                    return _ask_secondaries(state, lock)
                return _leave(state, alive_ms=lock.ttl_ms)
            if message.ttl_ms > 0 and not message.commit_ts:
                if message.pushed and state.reader_ts:
                    passable = (*state.passable, txn.start_ts)
                    return _next_txn(replace(state, passable=passable, todo=state.todo[1:]))
                return _leave(state, alive_ms=message.ttl_ms)
            return _decided(state, message.commit_ts)
        case _:
            assert_never(message)


def _ask_secondaries(state: Task, primary: SeenLock) -> Stepped:
    state = replace(state, primary_lock=primary, commit_ts=primary.min_commit_ts)
    if not primary.secondaries:
        return _decided(state, primary.min_commit_ts)
    return _ask(state, CheckSecondaries(primary.secondaries, primary.start_ts))


def _secondaries(state: Task, answer: Secondaries) -> Stepped:
    if not state.pending.issuperset(answer.keys):
        return state, ()
    if any(not lock.use_async_commit for lock in answer.locks):
        # The transaction fell back to ordinary two-phase commit, so its primary alone decides.
        return _check(replace(state, primary_lock=None), force_sync_commit=True)
    start_ts = state.todo[0].start_ts
    if len(answer.locks) < len(answer.keys):
        if state.lock_missing and state.commit_ts != answer.commit_ts:
            raise InvariantBrokenError(
                "one async commit has two ends",
                start_ts=start_ts,
                commit_ts=state.commit_ts,
                other_commit_ts=answer.commit_ts,
            )
        if 0 < answer.commit_ts < state.commit_ts:
            raise InvariantBrokenError(
                "async commit ended below its min_commit_ts",
                start_ts=start_ts,
                commit_ts=answer.commit_ts,
                min_commit_ts=state.commit_ts,
            )
        state = replace(state, commit_ts=answer.commit_ts, lock_missing=True)
    elif not state.lock_missing:
        state = replace(state, commit_ts=max((state.commit_ts, *(lock.min_commit_ts for lock in answer.locks))))
    return _answered(state, answer.keys)


def _decided(state: Task, commit_ts: Ts) -> Stepped:
    txn = state.todo[0]
    if 0 < commit_ts <= state.reader_ts:
        state = replace(state, readable=(*state.readable, txn.start_ts))
    elif state.reader_ts:
        state = replace(state, passable=(*state.passable, txn.start_ts))
    keys = dict.fromkeys(lock.key for lock in txn.locks)
    if state.primary_lock is not None:
        # All of an async commit at once: until then each of its readers would have to ask all its keys again.
        keys |= dict.fromkeys((state.primary_lock.key, *state.primary_lock.secondaries))
    lite = state.primary_lock is not None or max(lock.txn_size for lock in txn.locks) < LITE_KEYS_MAX
    request = Resolve(keys=tuple(keys), start_ts=txn.start_ts, commit_ts=commit_ts, lite=lite)
    state, asked = _ask(replace(state, commit_ts=commit_ts, attempt=0), request)
    return state, (Determined(txn.start_ts, commit_ts), *asked)


def _unreached(state: Task, message: Unreached) -> Stepped:
    if isinstance(message.request, Scan | CheckTxn):
        return _wait(state, message.request, message.reason)
    keys = tuple(key for key in message.keys if key in state.pending)
    state = replace(state, unreached=(*state.unreached, *keys))
    return _answered(state, keys, message.reason) if keys else (state, ())


def _answered(state: Task, keys: tuple[bytes, ...], reason: str = "") -> Stepped:
    """Note one region's answer; after the last one ask again for what was not reached, or leave the phase."""
    if state.pending.isdisjoint(keys):
        return state, ()
    state = replace(state, pending=state.pending - frozenset(keys))
    request = state.asked
    assert isinstance(request, CheckSecondaries | Resolve), "only these have pending keys"
    if state.pending:
        return state, ()
    if state.unreached:
        return _wait(state, replace(request, keys=state.unreached), reason or "some regions are not reached")
    if isinstance(request, CheckSecondaries):
        return _decided(state, state.commit_ts)
    ended = state.commit_ts > 0
    state = replace(state, committed=state.committed + ended, rolled_back=state.rolled_back + (not ended))
    return _next_txn(replace(state, todo=state.todo[1:]))


def _wait(state: Task, again: Asked, reason: str) -> Stepped:
    ms = min(BACKOFF_FIRST_MS << min(state.attempt, 16), BACKOFF_MAX_MS)
    if state.waited_ms + ms > state.give_up_ms:
        return _leave(state, trouble=f"gave up: {reason}")
    state = replace(state, asked=None, after_wait=again, attempt=state.attempt + 1, waited_ms=state.waited_ms + ms)
    return state, (WaitMs(ms),)


def _renewed(request: Asked, now: Ts) -> Asked:
    if isinstance(request, CheckTxn) and request.current_ts != TS_MAX:
        return replace(request, current_ts=now)
    return request


def _leave(state: Task, *, alive_ms: int = 0, trouble: str = "") -> Stepped:
    """Leave the transaction at work alone; a scan that is refused ends the task."""
    if trouble:
        state = replace(state, troubles=(*state.troubles, trouble))
    if state.phase is Phase.SCAN:
        return replace(state, phase=Phase.DONE, asked=None), ()
    if alive_ms:
        first = state.todo[0].locks[0]
        state = replace(state, held=(*state.held, LiveLock(first.key, first.primary, first.start_ts, alive_ms)))
    return _next_txn(replace(state, todo=state.todo[1:]))
