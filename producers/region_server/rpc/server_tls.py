"""TLS of the embedded cluster: one certificate for all its servers, and none of them served without a client's own."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Paths of PEM files, as PD and TiKV have them in their `[security]` sections."""

    ca_path: str
    """Whoever connects must show a certificate that this one has signed."""
    cert_path: str
    key_path: str

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a port is bound with."""
        pair = (Path(self.key_path).read_bytes(), Path(self.cert_path).read_bytes())
        return grpc.ssl_server_credentials(
            [pair], root_certificates=Path(self.ca_path).read_bytes(), require_client_auth=True
        )
