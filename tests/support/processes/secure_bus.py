"""What end-to-end tests need of a locked-down bus; ``TIDEBUS_SECURE=1`` runs them on one (`make nightly` does)."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from compose.stack.secure.folder import StackSecrets
from producers.region_server.rpc.server_tls import ServerTls

SECURE = os.environ.get("TIDEBUS_SECURE") == "1"


def made_secrets(folder: Path) -> StackSecrets | None:
    """Return what a locked-down bus needs; None: this run is over an open one."""
    return StackSecrets.make(folder / "secrets") if SECURE else None


def region_server_tls(secrets: StackSecrets | None, *, asks_clients: bool = True) -> ServerTls | None:
    """Return the TLS of a region server in the test's own process."""
    if secrets is None:
        return None
    pair = secrets.servers["region-server"]
    return ServerTls(ca_path=secrets.ca_path, cert_path=pair.cert, key_path=pair.key, asks_clients=asks_clients)


def with_parameters(uri: str, parameters: Mapping[str, str]) -> str:
    """Return a sink URI, which has parameters already, with more of them."""
    return f"{uri}&{urlencode(parameters)}" if parameters else uri
