"""What has happened on the bus, by two looks at it, and in which batches a changefeed has come forward of late."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from schemas.ids import Ts
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.nodes.sorter_service import FeedName

EVENTS_MAX: Final = 1_000
BATCHES_MAX: Final = 20
"""Of a changefeed."""
FEEDS_MAX: Final = 1_000
"""Changefeeds whose batches are kept."""
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFeed:
    """A changefeed as of one look."""

    state: str
    code: str = ""
    """Of its error."""
    service: str = ""
    """That it is assigned to."""
    at: str = ""
    """Where that service is: a capture's address, or the service itself."""
    checkpoint_ts: Ts = Ts(0)
    rows_total: int = 0
    spark_rows_total: int = 0
    batch_rows: int = 0
    batch_s: float = 0.0
    reason: str = ""
    """Why its last batch ran where it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBus:
    """The bus as of one look; ``trouble`` says why there was none."""

    captures: Mapping[str, str] = field(default_factory=dict)
    """Addresses by id."""
    owner: str = ""
    feeds: Mapping[FeedName, SeenFeed] = field(default_factory=dict)
    stalls: frozenset[str] = frozenset()
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has changed."""

    number: int
    at_s: float
    text: str
    namespace: str = ""
    """Of the changefeed that it is about, with its id; '': of none."""
    changefeed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The newest batch of a changefeed at a look, where rows have come since the look before."""

    at_s: float
    checkpoint_ts: Ts
    rows: int
    """In that batch."""
    seconds: float
    rows_since: int
    """Since the look before, in one batch or several."""
    spark_rows_since: int
    at: str
    reason: str


class History:
    """Events of the bus, and the newest batches of each changefeed, as they were seen; bounded. For one thread."""

    def __init__(self) -> None:
        self._before: SeenBus | None = None
        self._trouble, self._number = "", 0
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._batches: dict[FeedName, deque[Batch]] = {}

    def take(self, now: SeenBus, at_s: float) -> None:
        """Compare with the look before; one at which nothing was seen changes nothing else."""
        if now.trouble != self._trouble and self._before is not None:
            self._note(at_s, f"this capture cannot look at the bus: {now.trouble}" if now.trouble else "it can again")
        self._trouble = now.trouble
        if now.trouble:
            return
        before, self._before = self._before, now
        if before is None:
            return
        for text, name in changes(before, now):
            self._note(at_s, text, name)
        for name, feed in now.feeds.items():
            self._take_batch(name, before.feeds.get(name), feed, at_s)
        for name in self._batches.keys() - now.feeds.keys():
            del self._batches[name]

    def events(self, name: FeedName | None = None) -> Sequence[Mapping[str, Any]]:
        """Return events, newest first, of one changefeed where it is named."""
        shown = [event for event in tuple(self._events) if name in (None, (event.namespace, event.changefeed))]
        return [asdict(event) for event in reversed(shown)]

    def batches(self, name: FeedName) -> Sequence[Mapping[str, Any]]:
        """Return a changefeed's newest batches, newest first."""
        return [asdict(batch) for batch in reversed(tuple(self._batches.get(name, ())))]

    def _note(self, at_s: float, text: str, name: FeedName = ("", "")) -> None:
        self._number += 1
        self._events.append(Event(number=self._number, at_s=at_s, text=text, namespace=name[0], changefeed=name[1]))

    def _take_batch(self, name: FeedName, before: SeenFeed | None, now: SeenFeed, at_s: float) -> None:
        if before is None or now.rows_total == before.rows_total or now.checkpoint_ts <= before.checkpoint_ts:
            return
        if name not in self._batches and len(self._batches) >= FEEDS_MAX:
            return
        begins = now.rows_total < before.rows_total  # another run counts from 0
        rows_since = now.rows_total - (0 if begins else before.rows_total)
        if not rows_since:
            return
        batch = Batch(
            at_s=at_s,
            checkpoint_ts=now.checkpoint_ts,
            rows=now.batch_rows,
            seconds=now.batch_s,
            rows_since=rows_since,
            spark_rows_since=max(0, now.spark_rows_total - (0 if begins else before.spark_rows_total)),
            at=now.at,
            reason=now.reason,
        )
        self._batches.setdefault(name, deque(maxlen=BATCHES_MAX)).append(batch)


def changes(before: SeenBus, now: SeenBus) -> Iterator[tuple[str, FeedName]]:
    """Yield what is another than before, as people read it, and the changefeed that it is about (of none: two '')."""
    nobody = ("", "")
    for capture, address in _come(before.captures, now.captures):
        yield f"capture {address or capture} has come", nobody
    for capture, address in _come(now.captures, before.captures):
        yield f"capture {address or capture} has gone", nobody
    if now.owner != before.owner and now.owner:
        yield f"capture {now.captures.get(now.owner) or now.owner} is the owner now", nobody
    if before.owner and not now.owner:
        yield "no capture is the owner", nobody
    for name, feed in _come(before.feeds, now.feeds):
        yield f"changefeed {_shown(name)} has been created, and is {feed.state}", name
    for name, _ in _come(now.feeds, before.feeds):
        yield f"changefeed {_shown(name)} is gone", name
    for name in sorted(before.feeds.keys() & now.feeds.keys()):
        yield from ((text, name) for text in _of_feed(_shown(name), before.feeds[name], now.feeds[name]))
    for stall in sorted(now.stalls - before.stalls):
        yield f"stalled: {stall}", nobody
    for stall in sorted(before.stalls - now.stalls):
        yield f"no longer: {stall}", nobody


def _of_feed(name: str, before: SeenFeed, now: SeenFeed) -> Iterator[str]:
    if now.state != before.state:
        yield f"changefeed {name} is {now.state}{f': {now.code}' if now.code else ''}"
    elif now.code and now.code != before.code:
        yield f"changefeed {name}: {now.code}"
    if before.service and now.service and before.service != now.service:
        yield f"changefeed {name} has moved to {now.at or now.service}"


def _come(before: Mapping[_Key, Any], now: Mapping[_Key, _Item]) -> Iterator[tuple[_Key, _Item]]:
    for key, item in now.items():
        if key not in before:
            yield key, item


def _shown(name: FeedName) -> str:
    return name[1] if name[0] == NAMESPACE_DEFAULT else "/".join(name)
