"""What a locked-down stack keeps in its folder: a CA, a certificate for each server, and a config file for each role.

A role is what one kind of process may do. Who may do what in Kafka stands in :mod:`compose.stack.secure.acls`.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from compose.stack.secure.certificates import Authority, Pair, write_private

ROLES: Final = ("capture", "sorter", "processor", "sink", "operator")
"""Users of Kafka. ``sink`` is whom a changefeed's sink URI names, ``operator`` a person with the command line."""
MECHANISM: Final = "SCRAM-SHA-512"
ZOOKEEPER_USER: Final = "tidebus"
REGISTRY_USER: Final = "tidebus"
SERVERS: Final = ("kafka", "zookeeper", "registry", "region-server")


@dataclass(frozen=True, slots=True)
class StackSecrets:
    """Paths and passwords of one locked-down stack; no repr shows a password."""

    folder: Path
    ca_path: str
    servers: dict[str, Pair]
    """A certificate for each of :data:`SERVERS`."""
    captures: Pair
    """What captures show to PD, TiKV, each other and the clients of their API."""
    operator: Pair
    """What a person shows to the API, and the stack to its Kafka."""
    _passwords: dict[str, str]

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Make everything anew; what the folder held is written over."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        authority = Authority(folder)
        passwords = {role: secrets.token_urlsafe(24) for role in (*ROLES, "zookeeper", "registry", "settings")}
        return cls(
            folder,
            authority.path,
            {name: authority.issue(name) for name in SERVERS},
            authority.issue("tidebus-capture"),
            authority.issue("tidebus-operator"),
            passwords,
        )

    def __repr__(self) -> str:
        return f"StackSecrets({self.folder})"

    def password(self, role: str) -> str:
        """Return a password: of a role in Kafka, of ``zookeeper``, ``registry`` or ``settings``."""
        return self._passwords[role]

    def java_key_store(self, name: str) -> Path:
        """Write key and certificate of a server into one PEM file, as Java's servers want them."""
        pair = self.servers[name]
        path = self.folder / f"{name}-key-store.pem"
        write_private(path, Path(pair.key).read_bytes() + Path(pair.cert).read_bytes())
        return path

    def kafka_config(self, role: str) -> Path:
        """Write the ``--kafka-config`` of a role."""
        return self._config(
            f"kafka-{role}.properties",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                "sasl.username": role,
                "sasl.password": self.password(role),
                "ssl.ca.location": self.ca_path,
            },
        )

    def sink_parameters(self) -> dict[str, str]:
        """Return the parameters of a sink URI that let a sorter write users' topics."""
        return {
            "enable-tls": "true",
            "ca": self.ca_path,
            "sasl-mechanism": MECHANISM,
            "sasl-user": "sink",
            "sasl-password": self.password("sink"),
        }

    def secret_key(self) -> Path:
        """Write the ``--secret-key-file``: a key for the changefeeds' settings in ZooKeeper."""
        path = self.folder / "secret-key"
        write_private(path, f"{self.password('settings')}\n".encode())
        return path

    def zookeeper_config(self) -> Path:
        """Write the ``--zookeeper-config``: one user for all, since nodes are their creator's alone."""
        return self._config(
            "zookeeper.properties",
            {
                "digest.username": ZOOKEEPER_USER,
                "digest.password": self.password("zookeeper"),
                "ssl.ca.location": self.ca_path,
                "ssl.certificate.location": self.captures.cert,
                "ssl.key.location": self.captures.key,
            },
        )

    def registry_config(self) -> Path:
        """Write the ``--schema-registry-config``."""
        return self._config(
            "schema-registry.properties",
            {
                "basic.auth.user.info": f"{REGISTRY_USER}:{self.password('registry')}",
                "ssl.ca.location": self.ca_path,
            },
        )

    def _config(self, name: str, settings: dict[str, str]) -> Path:
        path = self.folder / name
        write_private(path, "".join(f"{key}={value}\n" for key, value in settings.items()).encode())
        return path
