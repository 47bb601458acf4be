"""TLS of connections to a destination: the machine's authorities, which take 23 ms of CPU, are not read for each.

Certificates are read anew when their files have changed: who rotates them restarts nothing.
"""

import ssl
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pymysql.connections
from pymysql.constants import CR

from schemas.config.sink.mysql import MysqlConfig

if TYPE_CHECKING:
    _PyMySqlConnection = pymysql.connections.Connection[pymysql.cursors.Cursor]
else:
    _PyMySqlConnection = pymysql.connections.Connection

CONTEXTS_MAX = 64
ASKING_PLUGINS: Final = frozenset({b"mysql_clear_password", b"dialog"})
"""Ways of a server to ask for the password itself."""
_Stamps = tuple[int, ...]


class DatabaseConnection(_PyMySqlConnection):
    """PyMySQL's, which uses TLS unasked where the server has it: that proves no name, so it needs no authorities."""

    packet_bytes_max: int
    """The longest packet that the server takes from this session; who has set the session up says it."""
    ctx: ssl.SSLContext
    _secure: bool
    """Whether this connection is over TLS already."""

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        """Overrides PyMySQL's, which reads all authorities and then checks nothing."""
        return sslp if isinstance(sslp, ssl.SSLContext) else _unproven()

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        """Overrides PyMySQL's, which says the password to any server that asks for it; MySQL's own client wants to be
        allowed that, by ``--enable-cleartext-plugin``.
        """
        if plugin_name in ASKING_PLUGINS and not (self._secure and self.ctx.check_hostname):
            text = (
                f"the server asks for the password itself ({plugin_name.decode()}), which only one is told whose name"
            )
            raise pymysql.err.OperationalError(
                CR.CR_AUTH_PLUGIN_CANNOT_LOAD, f"{text} TLS proves: give ssl-ca, or a scheme with +ssl"
            )
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]


def tls_context(mysql: MysqlConfig) -> ssl.SSLContext:
    """Return what proves the server's name, by ``ssl-ca`` or the machine's authorities, and ours by ``ssl-cert``.

    Raises:
        OSError: a file cannot be read, or is none of these (``ssl.SSLError``).
    """
    paths = (mysql.ssl_ca, mysql.ssl_cert, mysql.ssl_key)
    return _read(*paths, _stamps(path or "" for path in (mysql.ssl_ca or _authorities(), *paths[1:])))


@lru_cache(CONTEXTS_MAX)
def _read(ca: str | None, cert: str | None, key: str | None, _stamps: _Stamps) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


@lru_cache(1)
def _unproven() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _authorities() -> str | None:
    return ssl.get_default_verify_paths().cafile


def _stamps(paths: Iterable[str]) -> _Stamps:
    return tuple(Path(path).stat().st_mtime_ns if path else 0 for path in paths)
