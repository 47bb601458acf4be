"""PD and one TiKV store that serve a single huge transaction over several regions, as fast as it is taken.

The rows' bytes are made by numpy from one encoded row: in Python row by row the server would be slower than the puller
that is measured against it.
"""

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from schemas.changes import RowChanges
from schemas.ids import RegionId, TableId, Ts
from schemas.proto import cdcpb_pb2, pdpb_pb2_grpc
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from tests.support.upstream.one_store_pd import FixedRegion, OneStorePd

TABLE = TableId(100)
START_TS, COMMIT_TS = Ts(10 << 18), Ts(20 << 18)
KEY_BYTES, VALUE_BYTES = 19, 195
REGION_ROWS = 440_000
"""Some 96 MiB, the size that TiKV aims at."""
EVENT_ROWS = 400
MESSAGE_EVENTS = 64
"""TiKV's bound; with such events 6 MiB of PREWRITE."""
AT_ONCE = 8
"""Batches that TiDB has under way at once: their order is any."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Rows with handles 0 … ``rows - 1`` of :data:`TABLE`."""

    rows: int

    @classmethod
    def of_bytes(cls, size: int) -> "Transaction":
        """Return the one whose keys and values have so many bytes, or a row's more."""
        return cls(-(-size // (KEY_BYTES + VALUE_BYTES)))

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return self.rows * (KEY_BYTES + VALUE_BYTES)

    def regions(self) -> list[tuple[RegionId, int, int]]:
        """Return region ids with their handles ``[first, last)``."""
        firsts = range(0, self.rows, REGION_ROWS)
        return [(RegionId(n), at, min(at + REGION_ROWS, self.rows)) for n, at in enumerate(firsts, start=1)]

    def check(self, rows: RowChanges, seen: Bytes) -> None:
        """Compare landed rows with what was sent, and count them in ``seen``."""
        assert set(rows.commit_ts.tolist()) == {COMMIT_TS}
        assert set(rows.start_ts.tolist()) == {START_TS}
        assert set(rows.op.tolist()) == {cdcpb_pb2.Event.Row.PUT}
        keys = np.frombuffer(b"".join(rows.key.to_pylist()), np.uint8).reshape(len(rows), KEY_BYTES)
        handles = (keys[:, 11:].copy().view(">u8")[:, 0] ^ (1 << 63)).astype(np.int64)
        assert (keys == keys_of(handles)).all()
        values = np.frombuffer(b"".join(rows.value.to_pylist()), np.uint8).reshape(len(rows), VALUE_BYTES)
        assert (values == values_of(handles)).all()
        np.add.at(seen, handles, 1)


def keys_of(handles: npt.NDArray[np.int64]) -> Bytes:
    """Return the keys of handles, one a line."""
    keys = np.tile(np.frombuffer(row_key(TABLE, 0), np.uint8), (len(handles), 1))
    keys[:, 11:] = (handles.astype(np.uint64) ^ (1 << 63)).astype(">u8")[:, None].view(np.uint8)
    return keys


_NOISE = np.frombuffer(Random(1).randbytes(1 << 16), np.uint8)


def values_of(handles: npt.NDArray[np.int64]) -> Bytes:
    """Return the values of handles: the handle, noise, and what compresses well."""
    values = np.full((len(handles), VALUE_BYTES), ord("7"), np.uint8)
    values[:, :8] = handles.astype("<i8")[:, None].view(np.uint8)
    at = (handles * 7_919) % (len(_NOISE) - 100)
    values[:, 8:100] = _NOISE[at[:, None] + np.arange(92)]
    return values


def events(region: tuple[RegionId, int, int], request_id: int, *, commit: bool) -> Iterator[bytes]:
    """Yield a region's part of the transaction as serialised events, nearly in key order."""
    region_id, first, last = region
    dice = Random(int(region_id) * 2 + commit)
    cuts = [(at, min(at + EVENT_ROWS, last)) for at in range(first, last, EVENT_ROWS)]
    for group in range(0, len(cuts), AT_ONCE):
        for at, end in dice.sample(cuts[group : group + AT_ONCE], len(cuts[group : group + AT_ONCE])):
            handles = np.arange(at, end, dtype=np.int64)
            row = cdcpb_pb2.Event.Row(
                start_ts=START_TS,
                type=cdcpb_pb2.Event.COMMIT if commit else cdcpb_pb2.Event.PREWRITE,
                op_type=cdcpb_pb2.Event.Row.PUT,
                key=b"K" * KEY_BYTES,
                **({"commit_ts": COMMIT_TS} if commit else {"value": b"V" * VALUE_BYTES}),
            )
            entry = cdcpb_pb2.Event.Entries(entries=[row]).SerializeToString()
            wire = np.tile(np.frombuffer(entry, np.uint8), (len(handles), 1))
            key_at = entry.index(b"K" * KEY_BYTES)
            wire[:, key_at : key_at + KEY_BYTES] = keys_of(handles)
            if not commit:
                value_at = entry.index(b"V" * VALUE_BYTES)
                wire[:, value_at : value_at + VALUE_BYTES] = values_of(handles)
            entries = cdcpb_pb2.Event.Entries.FromString(wire.tobytes())
            yield cdcpb_pb2.Event(region_id=region_id, request_id=request_id, entries=entries).SerializeToString()


def messages(transaction: Transaction, request_ids: dict[RegionId, int]) -> Iterator[bytes]:
    """Yield all of it as messages: INITIALIZED, PREWRITE, COMMIT, resolved ts."""
    regions = transaction.regions()
    started = [
        cdcpb_pb2.Event(
            region_id=region_id,
            request_id=request_ids[region_id],
            entries=cdcpb_pb2.Event.Entries(entries=[cdcpb_pb2.Event.Row(type=cdcpb_pb2.Event.INITIALIZED)]),
        )
        for region_id, _, _ in regions
    ]
    yield cdcpb_pb2.ChangeDataEvent(events=started).SerializeToString()
    for commit in (False, True):
        feeds = [events(region, request_ids[region[0]], commit=commit) for region in regions]
        # The regions take turns, as each works through its own part of the transaction.
        turns = (event for turn in itertools.zip_longest(*feeds) for event in turn if event is not None)
        while batch := list(itertools.islice(turns, MESSAGE_EVENTS)):
            yield b"".join(b"\x0a" + _varint(len(event)) + event for event in batch)
    for request_id in sorted(set(request_ids.values())):
        of_it = [region_id for region_id, number in request_ids.items() if number == request_id]
        resolved = cdcpb_pb2.ResolvedTs(regions=of_it, ts=COMMIT_TS, request_id=request_id)
        yield cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def key_regions(transaction: Transaction) -> list[FixedRegion]:
    """Return the regions, which together cover all keys."""
    return [
        FixedRegion(
            region_id,
            encode_bytes(row_key(TABLE, first)) if first else b"",
            encode_bytes(row_key(TABLE, last)) if last < transaction.rows else b"",
        )
        for region_id, first, last in transaction.regions()
    ]


class Store:
    """EventFeedV2 of the one store: the transaction once, when all regions are registered."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def event_feed(self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: Any) -> Iterator[bytes]:
        """Wait for the registrations, send all of it, then keep the stream open."""
        regions = len(self._transaction.regions())
        request_ids: dict[RegionId, int] = {}
        while len(request_ids) < regions:
            request = next(requests)
            request_ids[RegionId(request.region_id)] = request.request_id
        yield from messages(self._transaction, request_ids)
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        context.add_callback(lambda: ended.put(None))
        ended.get()


def serve(transaction: Transaction, say: Callable[[str], None]) -> None:
    """Serve until the process is ended; ``say`` takes the address."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", 1 << 28)])
    port = server.add_insecure_port("127.0.0.1:0")
    address = f"127.0.0.1:{port}"
    # The generated base answers UNIMPLEMENTED to what Pd leaves out.
    pdpb_pb2_grpc.add_PDServicer_to_server(OneStorePd(address, START_TS, key_regions(transaction)), server)  # type: ignore[abstract]
    feed = grpc.stream_stream_rpc_method_handler(
        Store(transaction).event_feed, request_deserializer=cdcpb_pb2.ChangeDataRequest.FromString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": feed}),))
    server.start()
    say(address)
    server.wait_for_termination()
