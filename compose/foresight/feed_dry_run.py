"""`tidebus dry-run --feed`: the row changes that a recorded event feed amounts to, by the client's own code.

The recording is served again on loopback sockets (:mod:`producers.region_server.replay.player`); PD client, region
cache, event feed and matcher run as in a producer. Spans are subscribed and given up when the recorder did. What comes
is collected, repeats are dropped, and the promise of the resolved ts is checked on the way.
"""

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from producers.pull.core.match.change_columns import Change
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.types import FeedCounters, FeedSettings
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.replay.recording import FeedRecording, Note
from producers.region_server.replay.player import FeedReplayServer, read_feed_folder
from schemas.changes import Op
from schemas.errors import Action, BusError, ConfigError, CorruptDataError, InvariantBrokenError
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.codec import decode_bytes
from schemas.tidb.spans import TableSpan

SUBSCRIPTIONS_FILE: Final = "subscriptions.json"
STALL_S: Final = 60.0
"""Without a new change, a resolved ts that moves, or a step of the recording. The client's longest own wait is the
back-off of 2 s."""
_LOOK_S: Final = 0.05


class FeedStalledError(BusError):
    """The recording cannot be played to its end: ``fields`` name what it waits for and how the spans stand."""

    code, action = "dry_run.feed_stalled", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """One subscription of the recorder."""

    name: str
    span: TableSpan
    """Of a made-up table id: the subscription's request id. Its keys are raw."""
    checkpoint_ts: Ts
    until: Ts
    """Rows above it are out of its scope: the recording's end, or what was resolved when it was given up."""
    given_up: bool


def read_spans(folder: Path) -> list[RecordedSpan]:
    """Read the recorder's subscriptions.

    Raises:
        ConfigError: the folder has no ``subscriptions.json``.
        CorruptDataError: it does not parse.
    """
    path = folder / SUBSCRIPTIONS_FILE
    if not path.is_file():
        raise ConfigError("folder has no recorded event feed", folder=str(folder), wanted=SUBSCRIPTIONS_FILE)
    try:
        return [
            RecordedSpan(
                name=subscription["name"],
                span=TableSpan(
                    TableId(subscription["request_id"]), _raw(subscription["start"]), _raw(subscription["end"])
                ),
                checkpoint_ts=Ts(subscription["checkpoint_ts"]),
                until=Ts(subscription["until"]),
                given_up=subscription["deregistered"],
            )
            for subscription in json.loads(path.read_text())["subscriptions"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("subscriptions of a recorded feed do not parse", file=str(path)) from error


class FeedCollector:
    """A feed's sink that keeps every distinct change and holds the feed to its resolved ts."""

    def __init__(self) -> None:
        self.changes: dict[TableId, set[Change]] = {}
        self.resolved_ts: dict[TableId, Ts] = {}
        self.repeats = 0
        self.moves = 0
        """Calls that told something new: a measure of progress. Streams that are opened again repeat rows for ever."""

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        """Take changes.

        Raises:
            InvariantBrokenError: a change that was not known before lies at or below the span's resolved ts.
        """
        known, resolved_ts = self.changes.setdefault(span.table_id, set()), self.resolved_ts.get(span.table_id, 0)
        before = len(known)
        for change in changes:
            if change[0] <= resolved_ts and change not in known:
                raise InvariantBrokenError(
                    "resolved ts ran ahead of a change", region_id=region_id, key=change[3].hex(),
                    commit_ts=change[0], resolved_ts=resolved_ts,
                )  # fmt: skip
        known.update(changes)
        self.repeats += len(changes) - (len(known) - before)
        self.moves += len(known) > before

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        """Take a span's resolved ts.

        Raises:
            InvariantBrokenError: it goes back.
        """
        before = self.resolved_ts.get(span.table_id, 0)
        if ts < before:
            raise InvariantBrokenError("resolved ts went back", table_id=span.table_id, resolved_ts=ts)
        self.moves += ts > before
        self.resolved_ts[span.table_id] = ts

    def turn(self, now_s: float) -> float:
        """Nothing is ever due."""
        return _LOOK_S

    def saturated(self) -> bool:
        """Never: a recording fits into memory."""
        return False


def row_changes(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a recorded feed as objects, by (commit_ts, start_ts, key, subscription).

    Keys and values are in hex; ``value`` is None for a delete, ``old_value`` where there was no row before.

    Raises:
        ConfigError: the folder holds no recorded feed.
        CorruptDataError: it does not parse.
        FeedStalledError: it cannot be played to its end.
        BusError: whatever ends the feed.
    """
    spans = read_spans(folder)
    collected = play(read_feed_folder(folder), spans).collected
    ordered = [
        (change, span.name)
        for span in spans
        for change in collected.changes.get(span.span.table_id, ())
        if span.checkpoint_ts < change[0] <= span.until
    ]
    for (commit_ts, start_ts, op, key, value, old_value, _), name in sorted(
        ordered, key=lambda item: (item[0][0], item[0][1], item[0][3], item[1])
    ):
        yield {
            "sub": name,
            "commit_ts": commit_ts,
            "start_ts": start_ts,
            "key": key.hex(),
            "op": "put" if op == Op.PUT else "delete",
            "value": value.hex() if op == Op.PUT else None,
            "old_value": old_value.hex() or None,
        }


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a recording, and what the client did for it."""

    collected: FeedCollector
    counters: FeedCounters


def play(
    recording: FeedRecording,
    spans: list[RecordedSpan],
    *,
    speed: float = math.inf,
    settings: FeedSettings | None = None,
    on_listening: Callable[[FeedReplayServer], None] = lambda server: None,
) -> Played:
    """Serve a recording to an event feed until every span is resolved as far as it was recorded.

    Args:
        recording: what the stores and PD said.
        spans: what to subscribe when the recorder did.
        speed: of the recording's clock; see :class:`FeedReplayServer`.
        settings: of the feed.
        on_listening: told before the client starts; it may put proxies before the stores.

    Raises:
        FeedStalledError: nothing has moved for :data:`STALL_S`.
        BusError: whatever ends the feed.
    """
    by_request = {span.span.table_id: span for span in spans}
    notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
    failures: queue.SimpleQueue[BusError] = queue.SimpleQueue()
    collector, changed = FeedCollector(), threading.Event()

    def failed(error: BusError) -> None:
        failures.put(error)
        changed.set()

    with FeedReplayServer(recording, speed=speed, on_note=notes.put) as server:
        on_listening(server)
        pd = PdClient(server.pd_address)
        feed = EventFeed(RegionCache(pd), collector, failed, settings)
        feed.start()
        try:
            moves, moved_at_s = (0, 0), time.monotonic()
            leaving: set[TableId] = set()
            while not (server.finished and notes.empty() and _all_resolved(collector, spans)):
                while not notes.empty():
                    fields = notes.get().fields
                    span = by_request.get(TableId(fields.get("request_id", 0)))
                    if span is not None and fields["what"] == "subscribe":
                        feed.subscribe(span.span, span.checkpoint_ts)
                    elif span is not None and fields["what"] == "deregister":
                        leaving.add(span.span.table_id)
                for table_id in [request_id for request_id in leaving if _resolved(collector, by_request[request_id])]:
                    leaving.discard(table_id)
                    feed.unsubscribe(table_id)
                    server.go_on()
                if (collector.moves, server.line) != moves:
                    moves, moved_at_s = (collector.moves, server.line), time.monotonic()
                if time.monotonic() - moved_at_s > STALL_S:
                    raise FeedStalledError(
                        "recorded feed does not go on",
                        waits_for=server.waits_for,
                        spans=[span for span in feed.status() if span.reason],
                    )
                changed.wait(_LOOK_S)
                if not failures.empty():
                    raise failures.get()
        finally:
            feed.stop()
            pd.close()
    return Played(collector, feed.counters)


def _resolved(collector: FeedCollector, span: RecordedSpan) -> bool:
    return collector.resolved_ts.get(span.span.table_id, 0) >= span.until


def _all_resolved(collector: FeedCollector, spans: list[RecordedSpan]) -> bool:
    return all(_resolved(collector, span) for span in spans)


def _raw(encoded: str) -> bytes:
    return decode_bytes(bytes.fromhex(encoded))[0]
