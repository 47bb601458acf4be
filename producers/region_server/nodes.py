"""The processes of a cluster, played by gRPC servers on loopback ports: stores and PD members that stop and start."""

import grpc
import grpc.aio

from producers.region_server.cdc.endpoint import Endpoint
from producers.region_server.cdc.service import ChangeDataService
from producers.region_server.kv.service import TikvService
from producers.region_server.pd.cluster import PdCluster
from producers.region_server.pd.service import PdService
from producers.region_server.rpc.server_tls import ServerTls
from schemas.errors import InvariantBrokenError
from schemas.ids import StoreId
from schemas.proto import pdpb_pb2_grpc, tikvpb_pb2_grpc

_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Clients ping every 10 s, also without a stream; the default calls that abuse and closes the connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


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
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        service = ChangeDataService(self.endpoint, self._quota_bytes, self._patience_s)
        self._server.add_generic_rpc_handlers((service.handlers(),))
        kv = TikvService(self.store_id, self._cluster.store, lambda: self.endpoint.delay_s)
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
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
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
