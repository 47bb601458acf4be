"""The API on a socket before a real backend, without a capture behind it: what the command line is tested against."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from compose.capture.api.addresses import ApiAddresses
from compose.capture.api.backend import ApiBackend
from consumers.control.api.backend import Scheduling
from consumers.control.api.serving.server import ApiServer
from consumers.control.cluster.capture_registry import CaptureInfo, register_capture
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from producers.tls import TlsSettings
from schemas.ids import CaptureId, UpstreamId
from schemas.nodes.changefeed import ZkPaths


@contextmanager
def served_bus(
    session: Session,
    places: ApiAddresses,
    *,
    capture_id: str = "served",
    registered: bool = True,
    scheduling: Callable[[], Scheduling | None] = lambda: None,
) -> Iterator[str]:
    """Yield the URL of a capture's API; ``registered``: the capture stands in ZooKeeper."""
    with closing(ApiServer("127.0.0.1:0")) as server:
        info = CaptureInfo(
            capture_id=CaptureId(capture_id), address=server.address, version="1.2.3", started_at_s=int(time.time())
        )
        if registered:
            register_capture(session, ZkPaths(places.cluster), info)
        backend = ApiBackend(session, info, places, lambda: False, scheduling=scheduling)
        with closing(backend), server.serving(backend):
            yield f"http://{server.address}"


def places_of(pd: str, kafka: str, zookeeper: str, cluster: str, upstream: str) -> ApiAddresses:
    """Return where a bus's parts are, without TLS."""
    return ApiAddresses(
        pd=pd,
        tls=TlsSettings(),
        kafka=KafkaAccess(kafka),
        zookeeper=ZooKeeperAccess(zookeeper),
        cluster=cluster,
        upstream=UpstreamId(upstream),
    )
