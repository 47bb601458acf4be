"""The sink URI: ``scheme://host[:port][,host2…]/topic[?params]``."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, unquote_plus

from schemas.config.parse.origin import NotSupportedYetError, Path, UriText
from schemas.config.parse.secret import Secret
from schemas.config.sink.blackhole import BLACKHOLE_SCHEMES, BLACKHOLE_TOPIC
from schemas.config.sink.iceberg import ICEBERG_LATER_PARAMS, ICEBERG_SCHEMES, ICEBERG_URI_PARAMS
from schemas.config.sink.kafka import URI_PARAMS
from schemas.config.sink.mysql import MYSQL_URI_PARAMS
from schemas.config.sink.schemes import is_lake_scheme
from schemas.config.sink.storage import STORAGE_SCHEMES, STORAGE_URI_PARAMS
from schemas.config.sink.storage_uri import StorageUri, parse_storage_uri
from schemas.errors import ConfigError
from schemas.masking import MASK

KAFKA_SCHEMES = ("kafka", "kafka+ssl")
DATABASE_SCHEMES = ("mysql", "mysql+ssl", "tidb", "tidb+ssl")
LATER_SCHEMES = (*("pulsar", "pulsar+ssl", "pulsar+http", "pulsar+https"), "noop")
"""TiCDC's other sinks; ``config.not_supported_yet``."""
LATER_PARAMS = {
    "dry-run": "a run that writes nothing; `tidebus dry-run` shows what would be written",
    "where-clause": "a WHERE of its own in statements",
}
"""TiCDC's parameters that nobody may pass over; ``config.not_supported_yet``."""
IDLE_PARAMS = {
    "has-vector-type": "VECTOR columns are written as they are, as TiCDC does with true",
    "enable-ddl-ts": "positions of rows and DDL are always kept in the destination",
    "dry-run-delay": "it goes with dry-run",
    "dry-run-block-interval": "it goes with dry-run",
}
"""TiCDC's parameters of database sinks that change nothing here, and why; each that is given is named."""
EMPTY_COUNTS = ("time-zone",)
"""TiCDC's parameters that say something when they are empty; other empty ones are as good as not given."""
KAFKA_PORT_DEFAULT = 9092
DATABASE_PORTS = {"mysql": 3306, "tidb": 4000}
"""Where the URI names none."""
TICDC_DATABASE_PORT = 4000
"""Where it names none, TiCDC's of every scheme."""
TOPIC_LENGTH_MAX = 249
"""Kafka's own limit."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._\-]+)(?::(\d+))?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
TOPIC = re.compile(r"[A-Za-z0-9._\-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseServer:
    """Where a MySQL or TiDB is, and as whom to write there."""

    host: str
    port: int
    user: str = field(repr=False)
    password: Secret
    tls: bool
    """The scheme asks for it."""
    is_tidb: bool
    """The scheme says that it is a TiDB."""
    is_default_port: bool = False
    """The URI names none."""
    hides_user: bool = False
    """The user came by a reference to a secret: nobody is shown it, not in what the server says either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkUri:
    """A sink's address; its parameters have gone into the settings."""

    scheme: str
    brokers: tuple[str, ...]
    """``host:port`` each; none for another sink than Kafka."""
    default_topic: str
    server: DatabaseServer | None = None
    """Of a database sink."""
    storage: StorageUri | None = None
    """Of a storage sink."""
    unread: tuple[str, ...] = ()
    """Names of parameters that nobody reads; '' of what is no ``name=value``, which may be part of a password."""
    idle: tuple[tuple[str, str], ...] = ()
    """Names of TiCDC's parameters that change nothing here, and why."""

    @property
    def is_lake(self) -> bool:
        """Lake tables, which the sorter writes itself."""
        return is_lake_scheme(self.scheme)

    @property
    def is_blackhole(self) -> bool:
        """Everything runs, and nothing is written."""
        return self.scheme in BLACKHOLE_SCHEMES

    @property
    def bootstrap_servers(self) -> str:
        """As Kafka clients take it."""
        return ",".join(self.brokers)


def parse_sink_uri(uri: str) -> tuple[SinkUri, dict[Path, UriText], dict[Path, str]]:
    """Split a sink URI into the address, its settings by their path in the file, and the parameters' names.

    Raises:
        ConfigError: malformed, an unknown scheme or parameter, a parameter given twice, no topic. The text never holds
            what may be a password.
        NotSupportedYetError: a sink of TiCDC that this version has not.
    """
    try:
        return _parsed(uri)
    except ConfigError as error:
        if "@" not in uri or "got" not in error.fields:
            raise
        kind, message = type(error), error.message
        fields = {name: value for name, value in error.fields.items() if name != "got"}
    # Outside of the block, so that the error with the value is no context of this one: where a password holds a `/`,
    # `:` or `?` unescaped, the URI comes apart within it.
    raise kind(message, **fields)


def _parsed(uri: str) -> tuple[SinkUri, dict[Path, UriText], dict[Path, str]]:
    match = _SCHEME.match(uri)
    if not match:
        raise _error("sink URI must start with a scheme such as kafka://", got=uri.partition(":")[0][:20])
    scheme = match[1].lower()
    if scheme in LATER_SCHEMES:
        text = "only Kafka, MySQL, TiDB, storages, Iceberg and blackhole are"
        raise NotSupportedYetError(f"sink scheme `{scheme}` is not supported yet, {text}")
    ours = (*KAFKA_SCHEMES, *DATABASE_SCHEMES, *STORAGE_SCHEMES, *ICEBERG_SCHEMES, *BLACKHOLE_SCHEMES)
    if scheme not in ours:
        known = ", ".join((*ours, *LATER_SCHEMES))
        raise _error(f"sink scheme `{scheme}` is unknown, known are {known}")
    rest, fragment, _ = uri[match.end() :].partition("#")
    if fragment:
        raise _error("sink URI must not have a fragment (#…); write # as %23")
    address, _, query = rest.partition("?")
    authority, _, path = address.partition("/")
    if scheme in DATABASE_SCHEMES:
        server, (settings, names, unread) = _server(scheme, authority), _params(query, MYSQL_URI_PARAMS)
        unread = (*unread, "its path") if path.strip("/") else unread
        idle = tuple((name, IDLE_PARAMS[name]) for name in unread if name in IDLE_PARAMS)
        unread = tuple(name for name in unread if name not in IDLE_PARAMS)
        uri_parts = SinkUri(scheme=scheme, brokers=(), default_topic="", server=server, unread=unread, idle=idle)
        return uri_parts, settings, names
    if scheme in STORAGE_SCHEMES:
        return _storage(scheme, f"{uri[: match.end()]}{address}", query)
    if is_lake_scheme(scheme):
        return _lake(scheme, address, query)
    if scheme in BLACKHOLE_SCHEMES:
        settings, names, unread = _params(query, URI_PARAMS)
        topic = _topic(path) if path.strip("/") else BLACKHOLE_TOPIC
        unread = (*unread, "its host") if authority else unread
        return SinkUri(scheme=scheme, brokers=(), default_topic=topic, unread=unread), settings, names
    brokers, topic = _brokers(authority), _topic(path)
    settings, names, unread = _params(query, URI_PARAMS)
    return SinkUri(scheme=scheme, brokers=brokers, default_topic=topic, unread=unread), settings, names


def _error(message: str, **fields: object) -> ConfigError:
    return ConfigError(message, where="sink URI", **fields)


def _brokers(authority: str) -> tuple[str, ...]:
    if "@" in authority:
        raise _error(f"a Kafka sink URI takes no user info ({MASK}@); use the parameters sasl-user and sasl-password")
    if not authority:
        raise _error("sink URI has no host; write kafka://host:port/topic")
    brokers = []
    for item in authority.split(","):
        match = _HOST.fullmatch(item)
        if not match:
            raise _error("broker address must be host or host:port", got=item)
        port = int(match[2]) if match[2] else KAFKA_PORT_DEFAULT
        if not 0 < port < 65536:
            raise _error("port must be from 1 to 65535", got=item)
        brokers.append(f"{match[1]}:{port}")
    return tuple(brokers)


def _server(scheme: str, authority: str) -> DatabaseServer:
    user_info, _, address = authority.rpartition("@")
    user, _, password = user_info.partition(":")
    match = _HOST.fullmatch(address)
    if not match:
        form = "user:password@host:port/"  # apart from the scheme: a whole URI would be masked
        raise _error(f"a database sink URI is {scheme}:// and {form}; write @, :, / and ? in it as %40 …")
    port = int(match[2]) if match[2] else DATABASE_PORTS[scheme.removesuffix("+ssl")]
    if not 0 < port < 65536:
        raise _error("port must be from 1 to 65535", got=address)
    return DatabaseServer(
        host=match[1].strip("[]"),
        port=port,
        user=_unquote(user, plus=False, what="user") or "root",
        password=Secret(_unquote(password, plus=False, what="password")),
        tls=scheme.endswith("+ssl"),
        is_tidb=scheme.startswith("tidb"),
        is_default_port=match[2] is None,
    )


def with_ticdc_port(uri: str) -> str:
    """Return a sink URI of TiCDC's with the port that TiCDC takes, where it is a database's and names none.

    >>> with_ticdc_port("mysql://root:p@h/?worker-count=8"), with_ticdc_port("tidb://h:1/")
    ('mysql://root:p@h:4000/?worker-count=8', 'tidb://h:1/')
    """
    match = _SCHEME.match(uri)
    if match is None or match[1].lower() not in DATABASE_SCHEMES:
        return uri
    end = next((at for at in range(match.end(), len(uri)) if uri[at] in "/?#"), len(uri))
    address = _HOST.fullmatch(uri[match.end() : end].rpartition("@")[2])
    return uri if address is None or address[2] else f"{uri[:end]}:{TICDC_DATABASE_PORT}{uri[end:]}"


def _storage(scheme: str, address: str, query: str) -> tuple[SinkUri, dict[Path, UriText], dict[Path, str]]:
    """Split the query: what is no setting of the sink is a parameter of the storage."""
    items = [item for item in query.split("&") if item]
    is_ours = [unquote_plus(item.partition("=")[0]) in STORAGE_URI_PARAMS for item in items]
    ours = "&".join(item for item, mine in zip(items, is_ours, strict=True) if mine)
    others = "&".join(item for item, mine in zip(items, is_ours, strict=True) if not mine)
    try:
        storage = parse_storage_uri(address + (f"?{others}" if others else ""))
    except ValueError as error:
        raise _error(f"sink URI {error}; parameters of the sink are {', '.join(STORAGE_URI_PARAMS)}") from None
    settings, names, unread = _params(ours, STORAGE_URI_PARAMS)
    unread = (*unread, *storage.unread)
    uri_parts = SinkUri(scheme=scheme, brokers=(), default_topic="", storage=storage, unread=unread, idle=storage.idle)
    return uri_parts, settings, names


def _lake(scheme: str, address: str, query: str) -> tuple[SinkUri, dict[Path, UriText], dict[Path, str]]:
    if address.strip("/"):
        form = "?warehouse=file:///path&mode=append"  # apart from the scheme: a whole URI would be masked
        raise _error(f"an Iceberg sink URI has neither host nor path, only parameters: {scheme}:// and {form}")
    settings, names, unread = _params(query, ICEBERG_URI_PARAMS, ICEBERG_LATER_PARAMS)
    return SinkUri(scheme=scheme, brokers=(), default_topic="", unread=unread), settings, names


def _topic(path: str) -> str:
    topic = _unquote(path.strip("/"), plus=False, what="path")
    if not topic:
        raise _error("sink URI names no default topic; write kafka://host:port/topic")
    if "/" in topic:
        raise _error("sink URI's path must be one topic", got=topic)
    check_topic_name(topic, "default topic")
    return topic


def check_topic_name(topic: str, what: str) -> None:
    """Hold a topic against Kafka's rules.

    Raises:
        ConfigError: illegal characters, ``.`` or ``..``, or too long.
    """
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise _error(f"{what} may hold only letters, digits, `.`, `_` and `-`, and not be `.` or `..`", got=topic)
    if len(topic) > TOPIC_LENGTH_MAX:
        raise _error(f"{what} has {len(topic)} characters, {TOPIC_LENGTH_MAX} are allowed", got=topic[:40] + "…")


def _params(
    query: str, known: Mapping[str, Path], later: Mapping[str, str] = LATER_PARAMS
) -> tuple[dict[Path, UriText], dict[Path, str], tuple[str, ...]]:
    settings: dict[Path, UriText] = {}
    names: dict[Path, str] = {}
    given: dict[Path, str] = {}
    unread: list[str] = []
    for item in filter(None, query.split("&")):
        raw_name, _, raw_value = item.partition("=")
        name = _unquote(raw_name, plus=True, what="parameter name")
        if name in later and raw_value:
            what = later[name]
            raise NotSupportedYetError(f"`{name}` is not supported yet: {what}", where="sink URI", key=name)
        if name not in known:
            shown = name if known is MYSQL_URI_PARAMS and name in IDLE_PARAMS else _unread(name, known)
            unread.append(shown if raw_value else "a parameter without value")
            continue
        path = known[name]
        if path in given:
            raise _error(f"sink URI gives `{given[path]}` and `{name}`; one of them, once", key=name)
        given[path] = name
        if not raw_value and known is not ICEBERG_URI_PARAMS and name not in EMPTY_COUNTS:
            continue  # as in TiCDC
        settings[path] = UriText(_unquote(raw_value, plus=True, what=f"parameter `{name}`"))
        names[path] = name
    return settings, names, tuple(unread)


def _unread(name: str, known: Mapping[str, Path]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"`{name}`" + (f" (did you mean `{near[0]}`?)" if near else "")


def _unquote(text: str, *, plus: bool, what: str) -> str:
    """Undo percent encoding; ``plus`` stands for a blank in a query, as in Go's ``url.ParseQuery``."""
    if _BAD_ESCAPE.search(text):
        raise _error(f"sink URI: % in the {what} must be followed by two hexadecimal digits; write % as %25")
    try:
        return unquote_plus(text, errors="strict") if plus else unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _error(f"sink URI: the {what} is not UTF-8 after percent decoding") from None
