"""A capture's connections to the others, by the TLS files that it has for everything else."""

from pathlib import Path

import grpc

from consumers.control.peers.grpc_peers import GrpcPeers
from producers.tls import Channels, TlsSettings
from schemas.ids import CaptureId

PEER_ADDR = "127.0.0.1:0"


def open_peers(
    capture: CaptureId,
    version: str,
    *,
    listen: str = PEER_ADDR,
    advertised: str = "",
    tls: TlsSettings | None = None,
) -> GrpcPeers:
    """Listen for other captures at ``listen`` (port 0: any free one) and be ready to connect to them.

    With a CA, certificate and key both ends show theirs, and ``allowed_cn`` holds for whoever connects; with less than
    these three a capture cannot be a TLS server, and peers talk in the clear, as upstreams do without a CA.

    Raises:
        PeerAddressError: others could not use the address.
        PeerPortError: the port cannot be listened on.
        TlsFileError: a file is missing or does not fit.
    """
    tls = tls or TlsSettings()
    is_secure = tls.enabled and bool(tls.cert_path)
    channels = Channels(tls if is_secure else None)
    return GrpcPeers(
        capture,
        version,
        listen,
        channels.open,
        advertised=advertised,
        credentials=_credentials(tls) if is_secure else None,
        allowed_cn=tls.allowed_cn if is_secure else (),
    )


def _credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    pair = (Path(tls.key_path).read_bytes(), Path(tls.cert_path).read_bytes())
    return grpc.ssl_server_credentials(
        [pair], root_certificates=Path(tls.ca_path).read_bytes(), require_client_auth=True
    )
