"""TLS of the embedded cluster: one certificate for all its servers, and each client its own where they ask for it."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Paths of PEM files, as PD and TiKV have them in their `[security]` sections."""

    ca_path: str
    """Has signed the certificates that clients show."""
    cert_path: str
    key_path: str
    asks_clients: bool = True
    """False: whoever connects need show no certificate."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a port is bound with."""
        pair = (Path(self.key_path).read_bytes(), Path(self.cert_path).read_bytes())
        return grpc.ssl_server_credentials(
            [pair],
            root_certificates=Path(self.ca_path).read_bytes() if self.asks_clients else None,
            require_client_auth=self.asks_clients,
        )
