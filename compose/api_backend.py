"""The bus as the HTTP API sees it: ZooKeeper by the capture's session, the raw log in Kafka, PD's clock.

Any capture answers for all: what the API changes are ZooKeeper's nodes, so nothing has to be forwarded to the owner.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compose.changefeeds import check_resume_ts, create_changefeed, scoped_tables
from compose.stack.local import Addresses
from consumers.api.bodies import FeedRequest, StoredFeed
from consumers.api.errors import ApiError, NotReadyError
from consumers.api.metrics import Pull, Snapshot
from consumers.capture_registry import CaptureInfo, list_captures
from consumers.changefeed_control import ChangefeedControl, ConfigChange
from consumers.changefeed_store import ChangefeedRequest
from consumers.election import Election
from consumers.zookeeper import Session
from producers.pd_client import PdClient
from producers.tls import Channels, TlsSettings
from schemas.changefeed import ChangefeedInfo, ZkPaths
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.ids import CaptureId, Ts, UpstreamId

log = logging.getLogger(__name__)

PD_RETRY_S = 30.0
"""Between two tries to learn PD's cluster id, which only decorates answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPlaces:
    """Where everything is, as the capture was told."""

    pd: str
    tls: TlsSettings
    kafka: str
    zookeeper: str
    cluster: str
    upstream: UpstreamId


class ApiBackend:
    """For one ZooKeeper session of a capture; :meth:`close` ends what it holds."""

    def __init__(
        self,
        session: Session,
        capture: CaptureInfo,
        places: ApiPlaces,
        is_stopping: Callable[[], bool],
        pull: Callable[[], Pull | None] = lambda: None,
    ) -> None:
        """``pull`` tells what this capture pulls while it is owner; it is called from any thread."""
        paths = ZkPaths(places.cluster)
        self.capture, self.cluster, self.is_stopping = capture, places.cluster, is_stopping
        self._session, self._paths, self._places = session, paths, places
        self._pull = pull
        self._control = ChangefeedControl(session, paths)
        self._election = Election(session, paths, capture.capture_id)
        self._lock = threading.Lock()
        self._pd: PdClient | None = None
        self._upstream_id, self._ask_pd_at = 0, 0.0

    def close(self) -> None:
        """Close the connection to PD."""
        with self._lock:
            if self._pd is not None:
                self._pd.close()

    def owner(self) -> CaptureId | None:
        return self._election.owner()

    def captures(self) -> Sequence[CaptureInfo]:
        return list_captures(self._session, self._paths)

    def upstream_id(self, upstream: UpstreamId) -> int:
        now = time.monotonic()
        if upstream == self._places.upstream and not self._upstream_id and now >= self._ask_pd_at:
            self._ask_pd_at = now + PD_RETRY_S
            with contextlib.suppress(BusError):
                self._upstream_id = self._pd_client().cluster_id
        return self._upstream_id if upstream == self._places.upstream else 0

    def now_ts(self) -> Ts:
        return self._pd_client().now()

    def feeds(self, namespace: str) -> Sequence[StoredFeed]:
        store = self._control.store
        return [StoredFeed(info, store.status(info.changefeed_id, namespace)) for info in store.list(namespace)]

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed:
        store = self._control.store
        return StoredFeed(store.get(changefeed_id, namespace), store.status(changefeed_id, namespace))

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        self._check_upstream(request)
        wanted = ChangefeedRequest(
            upstream=self._places.upstream,
            sink_uri=request.sink_uri or "",
            config=request.config or {},
            changefeed_id=request.changefeed_id,
            namespace=namespace,
            start_ts=request.start_ts,
            target_ts=request.target_ts,
        )
        return create_changefeed(self._addresses, self.cluster, wanted)

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo:
        return self._control.configure(changefeed_id, change, namespace)

    def pause(self, changefeed_id: str, namespace: str) -> None:
        self._control.pause(changefeed_id, namespace)

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None:
        if overwrite_checkpoint_ts is not None:
            info = self._control.store.get(changefeed_id, namespace)
            check_resume_ts(self._places.kafka, info.upstream, overwrite_checkpoint_ts)
        self._control.resume(changefeed_id, namespace, overwrite_checkpoint_ts=overwrite_checkpoint_ts)

    def remove(self, changefeed_id: str, namespace: str) -> None:
        self._control.remove(changefeed_id, namespace)

    def tables(self, request: FeedRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        self._check_upstream(request)
        if request.sink_uri is None:
            raise ApiError("sink_uri is empty; its parameters belong to the settings", key="sink_uri")
        config = load_changefeed(request.sink_uri, request.config)
        found = scoped_tables(self._places.kafka, self._places.upstream, config, request.start_ts)
        shown: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for table in found:
            shown[int(table.eligible)].append(
                {
                    "database_name": table.schema,
                    "table_name": table.table,
                    "table_id": table.table_id,
                    "is_partition": bool(table.partition_ids),
                }
            )
        return shown

    def metrics(self) -> Snapshot:
        pull, feeds = self._pull(), None
        if pull is not None:
            try:
                feeds = [feed for namespace in self._control.store.namespaces() for feed in self.feeds(namespace)]
            except BusError as error:
                log.warning("changefeeds cannot be read for the metrics", extra={"error": str(error)})
        return Snapshot(at_s=time.time(), pull=pull, feeds=feeds)

    def check_health(self) -> None:
        self._session.check_lease()
        if self.owner() is None:
            raise NotReadyError("no capture has been elected owner")

    @property
    def _addresses(self) -> Addresses:
        return Addresses(kafka=self._places.kafka, zookeeper=self._places.zookeeper)

    def _check_upstream(self, request: FeedRequest) -> None:
        ours = {_bare(address) for address in self._places.pd.split(",")}
        if request.pd_addresses and not ours & {_bare(address) for address in request.pd_addresses}:
            raise ApiError("this bus pulls another upstream; leave pd_addrs away", key="pd_addrs", ours=self._places.pd)

    def _pd_client(self) -> PdClient:
        with self._lock:
            if self._pd is None:
                self._pd = PdClient(self._places.pd, channels=Channels(self._places.tls))
            return self._pd


def _bare(address: str) -> str:
    return address.strip().rpartition("://")[2].rstrip("/")
