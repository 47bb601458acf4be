"""A client of PD and EventFeed written for tests only: subscribes a key range, matches, and checks the feed's promises.

It shares nothing with the product but the generated messages. What it checks while it reads: no change at or below a
resolved ts that its registration has seen, COMMIT only for a known PREWRITE after INITIALIZED, repeats equal.

One silence it mends itself: a stream that gave no message at all within :data:`FIRST_WORD_S` of its opening is closed
and opened again. gRPC loses a call that is made just as a store shuts down, which neither ends nor reaches the server.
A stream that has given anything is never given up, however long it is silent then: that would be the server's fault,
and it stays visible.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from schemas.proto import cdcpb_pb2, cdcpb_pb2_grpc, kvrpcpb_pb2, pdpb_pb2, pdpb_pb2_grpc

Change = tuple[int, bytes, bytes, int]
"""(op, value, old value, txn_source)"""
VERSION = "8.5.0"
FIRST_WORD_S = 5.0
"""How long the first message of a stream is waited for; a store's own takes milliseconds."""
_Event = cdcpb_pb2.Event
_Reply = TypeVar("_Reply")


def encode(raw: bytes) -> bytes:
    """Memcomparable, written again from its definition."""
    if not raw:
        return b""
    groups = [raw[at : at + 8] for at in range(0, len(raw) + 1, 8)]
    return b"".join(part.ljust(8, b"\0") + bytes((0xFF - 8 + len(part),)) for part in groups)


class Pd:
    """PD's calls, by the address of a member; who leads is asked again whenever a member says that it does not."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = pdpb_pb2_grpc.PDStub(self.channel)
        self._addresses = [address]
        self.cluster_id = self._find_leader()
        self.header = pdpb_pb2.RequestHeader(cluster_id=self.cluster_id)

    def tso(self, count: int = 1) -> int:
        request = pdpb_pb2.TsoRequest(header=self.header, count=count)
        reply = self._led(lambda stub: next(iter(stub.Tso(iter([request])))))
        return (reply.timestamp.physical << 18) + reply.timestamp.logical

    def regions(self, start: bytes = b"", end: bytes = b"") -> list[pdpb_pb2.Region]:
        request = pdpb_pb2.ScanRegionsRequest(header=self.header, start_key=start, end_key=end)
        return list(self._led(lambda stub: stub.ScanRegions(request)).regions)

    def stores(self) -> dict[int, str]:
        request = pdpb_pb2.GetAllStoresRequest(header=self.header)
        return {store.id: store.address for store in self._led(lambda stub: stub.GetAllStores(request)).stores}

    def _led(self, ask: Callable[[pdpb_pb2_grpc.PDStub], _Reply]) -> _Reply:
        for _ in range(100):
            try:
                return ask(self.stub)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                time.sleep(0.02)
                self._find_leader()
        raise AssertionError("no PD member leads")

    def _find_leader(self) -> int:
        for address in self._addresses:
            try:
                with grpc.insecure_channel(address) as channel:
                    reply = pdpb_pb2_grpc.PDStub(channel).GetMembers(pdpb_pb2.GetMembersRequest(), timeout=5)
            except grpc.RpcError:
                continue
            self._addresses = [url.removeprefix("http://") for member in reply.members for url in member.client_urls]
            self.channel.close()
            self.channel = grpc.insecure_channel(reply.leader.client_urls[0].removeprefix("http://"))
            self.stub = pdpb_pb2_grpc.PDStub(self.channel)
            return int(reply.header.cluster_id)
        raise AssertionError("no PD member answers")


@dataclass
class Registration:
    """One (store, request id, region); keys are encoded."""

    request_id: int
    region_id: int
    start: bytes
    end: bytes
    resolved: int
    stream: int = 0
    initialized: bool = False
    prewrites: dict[tuple[int, bytes], Any] = field(default_factory=dict)
    commits: list[Any] = field(default_factory=list)
    rollbacks: list[Any] = field(default_factory=list)


class RawFeed:
    """Feeds of one range from a ts on. ``changes`` maps (key, commit_ts, start_ts) to the change."""

    def __init__(
        self, pd: Pd, checkpoint_ts: int, *, start: bytes = b"", end: bytes = b"", v2: bool = True,
        filter_loop: bool = False, first_word_s: float = FIRST_WORD_S,
    ) -> None:  # fmt: skip
        self.pd, self.v2, self.filter_loop = pd, v2, filter_loop
        self.changes: dict[tuple[bytes, int, int], Change] = {}
        self.counts: dict[str, int] = {}
        self.late_initialized = 0
        self.ends: list[tuple[grpc.StatusCode, str | None]] = []
        """How streams ended, those that did not end well."""
        self.first_word_s = first_word_s
        self.unheard: dict[int, float] = {}
        """When each stream that has given nothing yet was opened. Who takes a stream out has it: its reader with the
        first message or the end, or :meth:`read`, which gives it up."""
        self.given_up = 0
        """Streams that never gave a message."""
        self.registrations: dict[tuple[int, int], Registration] = {}
        self._incoming: queue.Queue[tuple[int, cdcpb_pb2.ChangeDataEvent | None]] = queue.Queue()
        # By store id the stream that is open to it, by stream its requests; a stream that ended is never used again.
        self._streams: dict[int, int] = {}
        self._outgoing: dict[int, queue.Queue[cdcpb_pb2.ChangeDataRequest | None]] = {}
        self._channels: list[grpc.Channel] = []
        self._request_id = 0
        self._retries: list[tuple[float, bytes, bytes, int]] = []
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
        return min(
            registration.resolved if registration.initialized else 0 for registration in self.registrations.values()
        )

    def read_until(self, ts: int, timeout_s: float = 60.0) -> None:
        """Read until everything up to ``ts`` has come."""
        deadline = time.monotonic() + timeout_s
        while self.resolved < ts:
            assert time.monotonic() < deadline, (self.resolved, ts, self.counts)
            self.read(0.05)

    def read(self, timeout_s: float) -> None:
        """Read one message, if one comes."""
        self._give_up_unheard()
        due = [retry for retry in self._retries if retry[0] <= time.monotonic()]
        self._retries = [retry for retry in self._retries if retry not in due]
        for _, start, end, checkpoint_ts in due:
            self._register(start, end, checkpoint_ts)
        try:
            stream, message = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            return
        if message is None:
            self._ended(stream)
            return
        for event in message.events:
            self._event(event)
        if message.HasField("resolved_ts"):
            self._resolved(message.resolved_ts)

    def _open(self, store_id: int) -> int:
        channel = grpc.insecure_channel(
            self.pd.stores()[store_id], options=[("grpc.max_receive_message_length", -1)]
        )  # fmt: skip
        self._channels.append(channel)
        number = self._streams[store_id] = len(self._channels)
        requests = self._outgoing[number] = queue.Queue()
        self.unheard[number] = time.monotonic()
        stub = cdcpb_pb2_grpc.ChangeDataStub(channel)
        feed = stub.EventFeedV2 if self.v2 else stub.EventFeed
        metadata = (("features", "stream-multiplexing"),) if self.v2 else ()
        replies = feed(iter(requests.get, None), metadata=metadata)

        heard = False

        def counts() -> bool:
            nonlocal heard
            heard = heard or self.unheard.pop(number, None) is not None
            return heard

        def pump() -> None:
            try:
                for message in replies:
                    if not counts():
                        return
                    self._incoming.put((number, message))
            except grpc.RpcError as error:
                if counts():
                    self.ends.append((error.code(), error.details()))
            if counts():
                self._incoming.put((number, None))

        threading.Thread(target=pump, daemon=True).start()
        return number

    def _give_up_unheard(self) -> None:
        now_s = time.monotonic()
        for stream, opened_at_s in list(self.unheard.items()):
            if now_s - opened_at_s > self.first_word_s and self.unheard.pop(stream, None) is not None:
                self.given_up += 1
                self._outgoing[stream].put(None)
                self._channels[stream - 1].close()
                self._ended(stream)

    def _ended(self, stream: int) -> None:
        self._streams = {store: number for store, number in self._streams.items() if number != stream}
        for key, registration in list(self.registrations.items()):
            if registration.stream == stream:
                del self.registrations[key]
                self._retry(registration.start, registration.end, registration.resolved)

    def _retry(self, start: bytes, end: bytes, checkpoint_ts: int) -> None:
        self._retries.append((time.monotonic() + 0.02, start, end, checkpoint_ts))

    def _register(self, start: bytes, end: bytes, checkpoint_ts: int) -> None:
        at: bytes | None = start
        for region in self.pd.regions(start, end):
            meta = region.region
            low = max(start, meta.start_key)
            high = min(end, meta.end_key) if end and meta.end_key else end or meta.end_key
            if at is not None and low > at:
                self._retry(at, low, checkpoint_ts)  # a hole
            at = high or None
            if not region.leader.store_id:
                self._retry(low, high, checkpoint_ts)
                continue
            self._register_one(meta, region.leader.store_id, Registration(0, meta.id, low, high, checkpoint_ts))
        if at is not None and (not end or at < end):
            self._retry(at, end, checkpoint_ts)

    def _register_one(self, meta: Any, store_id: int, registration: Registration) -> None:
        self._request_id += 1
        registration.request_id = self._request_id
        registration.stream = self._streams.get(store_id) or self._open(store_id)
        self.registrations[self._key(registration.request_id, meta.id)] = registration
        self._outgoing[registration.stream].put(
            cdcpb_pb2.ChangeDataRequest(
                header=cdcpb_pb2.Header(cluster_id=self.pd.cluster_id, ticdc_version=VERSION),
                region_id=meta.id, region_epoch=meta.region_epoch, checkpoint_ts=registration.resolved,
                start_key=registration.start, end_key=registration.end,
                request_id=registration.request_id, extra_op=kvrpcpb_pb2.ReadOldValue,
                register=cdcpb_pb2.ChangeDataRequest.Register(), filter_loop=self.filter_loop,
            )
        )  # fmt: skip

    def _key(self, request_id: int, region_id: int) -> tuple[int, int]:
        return request_id, region_id

    def _event(self, event: Any) -> None:
        kind = event.WhichOneof("event")
        registration = self.registrations.get(self._key(event.request_id, event.region_id))
        if kind == "error":
            name = next((field.name for field, _ in event.error.ListFields()), "none")
            self.counts[name] = self.counts.get(name, 0) + 1
            assert name != "duplicate_request"
            if registration is not None:
                del self.registrations[self._key(event.request_id, event.region_id)]
                self._retry(registration.start, registration.end, registration.resolved)
        elif kind == "entries" and registration is None:
            # Rows of a registration that has ended are void; an INITIALIZED among them was seen in a real feed.
            self.late_initialized += sum(row.type == _Event.INITIALIZED for row in event.entries.entries)
        elif kind == "entries" and registration is not None:
            for row in event.entries.entries:
                self._row(registration, row)

    def _row(self, registration: Registration, row: Any) -> None:
        name = _Event.LogType.Name(row.type)
        self.counts[name] = self.counts.get(name, 0) + 1
        if row.type != _Event.INITIALIZED:
            key = encode(row.key)
            assert registration.start <= key and (not registration.end or key < registration.end)
        match row.type:
            case _Event.PREWRITE:
                registration.prewrites[row.start_ts, row.key] = row
            case _Event.COMMITTED:
                self._emit(registration, row, row.value, row.old_value)
            case _Event.COMMIT:
                self._commit(registration, row)
            case _Event.ROLLBACK:
                if registration.initialized:
                    registration.prewrites.pop((row.start_ts, row.key), None)
                else:
                    registration.rollbacks.append(row)
            case _Event.INITIALIZED:
                assert not registration.initialized
                assert row.key == b""
                registration.initialized = True
                for commit in registration.commits:
                    if (commit.start_ts, commit.key) in registration.prewrites:
                        self._commit(registration, commit)
                for rollback in registration.rollbacks:
                    registration.prewrites.pop((rollback.start_ts, rollback.key), None)

    def _commit(self, registration: Registration, row: Any) -> None:
        prewrite = registration.prewrites.pop((row.start_ts, row.key), None)
        if prewrite is None:
            assert not registration.initialized, ("commit without prewrite", row)
            registration.commits.append(row)
            return
        assert row.op_type == prewrite.op_type
        assert row.value in (b"", prewrite.value)
        self._emit(registration, row, prewrite.value, prewrite.old_value)

    def _emit(self, registration: Registration, row: Any, value: bytes, old_value: bytes) -> None:
        assert row.commit_ts > registration.resolved, (row.commit_ts, registration.resolved)
        change = (row.op_type, value, old_value, row.txn_source)
        known = self.changes.setdefault((row.key, row.commit_ts, row.start_ts), change)
        assert known == change

    def _resolved(self, resolved: Any) -> None:
        for region_id in resolved.regions:
            for registration in self.registrations.values():
                if registration.region_id == region_id and (
                    not self.v2 or registration.request_id == resolved.request_id
                ):
                    assert registration.initialized or not self.v2
                    registration.resolved = max(registration.resolved, resolved.ts)
