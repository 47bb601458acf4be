"""The embedded cluster: one PD and several stores, each on its own loopback port, over one store of data.

Everything runs on one event loop in one thread of its own, so that tests and the CLI can use it from plain code:

    with RegionServer() as server:
        server.pd_address          # "127.0.0.1:43210"

Writers (a replay, the generator) are tasks on the same loop; see :mod:`recording` and :mod:`generator`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from producers.region_server.cdc.endpoint import SCAN_BYTES_PER_S, SCANS_AT_ONCE, SCANS_MAX, Endpoint
from producers.region_server.cdc.service import WATCHDOG_PATIENCE_S
from producers.region_server.chaos import Chaos
from producers.region_server.control import ControlServer
from producers.region_server.core.chaos import ClusterEvent
from producers.region_server.core.store.commands import Command, Mutation
from producers.region_server.core.store.oracle import TimestampOracle
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.kv.store import ClusterStore
from producers.region_server.nodes import PdNode, StoreNode
from producers.region_server.pd.cluster import GcApi, PdCluster, PdMember
from producers.region_server.rpc.server_tls import ServerTls
from schemas.ids import StoreId, Ts, compose_ts, physical_ms

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionServerOptions:
    """Settings of the embedded cluster."""

    host: str = "127.0.0.1"
    pd_port: int = 0
    """0 takes a free port."""
    pd_members: int = 1
    """More than one: the first leads; the others answer "not leader", also from ports of their own."""
    stores: int = 3
    cluster_id: int = 7_312_554_880_153_088_001
    min_ts_interval_ms: int = 1000
    """Time between two rounds of resolved ts; TiKV's ``cdc.min-ts-interval``, same default. Demos use 100-200."""
    region_max_keys: int = 200_000
    """A region with more keys splits in the middle (a TiKV region is split at 256 MiB); 0: never."""
    stream_quota_bytes: int = 512 * 1024 * 1024
    """What does not fit is answered ``congested``; TiKV's sink memory quota."""
    slow_client_s: float = WATCHDOG_PATIENCE_S
    """A stream that has been full for so long without taking a message is ended UNKNOWN."""
    scans_at_once: int = SCANS_AT_ONCE
    """Incremental scans of a store; more wait, up to ``scans_max``, beyond which a store is busy."""
    scans_max: int = SCANS_MAX
    scan_bytes_per_s: float = SCAN_BYTES_PER_S
    """The rate of all scans of a store together."""
    fake_prewrites: bool = False
    """As older TiKV: a heartbeat on a long value's lock shows as a PREWRITE with an empty value."""
    gc_api: GcApi = "service_safe_points"
    """Which of PD's two interfaces for keeping history there are: "service_safe_points" as in the version that this
    cluster claims, "barriers", or "both" with the old calls mapped to barriers."""
    gc_life_time_s: float | None = None
    """How long versions are kept, as TiDB's ``tidb_gc_life_time`` (600); None keeps everything. Service safe points
    of PD hold it back, as always."""
    gc_interval_s: float = 10.0
    replica_lag_ms: int = 1000
    """How far followers' resolved ts is behind PD's clock: above it a stale read is not ready. TiKV's
    ``resolved-ts.advance-ts-interval``, 20 s there."""
    tls: ServerTls | None = None
    """For PD and all stores; clients need a certificate of the same CA."""


class RegionServer:
    """One embedded cluster. ``start`` returns when all ports answer; ``stop`` ends every stream."""

    def __init__(self, options: RegionServerOptions | None = None, **overrides: Any) -> None:
        self.options = options or RegionServerOptions(**overrides)
        store_ids = [StoreId(number) for number in range(1, self.options.stores + 1)]
        self.store = ClusterStore(store_ids, region_max_keys=self.options.region_max_keys)
        self.oracle = TimestampOracle(wall_clock_ms)
        self.pd = PdCluster(self.store, self.oracle, self.options.cluster_id, self.options.gc_api)
        self.pd.replica_lag_ms = self.options.replica_lag_ms
        self.pd.members = [PdMember(f"pd-{number}", number) for number in range(1, self.options.pd_members + 1)]
        self.pd_nodes = [
            PdNode(self.pd, at, host=self.options.host, tls=self.options.tls) for at in range(self.options.pd_members)
        ]
        self.nodes: dict[StoreId, StoreNode] = {}
        self.endpoints: dict[StoreId, Endpoint] = {}
        self.chaos = Chaos(self.store, self.pd, self.nodes, self.pd_nodes, self.background)
        self._control: ControlServer | None = None
        self._loop: asyncio.AbstractEventLoop  # made by start: who never starts has nothing to give back
        self._thread = threading.Thread(target=self._run, name="region-server", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    # Life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Bind all ports and serve."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self.call(self._start())
        return self

    def stop(self) -> None:
        """End all tasks and streams and give the ports back. A second call does nothing."""
        if not self.started or self._loop.is_closed():
            return
        if self._thread.is_alive():
            self.call(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def started(self) -> bool:
        """Whether clients may have been served."""
        return self._thread.ident is not None

    @property
    def pd_address(self) -> str:
        """``host:port`` of PD's leader: all that a client needs to know."""
        return self.pd.client_url.partition("://")[2]

    @property
    def pd_addresses(self) -> list[str]:
        """``host:port`` of all PD members."""
        return [member.url.partition("://")[2] for member in self.pd.members]

    def perform(self, *events: ClusterEvent) -> None:
        """Let something happen to the cluster, from another thread; what lasts a while goes on after the return."""

        async def work() -> None:
            for event in events:
                await self.chaos.perform(event)

        self.call(work())

    # For plain code in other threads -------------------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, _Result], timeout_s: float | None = 60.0) -> _Result:
        """Run a coroutine on the server's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> "Future[_Result]":
        """Start a long task (a replay, the generator) on the server's loop; ``stop`` ends it."""

        async def tracked() -> _Result:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await work
            finally:
                self._tasks.discard(task)

        return asyncio.run_coroutine_threadsafe(tracked(), self._loop)

    def apply(self, *commands: Command) -> None:
        """Apply write commands in one step, from another thread."""

        async def work() -> None:
            for command in commands:
                self.store.apply(command)

        self.call(work())

    def begin(self, *mutations: Mutation, txn_source: int = 0) -> ServerTransaction:
        """Begin a transaction; its steps run on the loop: ``server.act(lambda _: transaction.commit())``."""

        async def work() -> ServerTransaction:
            return ServerTransaction(self.store, self.oracle.tso, mutations, txn_source=txn_source)

        return self.call(work())

    def act(self, action: Callable[[ClusterStore], _Result]) -> _Result:
        """Run ``action`` on the store, on the server's loop: splits, merges, leader transfers, looks at the data."""

        async def work() -> _Result:
            return action(self.store)

        return self.call(work())

    def tso(self, count: int = 1) -> Ts:
        """A timestamp of this PD, from another thread."""

        async def work() -> Ts:
            return self.oracle.tso(count)

        return self.call(work())

    # For tasks on the loop -----------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Bytes that all clients together still have to take."""
        return sum(endpoint.queued_bytes for endpoint in self.endpoints.values())

    @property
    def registrations(self) -> int:
        """Subscriptions accepted so far."""
        return sum(endpoint.registrations for endpoint in self.endpoints.values())

    async def let_streams_go_on(self, backlog_bytes: int = 32 * 1024 * 1024) -> None:
        """Let streams go on; wait while clients have more than ``backlog_bytes`` to take.

        A real cluster would not wait for its CDC clients. An embedded one that outran them would only fill memory.
        """
        await asyncio.sleep(0)
        while self.queued_bytes > backlog_bytes:
            await asyncio.sleep(0.005)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        options = self.options
        for store_id in self.store.store_ids:
            endpoint = self.endpoints[store_id] = Endpoint(
                store_id,
                self.store,
                options.cluster_id,
                scans_at_once=options.scans_at_once,
                scans_max=options.scans_max,
                scan_bytes_per_s=options.scan_bytes_per_s,
                fake_prewrites=options.fake_prewrites,
            )
            node = self.nodes[store_id] = StoreNode(
                store_id, endpoint, self.pd, host=options.host,
                quota_bytes=options.stream_quota_bytes, patience_s=options.slow_client_s, tls=options.tls,
            )  # fmt: skip
            await node.start()
        for at, pd_node in enumerate(self.pd_nodes):
            await pd_node.start(options.pd_port if at == 0 else 0)
        self.background(self._resolve_rounds())
        if options.gc_life_time_s is not None:
            self.background(self._collect(options.gc_life_time_s))
        log.info("region server listens", extra={"pd": self.pd_addresses, "stores": self.pd.addresses})

    async def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._control is not None:
            await self._control.stop()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await asyncio.gather(*(node.stop() for node in self.pd_nodes))

    async def open_control(self, port: int) -> str:
        """Take cluster events by HTTP on a loopback port, 0: a free one; return its ``host:port``."""
        self._control = ControlServer(self.chaos, self.store, port, self.options.host)
        return await self._control.start()

    def background(self, work: Awaitable[None]) -> None:
        """Run something on the loop until it ends or the server stops."""

        async def run() -> None:
            await work

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve_rounds(self) -> None:
        while True:
            await asyncio.sleep(self.options.min_ts_interval_ms / 1000)
            # No ts is drawn for nobody: a replay may still have to be loaded, whose time lies before the wall clock's.
            if self.registrations:
                min_ts = self.oracle.tso()
                for endpoint in self.endpoints.values():
                    endpoint.advance(min_ts)

    async def _collect(self, life_time_s: float) -> None:
        while True:
            await asyncio.sleep(self.options.gc_interval_s)
            wanted = compose_ts(physical_ms(self.oracle.tso()) - int(life_time_s * 1000))
            safe_point = self.pd.collect(wanted)
            self.store.gc(safe_point)


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
