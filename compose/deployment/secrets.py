"""Make the secrets of ``docker-compose.yml`` once: ``python -P -m compose.deployment.secrets FOLDER``.

A CA, a certificate for each server and capture, passwords, and the files that name them; a folder for each service,
which is mounted as it is. Run as root, each folder is given to the user that its service runs as; otherwise the command
that does it is printed. The CA's key is thrown away: to add a server, make all anew, or bring certificates of your own.
"""

import argparse
import os
import secrets
from pathlib import Path

from compose.stack.secure.certificates import CertificateAuthority, write_private
from schemas.errors import ConfigError

CAPTURES = ("capture-1", "capture-2")
SERVERS = ("kafka-1", "kafka-2", "kafka-3", "zookeeper-1", "zookeeper-2", "zookeeper-3", "registry-proxy")
KAFKA_ADMIN = "kafka-admin"
KAFKA_USER = ZOOKEEPER_USER = API_USER = "tidebus"
VALID_DAYS = 825
_OWNERS = {"capture": 10001, KAFKA_ADMIN: 10001, "kafka": 1000, "zookeeper": 1000, "registry": 101}
"""User ids that the images run as, as docker-compose.yml says."""


class HostAuthority(CertificateAuthority):
    """The CA of the compose file's hosts."""

    def __init__(self) -> None:
        super().__init__("tidebus-ca", VALID_DAYS)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return certificate and key (PKCS #8) of a host, as PEM."""
        # The last is what Docker's name server makes of the address, by which ZooKeepers know each other.
        hosts = (name, "localhost", f"tidebus-{name}-1.tidebus_tidebus")
        return self.sign(name, hosts, (-1, VALID_DAYS))


def make_secrets(folder: Path) -> None:
    """Write everything below ``folder``, which must not be there yet.

    Raises:
        ConfigError: it is there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise ConfigError("secrets are made once, into a folder that is not there yet", folder=folder) from error
    authority = HostAuthority()
    kafka_password, zookeeper_password, api_password = (secrets.token_urlsafe(32) for _ in range(3))
    for name in SERVERS:
        certificate, key = authority.issue(name)
        _write(folder / name, {"ca.pem": authority.pem, "server.pem": key + certificate})
    user = _settings({"sasl.username": KAFKA_USER, "sasl.password": kafka_password})
    tls = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "cert.pem", "ssl.key.location": "key.pem"}
    for name in CAPTURES:
        certificate, key = authority.issue(name)
        scram = _settings({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"})
        digest = _settings({"digest.username": ZOOKEEPER_USER, "digest.password": zookeeper_password, **tls})
        files = {"ca.pem": authority.pem, "cert.pem": certificate, "key.pem": key}
        # To PD, TiKV, each other and the API's clients; a TiDB with a CA of its own wants that one's here.
        files |= {f"tidb-{file}": content for file, content in files.items()}
        files["kafka.properties"] = scram + user + _settings({"ssl.ca.location": "ca.pem"})
        files["zookeeper.properties"] = digest
        files["schema-registry.properties"] = _settings(tls)
        files["credentials"] = f'[users]\n{API_USER} = "{api_password}"\n'.encode()
        _write(folder / name, files)
    certificate, key = authority.issue(KAFKA_ADMIN)
    servers = ",".join(f"kafka-{number}:9094" for number in (1, 2, 3))
    admin = _settings({"bootstrap.servers": servers, "security.protocol": "SSL", **_inside("/run/tidebus", tls)})
    files = {"ca.pem": authority.pem, "cert.pem": certificate, "key.pem": key, "admin.properties": admin}
    _write(folder / KAFKA_ADMIN, {**files, "user.properties": user})


def owners(folder: Path) -> dict[Path, int]:
    """Return the user id that each service's folder must belong to."""
    return {path: _OWNERS.get(path.name) or _OWNERS[path.name.split("-")[0]] for path in sorted(folder.iterdir())}


def _inside(folder: str, settings: dict[str, str]) -> dict[str, str]:
    return {key: f"{folder}/{value}" for key, value in settings.items()}


def _settings(values: dict[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        write_private(folder / name, content)


def main() -> None:
    """Make the secrets and say what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    make_secrets(folder)
    for path, user in owners(folder).items():
        if os.geteuid() == 0:
            for owned in (path, *path.iterdir()):
                os.chown(owned, user, user)
        else:
            print(f"chown -R {user}:{user} {path}")
    print(f"user {API_USER} of the API: its password is in {folder / CAPTURES[0] / 'credentials'}")


if __name__ == "__main__":
    main()
