"""The CDC endpoint of one store: registers downstreams, hands applied writes to delegates, sends resolved ts.

Register is checked in TiKV's order: cluster id, kv api, scan count, region exists, duplicate, (leader,) epoch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from producers.region_server.cdc.initializer import ScanTurns, initialize
from producers.region_server.core.cdc.delegate import Delegate, Downstream
from producers.region_server.core.cdc.incremental_scan import ScanSnapshot, take_snapshot
from producers.region_server.core.cdc.resolved_groups import group
from producers.region_server.core.cdc.scan_pace import ScanPace
from producers.region_server.core.store.mvcc import Change
from producers.region_server.core.store.regions import Region
from producers.region_server.kv.store import ClusterStore
from producers.region_server.rpc.channel import Channel
from producers.region_server.rpc.wire import not_leader, raw_bound, region_meta
from schemas.errors import ConfigError
from schemas.ids import RegionId, StoreId, Ts
from schemas.proto import cdcpb_pb2, errorpb_pb2

BATCHED_RESOLVED_TS_SINCE = (4, 0, 8)
CLUSTER_ID_CHECKED_SINCE = (5, 3, 0)
BUSY_BACKOFF_MS = 1000
SCANS_AT_ONCE = 6
SCANS_MAX = 10_000
SCAN_BYTES_PER_S = 512 * 1024 * 1024
"""TiKV's limits of scans: at once, waiting, and what they fetch together a second."""

Key = tuple[int, RegionId]
"""(request id, region id); the request id is 0 on a stream without multiplexing, where a region is registered once."""


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """One stream of one client. ``version`` is the client's, of its first request; (0, 0, 0) if it does not parse."""

    channel: Channel
    multiplexing: bool
    version: tuple[int, int, int] = (0, 0, 0)
    downstreams: dict[Key, Downstream] = field(default_factory=dict)
    scans: set[asyncio.Task[None]] = field(default_factory=set)

    def key(self, request_id: int, region_id: int) -> Key:
        """What names a subscription on this stream."""
        return (request_id if self.multiplexing else 0, RegionId(region_id))


class Endpoint:
    """The CDC module of one store. All methods run on the server's event loop and none of them waits."""

    def __init__(
        self,
        store_id: StoreId,
        store: ClusterStore,
        cluster_id: int,
        *,
        scans_at_once: int = SCANS_AT_ONCE,
        scans_max: int = SCANS_MAX,
        scan_bytes_per_s: float = SCAN_BYTES_PER_S,
        fake_prewrites: bool = False,
    ) -> None:
        self._store_id = store_id
        self._store = store
        self._cluster_id = cluster_id
        self._turns = ScanTurns(asyncio.Semaphore(scans_at_once), ScanPace(scan_bytes_per_s), asyncio.Event())
        self._turns.gate.set()
        self._scans_max = scans_max
        self._scans_pending = 0
        self._fake_prewrites = fake_prewrites
        self._refusals = 0
        self._refusal_backoff_ms = BUSY_BACKOFF_MS
        self._delegates: dict[RegionId, Delegate] = {}
        self._owners: dict[Downstream, Connection] = {}
        self._connections: set[Connection] = set()
        self.registrations = 0
        self.delay_s = 0.0
        """How late every message of this store is."""
        store.watch(self)

    # Streams -------------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """A client opened a stream."""
        self._connections.add(connection)

    def drop_streams(self, status: grpc.StatusCode, details: str) -> int:
        """End every stream now, with what is queued on it lost; return how many there were."""
        connections = list(self._connections)
        for connection in connections:
            connection.channel.abort(status, details)
            self.disconnect(connection)
        return len(connections)

    def disconnect(self, connection: Connection) -> None:
        """A stream ended, however it did."""
        for downstream in list(connection.downstreams.values()):
            self._stop(downstream)
        for task in list(connection.scans):
            task.cancel()
        connection.channel.close()
        self._connections.discard(connection)

    @property
    def streams(self) -> int:
        """Streams that clients have open."""
        return len(self._connections)

    @property
    def queued_bytes(self) -> int:
        """Bytes that all streams of this store still have to take."""
        return sum(connection.channel.queued_bytes for connection in self._connections)

    # Requests ------------------------------------------------------------------------------------------------------

    def register(self, connection: Connection, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Subscribe, or answer with the first region error that applies."""
        error = self._refusal(connection, request)
        if error is not None:
            event = cdcpb_pb2.Event(region_id=request.region_id, request_id=request.request_id, error=error)
            connection.channel.push(event, force=True)
            return
        region = self._store.regions.get(request.region_id)
        assert region is not None
        self.registrations += 1
        low, high = decode_range(request)
        end = min(high, region.end) if high and region.end else high or region.end
        downstream = Downstream(
            region_id=region.region_id,
            request_id=request.request_id,
            start=max(low, region.start),
            end=end,
            checkpoint_ts=Ts(request.checkpoint_ts),
            filter_loop=request.filter_loop,
            fake_prewrites=self._fake_prewrites,
        )
        self._delegates.setdefault(region.region_id, Delegate(region.region_id)).enroll(downstream)
        connection.downstreams[connection.key(request.request_id, request.region_id)] = downstream
        self._owners[downstream] = connection
        scan = initialize(downstream, self._capture, connection.channel, self._turns, self._congested)
        task = asyncio.create_task(scan)
        self._scans_pending += 1
        connection.scans.add(task)
        task.add_done_callback(lambda done: self._scanned(connection, done))

    def _capture(self, downstream: Downstream) -> ScanSnapshot:
        """Observe, take the locks and take the snapshot in one step: a write is in the snapshot or comes live."""
        region = self._store.regions.get(downstream.region_id)
        assert region is not None, "a region that is gone has ended its downstreams"
        start, end = downstream.start, downstream.end
        self._delegates[downstream.region_id].subscribe(downstream, region.data.locked_between(start, end))
        return take_snapshot(region.data, start, end, downstream.checkpoint_ts)

    def _congested(self, downstream: Downstream) -> None:
        if not downstream.stopped:
            self._fail_one(downstream, _congested_error(downstream.region_id))

    def deregister(self, connection: Connection, request_id: int, region_id: int) -> None:
        """Stop one subscription, or every one of ``request_id`` if ``region_id`` is 0. There is no answer."""
        if region_id:
            chosen = [connection.downstreams.get(connection.key(request_id, region_id))]
        else:
            chosen = [
                downstream for downstream in connection.downstreams.values() if downstream.request_id == request_id
            ]
        for downstream in chosen:
            if downstream is not None:
                self._stop(downstream)

    def _refusal(self, connection: Connection, request: cdcpb_pb2.ChangeDataRequest) -> cdcpb_pb2.Error | None:
        given = request.header.cluster_id
        if connection.version >= CLUSTER_ID_CHECKED_SINCE and given != self._cluster_id:
            mismatch = cdcpb_pb2.ClusterIDMismatch(current=self._cluster_id, request=given)
            return cdcpb_pb2.Error(cluster_id_mismatch=mismatch)
        if request.kv_api != cdcpb_pb2.ChangeDataRequest.TiDB:
            return cdcpb_pb2.Error(compatibility=cdcpb_pb2.Compatibility(required_version="6.2.0"))
        if self._scans_pending >= self._scans_max or self._refusals > 0:
            backoff_ms = self._refusal_backoff_ms if self._refusals else BUSY_BACKOFF_MS
            self._refusals = max(0, self._refusals - 1)
            return _busy_error(backoff_ms)
        region = self._store.regions.get(request.region_id)
        if region is None:
            missing = errorpb_pb2.RegionNotFound(region_id=request.region_id)
            return cdcpb_pb2.Error(region_not_found=missing)
        if connection.key(request.request_id, request.region_id) in connection.downstreams:
            twice = cdcpb_pb2.DuplicateRequest(region_id=request.region_id)
            return cdcpb_pb2.Error(duplicate_request=twice)
        if region.leader != self._store_id:
            return cdcpb_pb2.Error(not_leader=not_leader(region))
        if request.region_epoch.version != region.version:
            moved = errorpb_pb2.EpochNotMatch(current_regions=[region_meta(region, self._store.store_ids)])
            return cdcpb_pb2.Error(epoch_not_match=moved)
        return None

    def _scanned(self, connection: Connection, task: "asyncio.Task[None]") -> None:
        self._scans_pending -= 1
        connection.scans.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    # What the store tells ------------------------------------------------------------------------------------------

    def on_applied(self, region: Region, changes: Sequence[Change]) -> None:
        """Send the rows of one applied command to everyone who watches that region."""
        delegate = self._delegates.get(region.region_id)
        if delegate is None:
            return
        for downstream, event in delegate.observe(changes):
            if not self._owners[downstream].channel.push(event):
                self._congested(downstream)

    def on_epoch_changed(self, region_ids: Sequence[RegionId], current: Sequence[Region]) -> None:
        """End every subscription of regions that were split or merged."""
        metas = [region_meta(region, self._store.store_ids) for region in current]
        error = cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=metas))
        for region_id in region_ids:
            self._fail(region_id, error)

    def on_leader_changed(self, region: Region, before: StoreId) -> None:
        """End every subscription of a region that this store leads no more."""
        if before == self._store_id:
            self._fail(region.region_id, cdcpb_pb2.Error(not_leader=not_leader(region)))

    def fail_region(self, region_id: RegionId, error: str) -> int:
        """End every subscription of a region with an error of that name (see :class:`core.chaos.FailRegion`).

        Returns:
            How many subscriptions ended.

        Raises:
            ConfigError: the name is unknown.
        """
        match error:
            case "region_not_found":
                missing = errorpb_pb2.RegionNotFound(region_id=region_id)
                return self._fail(region_id, cdcpb_pb2.Error(region_not_found=missing))
            case "congested":
                return self._fail(region_id, _congested_error(region_id))
            case "server_is_busy":
                return self._fail(region_id, _busy_error(BUSY_BACKOFF_MS // 10))
            case "none":
                return self._fail(region_id, cdcpb_pb2.Error())
            case _:
                known = ("region_not_found", "congested", "server_is_busy", "none")
                raise ConfigError("region error is unknown", error=error, known=known)

    def _fail(self, region_id: RegionId, error: cdcpb_pb2.Error) -> int:
        delegate = self._delegates.get(region_id)
        downstreams = delegate.everyone if delegate is not None else []
        for downstream in downstreams:
            self._fail_one(downstream, error)
        return len(downstreams)

    def _fail_one(self, downstream: Downstream, error: cdcpb_pb2.Error) -> None:
        event = cdcpb_pb2.Event(region_id=downstream.region_id, request_id=downstream.request_id, error=error)
        self._owners[downstream].channel.push(event, force=True)
        downstream.failed = True
        self._stop(downstream)

    def _stop(self, downstream: Downstream) -> None:
        connection = self._owners.pop(downstream)
        connection.downstreams.pop(connection.key(downstream.request_id, downstream.region_id), None)
        delegate = self._delegates[downstream.region_id]
        delegate.unsubscribe(downstream)
        if not delegate.everyone:
            del self._delegates[downstream.region_id]

    # Trouble -------------------------------------------------------------------------------------------------------

    def refuse(self, count: int, backoff_ms: int) -> None:
        """Answer the next ``count`` registrations server_is_busy."""
        self._refusals, self._refusal_backoff_ms = count, backoff_ms

    def hold_scans(self, held: bool) -> None:
        """Let scans stand still, or go on; live rows overtake them meanwhile."""
        if held:
            self._turns.gate.clear()
        else:
            self._turns.gate.set()

    # Resolved ts ---------------------------------------------------------------------------------------------------

    def advance(self, min_ts: Ts) -> None:
        """Send a round of resolved ts. ``min_ts`` is a fresh one of PD's."""
        rounds: dict[tuple[Connection, int], list[tuple[Ts, RegionId]]] = {}
        for delegate in self._delegates.values():
            for downstream, ts in delegate.resolve(min_ts):
                connection = self._owners[downstream]
                if connection.version < BATCHED_RESOLVED_TS_SINCE:
                    connection.channel.push(
                        cdcpb_pb2.Event(
                            region_id=downstream.region_id, request_id=downstream.request_id, resolved_ts=ts
                        )
                    )
                    continue
                request_id = downstream.request_id if connection.multiplexing else 0
                rounds.setdefault((connection, request_id), []).append((ts, downstream.region_id))
        for (connection, request_id), resolved in rounds.items():
            for ts, regions in group(resolved):
                connection.channel.push_resolved(ts, regions, request_id)


def _congested_error(region_id: RegionId) -> cdcpb_pb2.Error:
    return cdcpb_pb2.Error(congested=cdcpb_pb2.Congested(region_id=region_id))


def _busy_error(backoff_ms: int) -> cdcpb_pb2.Error:
    busy = errorpb_pb2.ServerIsBusy(reason="too many pending incremental scans", backoff_ms=backoff_ms)
    return cdcpb_pb2.Error(server_is_busy=busy)


def decode_range(request: cdcpb_pb2.ChangeDataRequest) -> tuple[bytes, bytes]:
    """The raw keys of a request's range.

    Raises:
        CorruptDataError: a bound is not memcomparable-encoded.
    """
    return raw_bound(request.start_key), raw_bound(request.end_key)
