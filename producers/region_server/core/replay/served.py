"""The client's side of a replay: its streams, its registrations, and what of a recorded event each wants. Pure."""

from dataclasses import dataclass, field

from producers.region_server.core.replay.recording import Recorded
from schemas.ids import StoreId, Ts
from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import decode_bytes

Event = cdcpb_pb2.Event


@dataclass(slots=True, eq=False)
class Stream:
    """One EventFeed stream of a client. Without multiplexing a region is registered once, and request ids mean nothing
    in batched resolved ts."""

    store_id: StoreId
    multiplexed: bool
    registered: "dict[tuple[int, int], Served]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Served:
    """One registration of the client, and the recorded one that answers it."""

    stream: Stream
    request_id: int
    region_id: int
    start: bytes
    end: bytes
    checkpoint_ts: Ts
    recorded: Recorded

    def touches(self, start: bytes, end: bytes) -> bool:
        """Whether it has keys in ``[start, end)``."""
        return (not end or self.start < end) and (not self.end or start < self.end)


def covered(recorded: Recorded, by: list[Served]) -> bool:
    """Tell whether the client's registrations together span the recorded range."""
    reached = recorded.start
    for served in sorted(by, key=lambda served: served.start):
        if served.start > reached:
            return False
        if not served.end:
            return True
        reached = max(reached, served.end)
    return bool(recorded.end) and reached >= recorded.end


def wanted_part(served: Served, event: Event) -> Event | None:
    """Return a copy of an event without the rows that this registration did not ask for; None if nothing is left."""
    kept = Event()
    recorded = served.recorded
    narrower = (served.start, served.end) != (recorded.start, recorded.end)
    if not event.HasField("entries") or not (narrower or served.checkpoint_ts > recorded.checkpoint_ts):
        kept.CopyFrom(event)
        return kept
    start, end = raw_range(served)
    for row in event.entries.entries:
        if row.type != Event.INITIALIZED:
            if row.key < start or (end and row.key >= end):
                continue
            commit_ts = row.commit_ts or recorded.commit_ts.get((row.start_ts, row.key), 0)
            if 0 < commit_ts <= served.checkpoint_ts:
                continue
        kept.entries.entries.append(row)
    return kept if kept.entries.entries else None


def raw_range(served: Served) -> tuple[bytes, bytes]:
    """Return the range of raw keys that a registration is about."""
    return decode_bytes(served.start)[0], decode_bytes(served.end)[0] if served.end else b""
