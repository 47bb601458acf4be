"""TLS of the API: what the server shows and asks for, and what a client does; files named as TiCDC's flags."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.control.api.access.errors import ApiTlsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTls:
    """Paths of PEM files. A server speaks TLS when it has a certificate, a client when it is asked to by the URL."""

    ca_path: str = ""
    """Whose certificates are trusted; a client without it asks the system's."""
    cert_path: str = ""
    key_path: str = ""
    """Of the certificate; not encrypted."""
    allowed_cn: tuple[str, ...] = ()
    """Common names that clients may have: if there are any, a client must show a certificate."""
    mtls: bool = False
    """Clients must show a certificate that the CA has signed."""

    @property
    def serves(self) -> bool:
        """Whether a server with these files speaks TLS."""
        return bool(self.cert_path)

    def server_context(self) -> ssl.SSLContext:
        """Return a server's context.

        Raises:
            ApiTlsError: a file is missing or is not what it should be.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.load_into(context)
        asks = self.mtls or bool(self.allowed_cn)
        if asks and not self.ca_path:
            raise ApiTlsError("client certificates can only be checked against a CA; give --ca", file="--ca")
        if self.ca_path:
            # As TiCDC: without mtls a client may show none, but not a bad one.
            context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_OPTIONAL
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load a server's files as they are now; a CA that was loaded before stays trusted.

        Raises:
            ApiTlsError: a file is missing or is not what it should be.
        """
        _load_pair(context, self)
        if self.ca_path:
            _load_ca(context, self.ca_path)

    def edition(self) -> tuple[object, ...]:
        """Return what is different once a file has changed."""
        return tuple(map(_edition, filter(None, (self.ca_path, self.cert_path, self.key_path))))

    def client_context(self) -> ssl.SSLContext:
        """Return a client's context.

        Raises:
            ApiTlsError: a file is missing or is not what it should be.
        """
        context = ssl.create_default_context()
        if self.ca_path:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # As strict as the connections to PD and TiKV, which use the same files (producers/tls.py).
            context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
            _load_ca(context, self.ca_path)
        if self.cert_path:
            _load_pair(context, self)
        return context

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a client that got through the handshake is refused all the same; '' if it is not."""
        if not self.allowed_cn:
            return ""
        subject = (certificate or {}).get("subject", ())
        names = {value for part in subject for name, value in part if name == "commonName"}
        if names & set(self.allowed_cn):
            return ""
        return f"common name is {', '.join(sorted(names)) or 'none'}, allowed: {', '.join(self.allowed_cn)}"


def _edition(path: str) -> tuple[int, ...]:
    try:
        stands = Path(path).stat()
    except OSError:
        return ()
    return stands.st_dev, stands.st_ino, stands.st_mtime_ns, stands.st_size


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise ApiTlsError("file holds no CA certificate", file=path, reason=_reason(error)) from error


def _load_pair(context: ssl.SSLContext, tls: ApiTls) -> None:
    if not (tls.cert_path and tls.key_path):
        raise ApiTlsError("certificate and key come together", cert=tls.cert_path, key=tls.key_path)
    _check_readable(tls.cert_path)
    _check_readable(tls.key_path)
    try:
        # An encrypted key would make OpenSSL ask at the terminal.
        context.load_cert_chain(tls.cert_path, tls.key_path, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise ApiTlsError(
            "no certificate with its unencrypted key", cert=tls.cert_path, file=tls.key_path, reason=_reason(error)
        ) from error


def _check_readable(path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ApiTlsError("file cannot be read", file=path, reason=error.strerror) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
