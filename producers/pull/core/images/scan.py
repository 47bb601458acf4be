"""One scan of a key range at a version, page by page, past whatever is in its way. Pure; the shell is
:mod:`producers.pull.images.page_reader`.

    READ --page--> READ ... --range's end, bytes_max, or its time is up--> DONE
     |  |
     |  '--region error, silent store--> WAIT --woken--> READ
     '--locked keys--> RESOLVE --what may be passed or read through--> READ
                          '--still alive, and cannot be pushed--> WAIT --woken--> READ

What a reader does about locks is TiDB's way (client-go's ``ResolveLocksForRead``): a transaction that lives is pushed
to commit above the version, and from then on all requests name it as one whose locks they pass by; so one that lives
for minutes costs one question. Rows before a locked key are taken; those behind it come again with it, so that they
stand in key order and none is taken twice.

A scan never fails as long as something was read: it ends with what it has, and says how far it came.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from producers.pull.core.images.pace import PAGE_ROWS_FIRST, page_rows
from producers.pull.core.locks.messages import SeenLock
from schemas.ids import Ts

_GROWTH_MAX: Final = 16
"""Of how many rows are asked for, from page to page: the first of a range may be a small one among large ones."""
KNOWN_TXNS_MAX: Final = 2_048
"""Transactions that requests name; older ones are asked about again if they are met again."""

Phase = Enum("Phase", ["READ", "RESOLVE", "WAIT", "DONE"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A scan under way. Keys are raw."""

    cursor: bytes
    """Everything below it has been read."""
    end: bytes
    version: Ts
    bytes_left: int
    """The scan ends after the row that takes it to 0 or below."""
    limit: int = PAGE_ROWS_FIRST
    phase: Phase = Phase.READ
    passable: tuple[Ts, ...] = ()
    readable: tuple[Ts, ...] = ()
    attempt: int = 0
    """Tries in a row without a step; the shell's back-off grows with it."""
    at_leader: bool = False
    """A follower did not serve the page: the leader is asked."""
    trouble: str = ""
    """What kept it from getting on last; ''; it has got on since."""


# -- requests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """Read up to ``limit`` rows of ``[start, end)``, of the region of ``start``. Answer: PageRead, NotRead."""

    start: bytes
    end: bytes
    limit: int
    passable: tuple[Ts, ...]
    readable: tuple[Ts, ...]
    at_leader: bool


@dataclass(frozen=True, slots=True)
class ResolveLocks:
    """Ask what became of the transactions of these locks. Answer: LocksResolved."""

    locks: tuple[SeenLock, ...]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Answer Woken after the back-off of try ``attempt``, or after ``ms`` where that is longer."""

    attempt: int
    ms: int


Request = ReadPage | ResolveLocks | WaitFor

# -- messages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead:
    """Rows before the first locked key, which the shell has taken."""

    rows: int
    next_key: bytes
    """Everything below it was read: the last row's successor, or where the region or the range ends."""
    bytes: int
    """Of the rows' keys and values."""
    locks: tuple[SeenLock, ...] = ()
    """Of all locked keys of the page."""


@dataclass(frozen=True, slots=True)
class NotRead:
    """A region error, or no answer."""

    reason: str
    wait_ms: int = 0
    is_too_much: bool = False
    """What was asked for may be more than can be answered: rows may have megabytes each."""


@dataclass(frozen=True, slots=True)
class LocksResolved:
    """What is known of transactions now. ``held``: why some lock is still in the way ('': none is)."""

    passable: tuple[Ts, ...]
    readable: tuple[Ts, ...]
    held: str = ""


@dataclass(frozen=True, slots=True)
class Woken:
    """A wait is over."""


@dataclass(frozen=True, slots=True)
class TimeUp:
    """The scan ends with what it has."""


Message = PageRead | NotRead | LocksResolved | Woken | TimeUp


def step(state: Scan, message: Message) -> tuple[Scan, Request | None]:
    """Advance a scan; None: it is done, or was. A message that does not fit its phase changes nothing."""
    match message:
        case TimeUp():
            return replace(state, phase=Phase.DONE), None
        case PageRead() if state.phase is Phase.READ:
            return _took(state, message)
        case NotRead() if state.phase is Phase.READ:
            limit = 1 if message.is_too_much else state.limit  # the page after it is as large as that row says
            return _wait(replace(state, at_leader=not state.at_leader, limit=limit), message.reason, message.wait_ms)
        case LocksResolved() if state.phase is Phase.RESOLVE:
            return _resolved(state, message)
        case Woken() if state.phase is Phase.WAIT:
            return read(state)
        case _:
            return state, None


def read(state: Scan) -> tuple[Scan, Request | None]:
    """Return the request for the next page: also that of a scan that has just been made."""
    if state.cursor >= state.end or state.bytes_left <= 0:
        return replace(state, phase=Phase.DONE), None
    request = ReadPage(
        start=state.cursor,
        end=state.end,
        limit=state.limit,
        passable=state.passable,
        readable=state.readable,
        at_leader=state.at_leader,
    )
    return replace(state, phase=Phase.READ), request


def _took(state: Scan, page: PageRead) -> tuple[Scan, Request | None]:
    if page.next_key > state.cursor:
        left = state.bytes_left - page.bytes
        limit = page_rows(page.rows, page.bytes, left) if page.rows else state.limit
        limit = min(limit, state.limit * _GROWTH_MAX)
        state = replace(state, limit=limit, attempt=0, at_leader=False, trouble="")
    state = replace(state, cursor=max(state.cursor, page.next_key), bytes_left=state.bytes_left - page.bytes)
    if page.locks and state.bytes_left > 0:
        return replace(state, phase=Phase.RESOLVE), ResolveLocks(page.locks)
    return read(state)


def _resolved(state: Scan, message: LocksResolved) -> tuple[Scan, Request | None]:
    passable = _known(state.passable, message.passable)
    readable = _known(state.readable, message.readable)
    is_news = (passable, readable) != (state.passable, state.readable)
    state = replace(state, passable=passable, readable=readable)
    if message.held or not is_news:
        # Without news the store has answered what it could have known: asking on at once would not end.
        return _wait(state, message.held or "locks stand that were resolved", 0)
    return read(replace(state, trouble=""))


def _wait(state: Scan, reason: str, ms: int) -> tuple[Scan, Request | None]:
    waiting = replace(state, phase=Phase.WAIT, trouble=reason, attempt=state.attempt + 1)
    return waiting, WaitFor(state.attempt, ms)


def _known(before: tuple[Ts, ...], more: tuple[Ts, ...]) -> tuple[Ts, ...]:
    return tuple(dict.fromkeys((*before, *more)))[-KNOWN_TXNS_MAX:]
