"""Google's storage on loopback, played by an emulator, and a service account whose tokens a test gives out."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from compose.ports import LOOPBACK, free_ports
from tests.support.storages.recording_proxy import Recording, Request, recorded

TOKEN_PATH = "/token"
TOKENS = "https://oauth2.googleapis.com"


@pytest.fixture(scope="module")
def google_storage() -> Iterator[str]:
    """The server's host and port; it has the bucket ``rows``, and keeps nothing on disk."""
    from gcp_storage_emulator.server import create_server

    port = free_ports(1)[0]
    server = create_server(LOOPBACK, port, in_memory=True, default_bucket="rows")
    server.start()
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        server.stop()


@contextmanager
def hosts_of_google(server: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Let the names of Google's own hosts lead to ``host:port`` in this process, by TLS, with tokens given out."""
    with recorded(server, folder, ("storage.googleapis.com", "oauth2.googleapis.com")) as recording:
        recording.answer = give_token
        port, known = int(recording.address.rpartition(":")[2]), socket.getaddrinfo

        def looked_up(host: Any, asked: Any, *more: Any, **named: Any) -> Any:
            to = (LOOPBACK, port) if str(host).endswith(".googleapis.com") else (host, asked)
            return known(*to, *more, **named)

        monkeypatch.setattr(socket, "getaddrinfo", looked_up)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "ca.pem"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "*")
        yield recording


def write_service_account(file: Path, address: str) -> None:
    """Write credentials of a service account whose tokens are asked for at an address."""
    key = generate_private_key(public_exponent=65537, key_size=2048)
    said = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "client_email": "sink@p.iam.example",
        "client_id": "1",
        "token_uri": f"{address}{TOKEN_PATH}",
    }
    file.write_text(json.dumps(said))


def give_token(request: Request) -> tuple[int, bytes] | None:
    """Answer as Google's server of tokens; the emulator looks at none."""
    if request.target != TOKEN_PATH:
        return None
    return 200, json.dumps({"access_token": "given-token", "expires_in": 3600, "token_type": "Bearer"}).encode()
