"""TLS of connections to a destination: the machine's authorities, which take 23 ms of CPU, are not read for each.

Certificates are read anew when their files have changed: who rotates them restarts nothing.
"""

import ipaddress
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pymysql.connections
from pymysql.constants import CLIENT, CR

from schemas.config.sink.mysql import MysqlConfig

if TYPE_CHECKING:
    _PyMySqlConnection = pymysql.connections.Connection[pymysql.cursors.Cursor]
else:
    _PyMySqlConnection = pymysql.connections.Connection

CONTEXTS_MAX = 64
ASKING_PLUGINS: Final = frozenset({b"mysql_clear_password", b"dialog"})
"""Ways of a server to ask for the password itself."""
_SHA256: Final = "sha256_password"
_FULL_KEY_REQUEST: Final = b"\x02"
"""``caching_sha2_password`` asks for the key of a server that does not know the user's hash yet, to encrypt with it."""
_OF_USERS: Final = frozenset({1044, 1045, 1130, 1142, 1143, 1184, 1203, 1226, 1227, 1370, 1449, 1698, 1820, 1862, 3118})
"""Numbers of a server's errors that are about users: most of them name one."""
_NAMED_CHARS: Final = 8
"""So much of a user's name shows that a text names it: servers cut long ones."""
_Stamps = tuple[int, ...]


class DatabaseConnection(_PyMySqlConnection):
    """PyMySQL's, which uses TLS unasked where the server has it: that proves no name, so it needs no authorities.

    A server learns the password where TLS proves its name. ``caching_sha2_password`` and ``sha256_password`` tell it
    to any server over TLS, and without TLS to whoever hands out a public key; here to one of this machine, or by leave.
    """

    packet_bytes_max: int
    """The longest packet that the server takes from this session; who has set the session up says it."""
    ctx: ssl.SSLContext
    _secure: bool
    """Whether this connection is over TLS already."""
    _auth_plugin_name: str
    """What the server has greeted with."""
    _sock: socket.socket
    server_capabilities: int

    def __init__(self, *, allows_key_retrieval: bool = False, hides_user: bool = False, **arguments: Any) -> None:
        """Connect.

        Args:
            allows_key_retrieval: the two that are named above may tell any server the password.
            hides_user: no error may name the user, who came by a reference to a secret.
            arguments: PyMySQL's.
        """
        self._allows_key_retrieval = allows_key_retrieval
        self._hidden = str(arguments["user"])[:_NAMED_CHARS] if hides_user else ""
        super().__init__(**arguments)

    def _read_packet(self, *args: Any) -> Any:
        """Overrides PyMySQL's, whose errors are in the server's words: these may name the user, or its beginning."""
        try:
            return super()._read_packet(*args)  # type: ignore[no-untyped-call]
        except pymysql.MySQLError as error:
            number = error.args[0] if error.args else 0
            if self._hidden and (number in _OF_USERS or any(self._hidden in str(part) for part in error.args)):
                error.args = (number, "what the server says may name the user, whom a reference to a secret hides")
            raise

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        """Overrides PyMySQL's, which reads all authorities and then checks nothing."""
        return sslp if isinstance(sslp, ssl.SSLContext) else _unproven()

    def _request_authentication(self) -> None:
        """Overrides PyMySQL's, which answers a greeting of ``sha256_password`` with the password."""
        if self._auth_plugin_name == _SHA256:
            self._check_retrieval(_SHA256)
        super()._request_authentication()  # type: ignore[misc]

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        """Overrides PyMySQL's, which says the password to any server that asks for it; MySQL's own client wants to be
        allowed that, by ``--enable-cleartext-plugin``.
        """
        if plugin_name in ASKING_PLUGINS and not self._is_proven():
            raise _refusal(plugin_name.decode(), "give ssl-ca, or a scheme with +ssl")
        if plugin_name == _SHA256.encode():
            self._check_retrieval(_SHA256)
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]

    def write_packet(self, payload: bytes) -> None:
        """Overrides PyMySQL's: whatever plugin is at work, what leaves is looked at here. Only what proves who we are
        is written as a packet; statements go another way.
        """
        password = bytes(self.password)
        if password and payload in (password, password + b"\0", _FULL_KEY_REQUEST) and not self._is_proven():
            self._check_retrieval("caching_sha2_password")
        super().write_packet(payload)

    def _is_proven(self) -> bool:
        return self._secure and self.ctx.check_hostname

    def _check_retrieval(self, plugin: str) -> None:
        # The context says what TLS is going to prove; a greeting comes before it.
        will_prove = bool(self.ssl and self.server_capabilities & CLIENT.SSL and self.ctx.check_hostname)
        if not (self._allows_key_retrieval or will_prove or not self.password or _is_loopback(self._sock)):
            hint = "give ssl-ca, a scheme with +ssl, or allow-public-key-retrieval=true in the sink URI"
            raise _refusal(plugin, hint)


def _refusal(plugin: str, hint: str) -> pymysql.err.OperationalError:
    text = f"the server asks for the password itself ({plugin}), which only one is told whose name TLS proves: {hint}"
    return pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, text)


def _is_loopback(connected: socket.socket) -> bool:
    return ipaddress.ip_address(connected.getpeername()[0].partition("%")[0]).is_loopback


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
