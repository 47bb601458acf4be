"""The processes of a cluster, played by gRPC servers on loopback ports: stores and PD members that stop and start."""

import grpc
import grpc.aio

from producers.region_server.cdc.endpoint import Endpoint
from producers.region_server.cdc.service import ChangeDataService
from producers.region_server.kv.call_gate import CallFaults, CallGate
from producers.region_server.kv.service import TikvService
from producers.region_server.pd.cluster import PdCluster
from producers.region_server.pd.service import PdService
from producers.region_server.rpc.server_options import SERVER_OPTIONS
from producers.region_server.rpc.server_tls import ServerTls
from schemas.errors import InvariantBrokenError
from schemas.ids import StoreId
from schemas.proto import pdpb_pb2_grpc, tikvpb_pb2_grpc


class StoreNode:
    """One TiKV store: the CDC module and the KV calls behind one port."""

    def __init__(
        self,
        store_id: StoreId,
        endpoint: Endpoint,
        cluster: PdCluster,
        *,
        host: str,
        quota_bytes: int,
        patience_s: float,
        tls: ServerTls | None = None,
    ) -> None:
        self.store_id = store_id
        self.endpoint = endpoint
        self._cluster = cluster
        self._host = host
        self._quota_bytes = quota_bytes
        self._patience_s = patience_s
        self._tls = tls
        self.call_faults = CallFaults()
        """Of the KV calls; they outlive a restart."""
        self._server: grpc.aio.Server | None = None

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    async def start(self, port: int = 0) -> None:
        """Serve on a port, 0: a free one, and tell PD the address.

        Raises:
            InvariantBrokenError: the port is taken.
        """
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        service = ChangeDataService(self.endpoint, self._quota_bytes, self._patience_s)
        self._server.add_generic_rpc_handlers((service.handlers(),))
        gate = CallGate(
            self.store_id,
            self._cluster.store,
            delay_s=lambda: self.endpoint.delay_s,
            faults=self.call_faults,
            resolved_ts=self._cluster.replica_resolved_ts,
        )
        kv = TikvService(self._cluster.store, gate)
        tikvpb_pb2_grpc.add_TikvServicer_to_server(kv, self._server)
        self._cluster.addresses[self.store_id] = f"{self._host}:{_bind(self._server, self._host, port, self._tls)}"
        await self._server.start()

    async def stop(self) -> int:
        """End all streams UNAVAILABLE and give the port back; return the port."""
        if self._server is None:
            return self._port
        self.endpoint.drop_streams(grpc.StatusCode.UNAVAILABLE, "store is shutting down")
        server, self._server = self._server, None
        await server.stop(grace=None)
        return self._port

    @property
    def _port(self) -> int:
        return int(self._cluster.addresses[self.store_id].rpartition(":")[2])


class PdNode:
    """One PD member."""

    def __init__(self, cluster: PdCluster, index: int, *, host: str, tls: ServerTls | None = None) -> None:
        self._cluster = cluster
        self._tls = tls
        self._index = index
        self._host = host
        self._server: grpc.aio.Server | None = None
        self._port = 0

    async def start(self, port: int = 0) -> None:
        """Serve on a port, 0: the one of before, or a free one at first.

        Raises:
            InvariantBrokenError: the port is taken.
        """
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pdpb_pb2_grpc.add_PDServicer_to_server(PdService(self._cluster, self._index), self._server)
        self._port = _bind(self._server, self._host, port or self._port, self._tls)
        member = self._cluster.members[self._index]
        scheme = "https" if self._tls else "http"
        member.url, member.running = f"{scheme}://{self._host}:{self._port}", True
        await self._server.start()

    async def stop(self) -> None:
        """End all calls and give the port back."""
        self._cluster.members[self._index].running = False
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace=None)


def _bind(server: "grpc.aio.Server", host: str, port: int, tls: ServerTls | None) -> int:
    try:
        if tls is not None:
            return server.add_secure_port(f"{host}:{port}", tls.credentials())
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise InvariantBrokenError("port is taken", host=host, port=port) from error
