"""PD as a capture's API asks it: one client, made when it is needed first."""

import contextlib
import threading
import time
from typing import Final

from producers.pull.pd.client import PdClient
from producers.tls import Channels, TlsSettings
from schemas.config.sink.schemes import sink_scheme
from schemas.config.sink.sink_uri import DATABASE_SCHEMES
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts
from schemas.nodes.changefeed import SOURCE_ID_DEFAULT

PD_RETRY_S: Final = 30.0
"""Between two tries to learn PD's cluster id, where it only decorates answers."""


class UpstreamPd:
    """Safe from any thread."""

    def __init__(self, addresses: str, tls: TlsSettings) -> None:
        self._addresses, self._tls = addresses, tls
        self._lock = threading.Lock()
        self._client: PdClient | None = None
        self._cluster_id, self._ask_at = 0, 0.0

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def client(self) -> PdClient:
        with self._lock:
            if self._client is None:
                self._client = PdClient(self._addresses, channels=Channels(self._tls))
            return self._client

    def shown_cluster_id(self) -> int:
        """Return the cluster's id; 0 while PD does not say."""
        now = time.monotonic()
        if not self._cluster_id and now >= self._ask_at:
            self._ask_at = now + PD_RETRY_S
            with contextlib.suppress(BusError):
                self._cluster_id = self.cluster_id()
        return self._cluster_id

    def cluster_id(self) -> int:
        """Return the cluster's id.

        Raises:
            BusError: PD does not answer.
        """
        return self.client().cluster_id

    def source_id(self, sink_uri: str) -> int:
        """Return the cluster's ``tidb_source_id`` for a changefeed; only a database has a use for it.

        Raises:
            BusError: PD does not answer, or not with a number: TiCDC's changefeed waits for it as well.
        """
        is_database = sink_scheme(sink_uri) in DATABASE_SCHEMES
        return self.client().source_id() if is_database else SOURCE_ID_DEFAULT

    def check_not_ahead(self, key: str, ts: Ts) -> Ts:
        """Return PD's clock: up to it, whoever wrote before us may have written more than ``ts`` says.

        Raises:
            ConfigError: ``ts`` is above it.
        """
        now = self.client().now()
        if ts > now:
            raise ConfigError(f"{key} must not be above PD's clock", key=key, got=ts, now_ts=now)
        return now
