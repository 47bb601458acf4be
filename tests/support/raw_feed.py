"""A client of PD and EventFeed written for tests only: subscribes a key range, matches, and checks the feed's promises.

It shares nothing with the product but the generated messages. What it checks while it reads: no change at or below a
resolved ts that its registration has seen, COMMIT only for a known PREWRITE after INITIALIZED, repeats equal.
"""

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import grpc

from schemas.proto import cdcpb_pb2, cdcpb_pb2_grpc, pdpb_pb2, pdpb_pb2_grpc

Change = tuple[int, bytes, bytes, int]
"""(op, value, old value, txn_source)"""
VERSION = "8.5.0"
_Event = cdcpb_pb2.Event


def encode(raw: bytes) -> bytes:
    """Memcomparable, written again from its definition."""
    if not raw:
        return b""
    groups = [raw[at : at + 8] for at in range(0, len(raw) + 1, 8)]
    return b"".join(part.ljust(8, b"\0") + bytes((0xFF - 8 + len(part),)) for part in groups)


class Pd:
    """PD's calls, by address."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = pdpb_pb2_grpc.PDStub(self.channel)
        self.cluster_id = self.stub.GetMembers(pdpb_pb2.GetMembersRequest()).header.cluster_id
        self.header = pdpb_pb2.RequestHeader(cluster_id=self.cluster_id)

    def tso(self, count: int = 1) -> int:
        reply = next(iter(self.stub.Tso(iter([pdpb_pb2.TsoRequest(header=self.header, count=count)]))))
        return (reply.timestamp.physical << 18) + reply.timestamp.logical

    def regions(self, start: bytes = b"", end: bytes = b"") -> list[pdpb_pb2.Region]:
        request = pdpb_pb2.ScanRegionsRequest(header=self.header, start_key=start, end_key=end)
        return list(self.stub.ScanRegions(request).regions)

    def stores(self) -> dict[int, str]:
        reply = self.stub.GetAllStores(pdpb_pb2.GetAllStoresRequest(header=self.header))
        return {store.id: store.address for store in reply.stores}


@dataclass
class Registration:
    """One (store, request id, region); keys are encoded."""

    request_id: int
    region_id: int
    start: bytes
    end: bytes
    resolved: int
    initialized: bool = False
    prewrites: dict[tuple[int, bytes], Any] = field(default_factory=dict)
    commits: list[Any] = field(default_factory=list)
    rollbacks: list[Any] = field(default_factory=list)


class RawFeed:
    """Feeds of one range from a ts on. ``changes`` maps (key, commit_ts, start_ts) to the change."""

    def __init__(
        self, pd: Pd, checkpoint_ts: int, *, start: bytes = b"", end: bytes = b"", v2: bool = True,
        filter_loop: bool = False,
    ) -> None:  # fmt: skip
        self.pd, self.v2, self.filter_loop = pd, v2, filter_loop
        self.changes: dict[tuple[bytes, int, int], Change] = {}
        self.counts: dict[str, int] = {}
        self.registrations: dict[tuple[int, int], Registration] = {}
        self._incoming: queue.Queue[cdcpb_pb2.ChangeDataEvent] = queue.Queue()
        self._outgoing: dict[int, queue.Queue[cdcpb_pb2.ChangeDataRequest | None]] = {}
        self._channels: list[grpc.Channel] = []
        self._request_id = 0
        self._retries: list[tuple[float, bytes, bytes, int]] = []
        for store_id, address in pd.stores().items():
            self._open(store_id, address)
        self._register(encode(start), encode(end), checkpoint_ts)

    def close(self) -> None:
        for requests in self._outgoing.values():
            requests.put(None)
        for channel in self._channels:
            channel.close()

    @property
    def resolved(self) -> int:
        """The least resolved ts over the range; 0 while a part of it has no registration."""
        if self._retries or not self.registrations:
            return 0
        return min(one.resolved if one.initialized else 0 for one in self.registrations.values())

    def read_until(self, ts: int, timeout_s: float = 60.0) -> None:
        """Read until everything up to ``ts`` has come."""
        deadline = time.monotonic() + timeout_s
        while self.resolved < ts:
            assert time.monotonic() < deadline, (self.resolved, ts, self.counts)
            self.read(0.05)

    def read(self, timeout_s: float) -> None:
        """Read one message, if one comes."""
        due = [retry for retry in self._retries if retry[0] <= time.monotonic()]
        self._retries = [retry for retry in self._retries if retry not in due]
        for _, start, end, checkpoint_ts in due:
            self._register(start, end, checkpoint_ts)
        try:
            message = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            return
        for event in message.events:
            self._event(event)
        if message.HasField("resolved_ts"):
            self._resolved(message.resolved_ts)

    def _open(self, store_id: int, address: str) -> None:
        channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._channels.append(channel)
        requests = self._outgoing[store_id] = queue.Queue()
        stub = cdcpb_pb2_grpc.ChangeDataStub(channel)
        feed = stub.EventFeedV2 if self.v2 else stub.EventFeed
        metadata = (("features", "stream-multiplexing"),) if self.v2 else ()
        replies = feed(iter(requests.get, None), metadata=metadata)

        def pump() -> None:
            try:
                for message in replies:
                    self._incoming.put(message)
            except grpc.RpcError:
                pass

        threading.Thread(target=pump, daemon=True).start()

    def _register(self, start: bytes, end: bytes, checkpoint_ts: int) -> None:
        for region in self.pd.regions(start, end):
            meta = region.region
            low = max(start, meta.start_key)
            high = min(end, meta.end_key) if end and meta.end_key else end or meta.end_key
            self._request_id += 1
            one = Registration(self._request_id, meta.id, low, high, checkpoint_ts)
            self.registrations[self._key(one.request_id, meta.id)] = one
            self._outgoing[region.leader.store_id].put(
                cdcpb_pb2.ChangeDataRequest(
                    header=cdcpb_pb2.Header(cluster_id=self.pd.cluster_id, ticdc_version=VERSION),
                    region_id=meta.id, region_epoch=meta.region_epoch, checkpoint_ts=checkpoint_ts,
                    start_key=low, end_key=high, request_id=one.request_id, extra_op=1,
                    register=cdcpb_pb2.ChangeDataRequest.Register(), filter_loop=self.filter_loop,
                )
            )  # fmt: skip

    def _key(self, request_id: int, region_id: int) -> tuple[int, int]:
        return request_id, region_id

    def _event(self, event: Any) -> None:
        kind = event.WhichOneof("event")
        one = self.registrations.get(self._key(event.request_id, event.region_id))
        if kind == "error":
            name = next(field.name for field, _ in event.error.ListFields())
            self.counts[name] = self.counts.get(name, 0) + 1
            assert name != "duplicate_request"
            if one is not None:
                del self.registrations[self._key(event.request_id, event.region_id)]
                self._retries.append((time.monotonic() + 0.02, one.start, one.end, one.resolved))
        elif kind == "entries" and one is not None:
            for row in event.entries.entries:
                self._row(one, row)

    def _row(self, one: Registration, row: Any) -> None:
        name = _Event.LogType.Name(row.type)
        self.counts[name] = self.counts.get(name, 0) + 1
        if row.type != _Event.INITIALIZED:
            key = encode(row.key)
            assert one.start <= key and (not one.end or key < one.end)
        match row.type:
            case _Event.PREWRITE:
                one.prewrites[row.start_ts, row.key] = row
            case _Event.COMMITTED:
                self._emit(one, row, row.value, row.old_value)
            case _Event.COMMIT:
                self._commit(one, row)
            case _Event.ROLLBACK:
                if one.initialized:
                    one.prewrites.pop((row.start_ts, row.key), None)
                else:
                    one.rollbacks.append(row)
            case _Event.INITIALIZED:
                assert not one.initialized
                assert row.key == b""
                one.initialized = True
                for commit in one.commits:
                    if (commit.start_ts, commit.key) in one.prewrites:
                        self._commit(one, commit)
                for rollback in one.rollbacks:
                    one.prewrites.pop((rollback.start_ts, rollback.key), None)

    def _commit(self, one: Registration, row: Any) -> None:
        prewrite = one.prewrites.pop((row.start_ts, row.key), None)
        if prewrite is None:
            assert not one.initialized, ("commit without prewrite", row)
            one.commits.append(row)
            return
        assert row.op_type == prewrite.op_type
        assert row.value in (b"", prewrite.value)
        self._emit(one, row, prewrite.value, prewrite.old_value)

    def _emit(self, one: Registration, row: Any, value: bytes, old_value: bytes) -> None:
        assert row.commit_ts > one.resolved, (row.commit_ts, one.resolved)
        change = (row.op_type, value, old_value, row.txn_source)
        known = self.changes.setdefault((row.key, row.commit_ts, row.start_ts), change)
        assert known == change

    def _resolved(self, resolved: Any) -> None:
        for region_id in resolved.regions:
            for one in self.registrations.values():
                if one.region_id == region_id and (not self.v2 or one.request_id == resolved.request_id):
                    assert one.initialized or not self.v2
                    one.resolved = max(one.resolved, resolved.ts)
