"""A capture's connections to the others, by the TLS files that it has for everything else."""

import logging
from pathlib import Path
from typing import Any

import grpc

from consumers.control.peers.errors import PeerNotAuthenticatedError
from consumers.control.peers.grpc_peers import GrpcPeers
from edges.secret_file import read_secret_lines
from producers.tls import Channels, TlsSettings
from schemas.addresses import host_of, is_loopback
from schemas.errors import BusError
from schemas.ids import CaptureId

log = logging.getLogger(__name__)

PEER_ADDR = "127.0.0.1:0"


def open_peers(
    capture: CaptureId,
    version: str,
    *,
    listen: str = PEER_ADDR,
    advertised: str = "",
    tls: TlsSettings | None = None,
    cluster_secret_file: Path | None = None,
) -> GrpcPeers:
    """Listen for other captures at ``listen`` (port 0: any free one) and be ready to connect to them.

    With a CA, certificate and key both ends show theirs, and ``allowed_cn`` holds for whoever connects. With less than
    these three a capture cannot be a TLS server: then peers talk in the clear, and beyond loopback all of them must
    prove that they know the secret of ``cluster_secret_file``.

    Raises:
        PeerNotAuthenticatedError: anybody on the network could talk as any capture.
        ConfigError: the secret's file cannot be used.
        PeerAddressError: others could not use the address.
        PeerPortError: the port cannot be listened on.
        TlsFileError: a file is missing or does not fit.
    """
    tls = tls or TlsSettings()
    is_secure = tls.enabled and bool(tls.cert_path)
    cluster_secrets = read_cluster_secrets(cluster_secret_file)
    if not is_secure and not cluster_secrets and not is_loopback(host_of(listen)):
        raise PeerNotAuthenticatedError(
            "captures beyond loopback must know each other: give --ca, --cert and --key, or --cluster-secret-file",
            listen=listen,
            ca=tls.ca_path or "none",
            cert="none",
        )
    if tls.enabled and not is_secure:
        log.warning(
            "captures talk to each other without TLS: --ca alone is for PD and TiKV; --cert and --key are missing",
            extra={"listen": listen},
        )
    channels = Channels(tls if is_secure else None)
    return GrpcPeers(
        capture,
        version,
        listen,
        channels.open,
        advertised=advertised,
        credentials=_credentials(tls) if is_secure else None,
        allowed_cn=tls.allowed_cn if is_secure else (),
        cluster_secrets=cluster_secrets,
    )


def read_cluster_secrets(path: Path | None) -> tuple[bytes, ...]:
    """Return the secrets that captures prove to each other that they know, the one in use first; none without a file.

    Raises:
        ConfigError: the file cannot be used.
    """
    if path is None:
        return ()
    return tuple(line.encode() for line in read_secret_lines(path, "cluster-secret-file"))


def _credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    """Return credentials that take up files which have changed, at the next handshake."""
    seen = _files(tls)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            now = _files(tls)
            if now == seen:
                return None
            Channels(tls)  # they fit each other, or nothing changes
        except (OSError, BusError) as error:
            log.error("certificate for captures stays as it was", extra={"error": str(error)})
            return None
        seen = now
        log.info("certificate for captures is read anew", extra={"cert": tls.cert_path})
        return _configuration(now)

    fetch: Any = renewed  # the stubs do not know None, which keeps what there is
    return grpc.dynamic_ssl_server_credentials(_configuration(seen), fetch, require_client_authentication=True)


def _files(tls: TlsSettings) -> tuple[bytes, bytes, bytes]:
    key, cert, ca = (Path(path).read_bytes() for path in (tls.key_path, tls.cert_path, tls.ca_path))
    return key, cert, ca


def _configuration(files: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    key, cert, ca = files
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)
