"""How a ZooKeeper ensemble is reached: its servers, how we show who we are, and who may read what we write."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from kazoo.client import KazooClient, TransactionRequest
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from edges.properties import KnownKeys, read_properties
from edges.tls_files import check_tls_files
from edges.zookeeper.client import ZooKeeperClient
from schemas.errors import ConfigError

_SERVERS, _USER, _PASSWORD = "servers", "digest.username", "digest.password"
ZOOKEEPER_KEYS: Final = KnownKeys(
    option="--zookeeper-config",
    allowed=frozenset(
        {
            _SERVERS,
            _USER,
            _PASSWORD,
            "acl",
            "ssl.ca.location",
            "ssl.certificate.location",
            "ssl.key.location",
            "ssl.key.password",
            "ssl.endpoint.identification.algorithm",
        }
    ),
    secret=frozenset({_PASSWORD, "ssl.key.password"}),
    paths=frozenset({"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}),
    refused={
        "sasl.mechanism": "SASL is not supported; digest.username and digest.password are",
        "session.timeout.ms": "TideBus sets it itself, for its promise hangs on it",
    },
)


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """Plain data; no repr shows more than the servers. Made by :meth:`read` from the command line.

    With a user or a certificate all nodes are made for their creator alone: who comes without neither reads nor writes
    them. So all parts of a cluster use the same user, or certificates of the same subject.
    """

    servers: str
    """``host:port``, several by comma."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    """Of :attr:`user`, for ZooKeeper's scheme ``digest``."""
    tls: bool = False
    ca_path: str = field(default="", repr=False)
    """PEM of the servers' CA."""
    cert_path: str = field(default="", repr=False)
    key_path: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    open_acl: bool = False
    """Let everybody read and write the nodes, as without a user; for a cluster that is being moved to a user."""
    config_file: str = ""
    """Where :meth:`read` has found it, for child processes."""

    @classmethod
    def read(cls, servers: str, config_file: Path | None = None) -> Self:
        """Return the access that ``--zookeeper`` and ``--zookeeper-config`` name; ``servers`` of the file goes first.

        Raises:
            ConfigError: the file is refused, its settings do not fit each other, or no server is named.
        """
        if config_file is None:
            return cls(servers)
        given = read_properties(config_file, ZOOKEEPER_KEYS)
        _check(given, str(config_file))
        servers = given.get(_SERVERS, servers)
        if not servers:
            raise ConfigError("no ZooKeeper is named; give --zookeeper, or servers in --zookeeper-config")
        return cls(
            servers,
            user=given.get(_USER, ""),
            password=given.get(_PASSWORD, ""),
            tls="ssl.ca.location" in given,
            ca_path=given.get("ssl.ca.location", ""),
            cert_path=given.get("ssl.certificate.location", ""),
            key_path=given.get("ssl.key.location", ""),
            key_password=given.get("ssl.key.password", ""),
            check_hostname=given.get("ssl.endpoint.identification.algorithm", "https") == "https",
            open_acl=given.get("acl") == "open",
            config_file=str(config_file.resolve()),
        )

    @property
    def acl(self) -> list[ACL]:
        """Who may read and write the nodes that we make."""
        known = bool(self.user or self.cert_path) and not self.open_acl
        return list(CREATOR_ALL_ACL if known else OPEN_ACL_UNSAFE)

    def client(
        self, timeout_s: float, handler: object = None, client_id: tuple[int, bytes] | None = None
    ) -> ZooKeeperClient:
        """Return a client that is not started; ``timeout_s`` of its session is what the servers are asked for.
        ``client_id``: id and password of a session that it is to go on with.

        Raises:
            ConfigError: a file of TLS cannot be used; kazoo would try it for ever, and say that no server answers.
        """
        if self.tls:
            check_tls_files(self.ca_path, self.cert_path, self.key_path, self.key_password)
        return _Client(
            hosts=self.servers,
            timeout=timeout_s,
            handler=handler,
            client_id=client_id,
            default_acl=self.acl,
            auth_data=[("digest", f"{self.user}:{self.password}")] if self.user else None,
            use_ssl=self.tls,
            ca=self.ca_path or None,
            certfile=self.cert_path or None,
            keyfile=self.key_path or None,
            keyfile_password=self.key_password or None,
            verify_certs=True,
            check_hostname=self.check_hostname,
        )

    def arguments(self) -> list[str]:
        """Return the options that give a child process the same access: no secret is among them."""
        named = ["--zookeeper", self.servers] if self.servers else []
        return [*named, "--zookeeper-config", self.config_file] if self.config_file else named

    def __bool__(self) -> bool:
        return bool(self.servers)

    def __str__(self) -> str:
        return self.servers


class _Client(KazooClient):  # type: ignore[misc] # kazoo has no types
    """kazoo's, but that nodes made in a transaction have the default ACL too: kazoo's own leaves them open to all."""

    def transaction(self) -> "_Transaction":
        return _Transaction(self)


class _Transaction(TransactionRequest):  # type: ignore[misc] # kazoo has no types
    def create(
        self, path: str, value: bytes = b"", acl: object = None, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        super().create(path, value, acl or self.client.default_acl, ephemeral, sequence)


def _check(given: dict[str, str], file: str) -> None:
    def refusal(message: str, key: str) -> ConfigError:
        return ConfigError(message, key=key, file=file)

    for key, value in given.items():
        if not value:
            raise refusal("setting has no value", key)
        if key.startswith("ssl.") and "ssl.ca.location" not in given:
            raise refusal("TLS needs the CA of the servers, and is off without it", "ssl.ca.location")
    for pair in ((_USER, _PASSWORD), ("ssl.certificate.location", "ssl.key.location")):
        if (pair[0] in given) != (pair[1] in given):
            raise refusal("these settings are given together", pair[1] if pair[0] in given else pair[0])
    if ":" in given.get(_USER, ""):
        raise refusal("a user's name has no ':'", _USER)
    for key, allowed in (("acl", ("creator", "open")), ("ssl.endpoint.identification.algorithm", ("https", "none"))):
        if given.get(key, allowed[0]) not in allowed:
            raise ConfigError("setting has no such value", key=key, file=file, allowed=", ".join(allowed))
    if given.get("acl") == "creator" and _USER not in given and "ssl.certificate.location" not in given:
        raise refusal("nodes can be their creator's alone only where there is a user or a certificate", "acl")
