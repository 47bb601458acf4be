"""The incremental scan: what was committed in ``(checkpoint_ts, now]`` and what is locked now, from an exact snapshot.

Keys ascend; of one key first the PREWRITE of its open lock, then its versions, newest first, each with its old value.
The last row is INITIALIZED, without a key. Rollbacks are never scanned.

Exact: the snapshot is taken in the same step in which the downstream begins to see live writes, so a write is in the
snapshot or comes live, never both and never neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from producers.region_server.core.cdc.delegate import Downstream, EventBuilder, add_committed, add_prewrite
from producers.region_server.core.store.mvcc import Lock, RegionData, Write
from schemas.ids import Ts
from schemas.proto import cdcpb_pb2

SCAN_EVENT_BYTES = 32 * 1024
"""About one event's keys and values. Source: tikv ``cdc`` initializer, 32 KiB scan batches."""


@dataclass(frozen=True, slots=True)
class ScanSnapshot:
    """Keys of a range that have something to send, in order, as of one moment. Versions never change, so heads do."""

    keys: list[bytes]
    heads: list[Write | None]
    """The newest version of each key."""
    locks: dict[bytes, Lock]
    """Those that will be versions."""


def take_snapshot(data: RegionData, start: bytes, end: bytes, checkpoint_ts: Ts) -> ScanSnapshot:
    """Keep the newest version of every key changed after ``checkpoint_ts``, and every lock that will be a version."""
    writes = data.writes
    keys = [key for key in data.keys_between(start, end) if writes[key].commit_ts > checkpoint_ts]
    locks = {key: lock for key, lock in data.locked_between(start, end) if lock.writes_data}
    if locks:
        # Old values of locked keys come from their newest version, also where it is not above the checkpoint.
        keys = sorted({*keys, *locks})
    return ScanSnapshot(keys, [writes.get(key) for key in keys], locks)


def scan(
    snapshot: ScanSnapshot, downstream: Downstream, *, event_bytes: int = SCAN_EVENT_BYTES
) -> Iterator[cdcpb_pb2.Event]:
    """Yield the events of the scan; the last one ends with INITIALIZED. Lazy: stop whenever the downstream stops."""
    build = EventBuilder(downstream, event_bytes)
    checkpoint_ts = downstream.checkpoint_ts
    for key, head in zip(snapshot.keys, snapshot.heads, strict=True):
        lock = snapshot.locks.get(key)
        if lock is not None and downstream.sees(lock.txn.txn_source):
            add_prewrite(build, key, lock, head.value if head is not None else b"")
        write = head
        while write is not None and write.commit_ts > checkpoint_ts:
            if downstream.sees(write.txn_source):
                add_committed(build, key, write)
            write = write.previous
        if build.full and (event := build.take()) is not None:
            yield event
    build.rows(0).entries.add(type=cdcpb_pb2.Event.INITIALIZED)
    last = build.take()
    assert last is not None
    yield last


def initialized_event(downstream: Downstream) -> cdcpb_pb2.Event:
    """An event with nothing but INITIALIZED."""
    event = cdcpb_pb2.Event(region_id=downstream.region_id, request_id=downstream.request_id)
    event.entries.entries.add(type=cdcpb_pb2.Event.INITIALIZED)
    return event
