"""The secrets of docker-compose.yml: made once, for their owners alone, and understood by what reads them."""

import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AclOperation
from cryptography import x509

from compose.deployment import kafka_user
from compose.deployment.secrets import CAPTURES, SERVERS, make_secrets, owners
from consumers.control.api.access.credentials import read_credentials
from edges.kafka.access import KafkaAccess
from edges.kafka.settings import KAFKA_KEYS
from edges.properties import read_properties
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZOOKEEPER_KEYS, ZooKeeperAccess
from producers.tls import Channels, TlsSettings
from schemas.errors import ConfigError
from tests.support.sources.deployment import compose_captures, services


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "secrets"
    make_secrets(folder)
    return folder


def test_secrets_are_their_owners_alone_and_belong_to_whom_the_service_runs_as(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for name, service in services().items():
        for mount in service["volumes"]:
            if mount.startswith("/secrets/"):
                path = folder / mount.split(":")[0].rsplit("/", 1)[1]
                assert owners(folder)[path] == int(service["user"].split(":")[0]), name


def test_secrets_are_never_written_over(folder: Path) -> None:
    before = (folder / "capture-1" / "kafka.properties").read_bytes()
    with pytest.raises(ConfigError, match="made once"):
        make_secrets(folder)
    assert (folder / "capture-1" / "kafka.properties").read_bytes() == before


def test_certificates_are_the_cas_and_name_their_service(folder: Path) -> None:
    for name, file in [*((name, "server.pem") for name in SERVERS), *((name, "cert.pem") for name in CAPTURES)]:
        authority = x509.load_pem_x509_certificate((folder / name / "ca.pem").read_bytes())
        certificate = x509.load_pem_x509_certificate((folder / name / file).read_bytes())
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert name in names.get_values_for_type(x509.DNSName)
    assert not any(b"PRIVATE KEY" in file.read_bytes() for file in folder.rglob("ca.pem"))


@pytest.mark.parametrize("name", CAPTURES)
def test_commands_in_a_captures_container_ask_it_by_a_name_of_its_certificate(name: str, folder: Path) -> None:
    environment = compose_captures()[name].environment
    server, home = urlsplit(environment["TIDEBUS_SERVER"]), folder / name
    certificate = x509.load_pem_x509_certificate((home / "tidb-cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert server.scheme == "https" and server.hostname in names.get_values_for_type(x509.DNSName)
    assert read_credentials(home / Path(environment["TIDEBUS_CREDENTIALS"]).name).users


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_files_are_understood_by_what_reads_them(folder: Path, name: str) -> None:
    home = folder / name
    kafka = KafkaAccess.read("kafka-1:9093", home / "kafka.properties")
    assert kafka.servers == "kafka-1:9093"
    zookeeper = ZooKeeperAccess.read("zookeeper-1:2281", home / "zookeeper.properties")
    assert (zookeeper.user, zookeeper.tls, zookeeper.cert_path) == ("tidebus", True, str(home / "cert.pem"))
    registry = RegistryAccess.read("https://registry-proxy:8443/apis", home / "schema-registry.properties")
    assert dict(registry.settings)["ssl.key.location"] == str(home / "key.pem")
    assert list(read_credentials(home / "credentials").users) == ["tidebus"]
    ca, cert, key = (str(home / f"tidb-{file}.pem") for file in ("ca", "cert", "key"))
    Channels(TlsSettings(ca_path=ca, cert_path=cert, key_path=key))


def test_all_parts_of_the_cluster_have_the_same_passwords_and_no_two_things_share_one(folder: Path) -> None:
    settings = [
        read_properties(folder / name / "kafka.properties", KAFKA_KEYS)
        | read_properties(folder / name / "zookeeper.properties", ZOOKEEPER_KEYS)
        for name in CAPTURES
    ]
    user = kafka_user.read_settings(folder / "kafka-admin" / "user.properties", "--user")
    assert {capture["sasl.password"] for capture in settings} == {user["sasl.password"]}
    assert len({capture["digest.password"] for capture in settings}) == 1
    users = read_credentials(folder / "capture-1" / "credentials").users
    assert len({user["sasl.password"], settings[0]["digest.password"], users["tidebus"]}) == 3


def test_commands_of_the_file_run_as_processes(tmp_path: Path) -> None:
    service = services()["kafka-user"]
    assert service["entrypoint"][:2] == ["python", "-m"]
    for module, words in (
        (service["entrypoint"][2], ["--help"]),
        ("compose.deployment.secrets", [str(tmp_path / "made")]),
    ):
        ran = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    home = tmp_path / "made" / "kafka-admin"
    mounted = [word.replace("/run/tidebus", str(home)) for word in service["command"]]
    assert mounted[::2] == ["--admin", "--user"] and all(Path(word).is_file() for word in mounted[1::2])
    admin = kafka_user.read_settings(home / "admin.properties", "--admin")
    assert all((home / Path(value).name).is_file() for key, value in admin.items() if key.endswith(".location"))


def test_captures_user_may_touch_nothing_but_the_buss_own() -> None:
    bindings = kafka_user.bindings("tidebus")
    assert {(binding.name, binding.principal) for binding in bindings} == {
        ("tidebus.", "User:tidebus"),
        ("tidebus.prologue.", "User:tidebus"),
        ("tidebus-", "User:tidebus"),
    }
    deletes = [binding.name for binding in bindings if binding.operation == AclOperation.DELETE]
    assert deletes == ["tidebus.prologue."], "whatever a prologue has left behind"


def test_compose_names_of_services_are_the_ones_with_secrets(folder: Path) -> None:
    mounted = {mount.split(":")[0] for service in services().values() for mount in service["volumes"]}
    assert {f"/secrets/{path.name}" for path in folder.iterdir()} <= mounted
