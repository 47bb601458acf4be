"""The order rules of an EventFeed stream, as a real TiKV keeps them (docs/formats/cdcpb.md §4, §9): one checker for the
recording of a real cluster and for our own region server.

What was seen to be allowed is allowed: a resolved ts that repeats or steps back, rows of several regions in one
message, commits that are not in commit_ts order, a COMMIT before its PREWRITE until INITIALIZED, one INITIALIZED behind
an error, and a region_not_found that answers a Deregister.
"""

from collections import Counter
from dataclasses import dataclass, field

from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import decode_bytes

Event = cdcpb_pb2.Event
Row = cdcpb_pb2.Event.Row
SHORT_VALUE_MAX_BYTES = 255
_Key = tuple[int, int]


class RuleBrokenError(AssertionError):
    """A message that a TiKV would not send."""


@dataclass(slots=True)
class Registered:
    """One registration and what was sent for it so far. Keys are raw."""

    start: bytes
    end: bytes
    checkpoint_ts: int
    initialized: bool = False
    failed: bool = False
    resolved_ts: int = 0
    scanned: tuple[bytes, float] = (b"", float("-inf"))
    """Key of the newest scanned row, and its commit_ts negated: rows of a scan ascend by this."""
    prewrites: set[tuple[int, bytes]] = field(default_factory=set)


class FeedRules:
    """Follows one stream: what the client asks by :meth:`request`, what the store says by :meth:`message`."""

    def __init__(self, *, multiplexed: bool = True) -> None:
        self.kinds: Counter[str] = Counter()
        """Of messages, rows and errors, by how often they came."""
        self._multiplexed = multiplexed
        self._registered: dict[_Key, Registered] = {}
        self._deregistered: Counter[_Key] = Counter()

    def request(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Note what the client asks; asking again for what runs changes nothing."""
        key = (request.request_id, request.region_id)
        if request.WhichOneof("request") == "deregister":
            for known in [known for known in self._registered if known[0] == key[0] and key[1] in (0, known[1])]:
                del self._registered[known]
                self._deregistered[known] += 1
            return
        before = self._registered.get(key)
        if before is None or before.failed:
            self._registered[key] = Registered(
                decode_bytes(request.start_key)[0] if request.start_key else b"",
                decode_bytes(request.end_key)[0] if request.end_key else b"",
                request.checkpoint_ts,
            )

    def message(self, message: cdcpb_pb2.ChangeDataEvent) -> None:
        """Check one message.

        Raises:
            RuleBrokenError: it breaks a rule.
        """
        _hold(bool(message.events) != message.HasField("resolved_ts"), "events or a resolved ts, never both", message)
        self.kinds[
            "several events" if len(message.events) > 1 else "one event" if message.events else "resolved ts"
        ] += 1
        for event in message.events:
            key = (event.request_id, event.region_id)
            if event.HasField("error"):
                self._error(key, event)
            elif event.HasField("entries"):
                self._entries(key, event)
            else:
                raise RuleBrokenError(f"an event without rows or error: {event}")
        if message.HasField("resolved_ts"):
            self._resolved(message.resolved_ts)

    def _resolves(self, request_id: int, region_id: int) -> Registered | None:
        if self._multiplexed:
            return self._registered.get((request_id, region_id))
        running = [
            registered for key, registered in self._registered.items() if key[1] == region_id and not registered.failed
        ]
        return running[-1] if running else None

    def _error(self, key: _Key, event: Event) -> None:
        named = [field.name for field, _ in event.error.ListFields()]
        _hold(len(named) <= 1, "an error says one thing", event)
        self.kinds["error " + (named[0] if named else "of no kind")] += 1
        if named == ["region_not_found"] and self._deregistered[key]:
            self._deregistered[key] -= 1
            return
        registered = self._registered.get(key)
        if registered is None:
            _hold(key in self._deregistered, "an error is of what was registered", event)
            return
        _hold(not registered.failed, "an error ends a registration that runs", event)
        if named != ["duplicate_request"]:
            registered.failed = True

    def _resolved(self, resolved: cdcpb_pb2.ResolvedTs) -> None:
        _hold(self._multiplexed or not resolved.request_id, "without multiplexing it names no request", resolved)
        _hold(bool(resolved.regions) and resolved.ts > 0, "a resolved ts has regions and a ts", resolved)
        _hold(len(set(resolved.regions)) == len(resolved.regions), "a region is named once", resolved)
        for region_id in resolved.regions:
            registered = self._resolves(resolved.request_id, region_id)
            if registered is None:
                continue  # deregistered meanwhile
            _hold(
                registered.initialized and not registered.failed,
                "a resolved ts is of initialized registrations",
                resolved,
            )
            registered.resolved_ts = max(registered.resolved_ts, resolved.ts)

    def _entries(self, key: _Key, event: Event) -> None:
        registered, rows = self._registered.get(key), event.entries.entries
        if registered is None:
            _hold(key in self._deregistered, "rows are of what was registered", event)
            return
        _hold(bool(rows), "an event has rows", event)
        only_initialized = len(rows) == 1 and rows[0].type == Event.INITIALIZED
        _hold(not registered.failed or only_initialized, "behind an error comes INITIALIZED at most", event)
        if not registered.initialized:
            self._scan_order(registered, event)
        for at, row in enumerate(rows):
            self.kinds[Event.LogType.Name(row.type)] += 1
            if row.type == Event.INITIALIZED:
                _hold(not row.key and not row.start_ts and not row.commit_ts, "INITIALIZED has no key and no ts", row)
                _hold(at == len(rows) - 1, "INITIALIZED is the last row of its event", event)
                _hold(not registered.initialized, "INITIALIZED comes once", event)
                registered.initialized = True
            else:
                _row(registered, row)

    def _scan_order(self, registered: Registered, event: Event) -> None:
        """Keys of the scan ascend, and the versions of a key go from the newest to the oldest.

        An event with the rows of one transaction only may be a 1PC commit that came live; it is left out.
        """
        rows = [row for row in event.entries.entries if row.type == Event.COMMITTED]
        if len({(row.start_ts, row.commit_ts) for row in rows}) == 1:
            return
        for row in rows:
            version = (row.key, -row.commit_ts)
            _hold(version > registered.scanned, "a scan's keys ascend, the newest version of a key first", row)
            registered.scanned = version


def _row(registered: Registered, row: Row) -> None:
    _hold(
        registered.start <= row.key and (not registered.end or row.key < registered.end),
        "a key lies in the registered range",
        row,
    )
    _hold(row.start_ts > 0, "a row has a start_ts", row)
    txn_key = (row.start_ts, row.key)
    match row.type:
        case Event.PREWRITE:
            _hold(row.commit_ts == 0, "a PREWRITE has no commit_ts yet", row)
            _hold(row.op_type in (Event.Row.PUT, Event.Row.DELETE), "a PREWRITE puts or deletes", row)
            _hold(row.op_type == Event.Row.PUT or not row.value, "a DELETE has no value", row)
            registered.prewrites.add(txn_key)
        case Event.COMMIT:
            _committed(registered, row)
            _hold(not row.old_value, "a COMMIT has no old value", row)
            _hold(len(row.value) <= SHORT_VALUE_MAX_BYTES, "a COMMIT has a short value or none", row)
            _hold(
                txn_key in registered.prewrites or not registered.initialized,
                "a COMMIT stands behind its PREWRITE",
                row,
            )
            registered.prewrites.discard(txn_key)
        case Event.COMMITTED:
            _committed(registered, row)
        case Event.ROLLBACK:
            _hold(row.commit_ts == 0 and row.op_type == Event.Row.UNKNOWN, "a ROLLBACK has no commit_ts and no op", row)
            registered.prewrites.discard(txn_key)
        case _:
            raise RuleBrokenError(f"a row of no known type: {row}")


def _committed(registered: Registered, row: Row) -> None:
    _hold(row.start_ts < row.commit_ts, "start_ts < commit_ts", row)
    _hold(row.op_type in (Event.Row.PUT, Event.Row.DELETE), "a change puts or deletes", row)
    _hold(row.commit_ts > registered.checkpoint_ts, "no change is at or below the checkpoint_ts", row)
    _hold(row.commit_ts > registered.resolved_ts, "no change is at or below a resolved ts that was sent", row)


def _hold(kept: bool, rule: str, seen: object) -> None:
    if not kept:
        raise RuleBrokenError(f"{rule}: {str(seen)[:500]}")
