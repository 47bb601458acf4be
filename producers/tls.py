"""TLS to PD and TiKV: one set of files, checked once with a clear reason, and channels that use it.

grpc tells of a handshake that failed little more than "unavailable", and its Python API shows no peer certificate. So a
handshake of our own, with the same files, says what is wrong (:meth:`Channels.refusal`), and checks the peer's common
name. That check is made when an address is first used and after each failure, not inside grpc's own handshake, which
verifies chain and host name every time.
"""

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from producers.channels import open_plain, reaching
from producers.errors import TlsFileError, TlsRefusedError

PROBE_TIMEOUT_S: Final = 3.0
_HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""Preface and an empty SETTINGS frame (RFC 9113 §3.4): whatever the server answers shows that it takes us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Paths of PEM files, named as TiCDC's flags; without a CA there is no TLS."""

    ca_path: str = ""
    """`--ca`: whom we trust."""
    cert_path: str = ""
    """`--cert`: shown to servers that ask for a client certificate."""
    key_path: str = ""
    """`--key`: of the certificate; not encrypted."""
    allowed_cn: tuple[str, ...] = ()
    """`--cert-allowed-cn`: common names that servers may have; empty: any."""

    @property
    def enabled(self) -> bool:
        """Say whether connections use TLS."""
        return bool(self.ca_path)


class Channels:
    """Opens grpc channels, with TLS if so set. Files are read for each channel, so renewed ones are taken up."""

    def __init__(self, tls: TlsSettings | None = None) -> None:
        """Check the files.

        Raises:
            TlsFileError: a file is missing, is no PEM, does not match, or has expired.
        """
        self.tls = tls or TlsSettings()
        if not self.tls.enabled and (self.tls.cert_path or self.tls.key_path or self.tls.allowed_cn):
            raise TlsFileError("a certificate, key or allowed common name needs a CA beside it", file="--ca")
        if bool(self.tls.cert_path) != bool(self.tls.key_path):
            raise TlsFileError("certificate and key come together", cert=self.tls.cert_path, key=self.tls.key_path)
        if self.tls.enabled:
            _check_dates(self.tls, self._context())

    def open(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """Return a channel; connecting goes on in the background.

        Raises:
            TlsFileError: the files have become unusable since the start.
        """
        if not self.tls.enabled:
            return open_plain(address, options)
        tls = self.tls
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(tls.ca_path),
            private_key=_read(tls.key_path) if tls.key_path else None,
            certificate_chain=_read(tls.cert_path) if tls.cert_path else None,
        )
        return grpc.secure_channel(address, credentials, options=reaching(address, options))

    def refusal(self, address: str) -> TlsRefusedError | None:
        """Return why TLS with a server fails; None if it works, is off, or was not tried: the server is not reached, or
        our files cannot be used at the moment.
        """
        try:
            return self.probe(address)
        except (OSError, TlsFileError):
            return None

    def probe(self, address: str) -> TlsRefusedError | None:
        """Return why TLS with a server fails; None if it works or is off.

        Raises:
            OSError: the server is not reached.
            TlsFileError: our files have become unusable since the start, as while they are renewed.
        """
        if not self.tls.enabled:
            return None
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        context = self._context()
        with socket.create_connection((host, int(port)), PROBE_TIMEOUT_S) as plain:
            reason = self._handshake(context, plain, host)
        if not reason:
            return None
        return TlsRefusedError("no TLS connection", address=address, reason=reason, ca=self.tls.ca_path)

    def _handshake(self, context: ssl.SSLContext, plain: socket.socket, host: str) -> str:
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                names = _common_names(secure.getpeercert() or {})
                allowed = self.tls.allowed_cn
                if allowed and not set(names) & set(allowed):
                    seen = ", ".join(names) or "none"
                    return f"common name of the server's certificate is {seen}, allowed: {', '.join(allowed)}"
                if not _answers(secure):
                    shown = self.tls.cert_path or "none given"
                    return f"the server refuses our certificate ({shown}): it ends the connection without a word"
        except ssl.SSLCertVerificationError as error:
            return f"certificate of the server is refused: {error.verify_message}"
        except ssl.SSLEOFError:
            return ""  # a server that is just going down does the same
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                return "the server does not speak TLS"
            if "ALERT" in (error.reason or "") or "CERTIFICATE" in (error.reason or ""):
                shown = self.tls.cert_path or "none given"
                return f"the server refuses our certificate ({shown}): {_reason(error)}"
            return _reason(error)
        return ""

    def _context(self) -> ssl.SSLContext:
        tls, context = self.tls, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Exactly as strict as grpc: a probe that refuses what grpc takes would be a fault of its own.
        context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
        context.set_alpn_protocols(["h2"])
        _read(tls.ca_path)
        try:
            context.load_verify_locations(tls.ca_path)
        except (ssl.SSLError, ValueError) as error:
            raise TlsFileError("file holds no CA certificate", file=tls.ca_path, reason=_reason(error)) from error
        if tls.cert_path:
            _load_pair(context, tls)
        return context


def _answers(secure: ssl.SSLSocket) -> bool:
    """Say whether a server goes on after the handshake.

    TLS 1.3 is done for us before the server has judged our certificate. PD tells by an alert (an SSLError of the first
    read), TiKV just closes. A server that takes us sends its SETTINGS at once.
    """
    try:
        secure.sendall(_HTTP2_HELLO)
        return secure.recv(1) != b""
    except TimeoutError:
        return True
    except (ConnectionError, ssl.SSLEOFError):
        return False


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsFileError("file cannot be read", file=path, reason=error.strerror) from error


def _load_pair(context: ssl.SSLContext, tls: TlsSettings) -> None:
    _read(tls.cert_path)
    _read(tls.key_path)
    try:
        # An encrypted key would make OpenSSL ask at the terminal; grpc cannot use one.
        context.load_cert_chain(tls.cert_path, tls.key_path, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise TlsFileError("key does not match the certificate", cert=tls.cert_path, file=tls.key_path) from error
        raise TlsFileError(
            "no certificate with an unencrypted key", cert=tls.cert_path, file=tls.key_path, reason=_reason(error)
        ) from error


def _check_dates(tls: TlsSettings, context: ssl.SSLContext) -> None:
    """Let OpenSSL judge our certificate's dates, as a server would: by a handshake with ourselves, in memory."""
    if not tls.cert_path:
        return
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_verify_locations(tls.ca_path)
    server_side.verify_mode = ssl.CERT_REQUIRED
    _load_pair(server_side, tls)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    _load_pair(client_side, tls)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server)
    try:
        for side in (client, server, client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        # Another CA than that of the servers may have signed it: only they can say. Its dates are plain to see.
        if error.verify_code in _DATES:
            raise TlsFileError("certificate is refused", file=tls.cert_path, reason=error.verify_message) from error
    except ssl.SSLError:
        return


_DATES: Final = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and _CERT_HAS_EXPIRED."""


def _common_names(certificate: Mapping[str, Any]) -> list[str]:
    return [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
