"""The image and docker-compose.yml: parsed, their commands run by the real command line, held to what is promised."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose.deployment.secrets import make_secrets
from compose.stack import jars
from tests.support.sources.deployment import FOLDER, compose_captures, run_capture_command, services

ROOT = FOLDER.parent
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
RUNTIME_LOCK, BUILD_LOCK = (FOLDER / name for name in ("requirements.lock", "requirements-build.lock"))
YAML_FILES = sorted([*FOLDER.rglob("*.yml"), *FOLDER.rglob("*.yaml")])
ONE_SHOT = {"kafka-user"}
SERVICES = services()


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock.read_text(), re.MULTILINE))


def properties(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "secrets"
    make_secrets(folder)
    return folder


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_deployment_file_is_yaml_and_takes_nothing_by_a_moving_tag(file: Path) -> None:
    assert [loaded for loaded in yaml.safe_load_all(file.read_text()) if loaded]
    assert ":latest" not in file.read_text()


# The image


def test_image_has_a_base_that_must_be_named_by_its_digest() -> None:
    assert re.findall(r"^ARG (.*)$", DOCKERFILE, re.MULTILINE) == ["BASE", "BASE"], "no default"
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert 'case "${BASE}" in *@sha256:*) ;; *)' in DOCKERFILE


def test_image_runs_as_nobody_special_and_holds_only_what_is_named() -> None:
    users = re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)
    assert users == ["10001:10001"], "by number: Kubernetes cannot tell that a name is not root"
    assert DOCKERFILE.rindex("\nUSER ") > DOCKERFILE.rindex("\nRUN "), "nothing is done as another afterwards"
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    others = {"pyproject.toml", "README.md", "LICENSE", "compose/requirements.lock", "compose/requirements-build.lock"}
    assert {word for line in copied for word in line.split()} == {*packages, *others}
    assert not re.search(r"^ADD |^ENV .*(PASSWORD|SECRET|TOKEN)", DOCKERFILE, re.MULTILINE)


def test_image_is_built_without_secrets_that_lie_beside_its_files() -> None:
    assert {"**/.env", "**/*.pem", "**/secrets"} <= set((ROOT / ".dockerignore").read_text().splitlines())
    assert {"/compose/.env", "/compose/secrets/"} <= set((ROOT / ".gitignore").read_text().splitlines())


def test_image_installs_no_package_that_is_not_pinned_by_hash() -> None:
    commands = DOCKERFILE.replace("\\\n", " ").split("\n")
    installs = [part for line in commands for part in line.split("&&") if re.search(r"\bpip .*(install|wheel) ", part)]
    assert len(installs) == 4
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install, install
        assert "--require-hashes" not in install or "--only-binary :all:" in install, install


def test_runtime_lock_has_the_runtime_and_the_versions_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime, tested = pins(RUNTIME_LOCK), pins(ROOT / "requirements.lock")
    wanted = [*project["dependencies"], *project["optional-dependencies"]["s3"]]
    assert {re.split(r"[\[<>=!~ ]", name)[0].lower() for name in wanted} <= runtime.keys()
    assert {name: tested.get(name) for name in runtime} == runtime
    assert not runtime.keys() & {"pytest", "hypothesis", "mypy", "ruff", "moto", "flask", "matplotlib", "grpcio-tools"}
    assert {"hatchling", "setuptools", "wheel", "pip"} <= pins(BUILD_LOCK).keys()
    for lock in (RUNTIME_LOCK, BUILD_LOCK):
        text = lock.read_text()
        assert all("--hash=sha256:" in pinned for pinned in re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:])
        assert "://" not in text and "index-url" not in text


def test_runtime_lock_has_every_package_that_the_code_imports() -> None:
    providers = packages_distributions()
    imported = {
        match
        for package in ("tidebus", "schemas", "edges", "producers", "sorters", "consumers", "compose")
        for file in (ROOT / package).rglob("*.py")
        if file.parent.name != "proto"  # which developers generate anew
        for match in re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
    }
    locked = pins(RUNTIME_LOCK).keys() | {"tidebus"}
    missing = {
        module: names
        for module in imported
        if (names := {name.lower().replace("_", "-") for name in providers.get(module, [])}) and not names & locked
    }
    assert not missing


# docker-compose.yml


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_an_image_by_digest_that_is_not_root_and_writes_only_where_it_must(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+@sha256:[0-9a-f]{64}", service["image"])
    assert "build" not in service and "privileged" not in service
    assert int(service["user"].split(":")[0]) > 0
    assert service["read_only"] is True
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert name in ONE_SHOT or service["healthcheck"]["test"][0] == "CMD"
    assert not service.get("ports"), "nothing is published beyond its networks"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_images_are_variables_that_must_be_set() -> None:
    text = (FOLDER / "docker-compose.yml").read_text()
    images = re.findall(r"^\s+image: (.*)$", text, re.MULTILINE)
    assert len(images) >= 5 and all(re.fullmatch(r"\$\{\w+_IMAGE:\?.*@sha256:.*\}", image) for image in images)


def test_versions_that_users_are_told_are_the_ones_that_are_tested() -> None:
    text = (FOLDER / "docker-compose.yml").read_text()
    assert f"apache/kafka {jars.KAFKA_VERSION}," in text
    assert f"apicurio-registry-mem {jars.REGISTRY_VERSION}," in text


@pytest.mark.parametrize("name", SERVICES)
def test_service_mounts_what_is_there(name: str, secrets: Path) -> None:
    volumes = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())["volumes"]
    for mount in SERVICES[name]["volumes"]:
        source, target, *mode = mount.split(":")
        if source.startswith("./"):
            assert (FOLDER / source).is_file() and mode == ["ro"], mount
        elif source.startswith("/secrets/"):
            assert (secrets / Path(source).name).is_dir() and mode == ["ro"], mount
        else:
            assert source in volumes or source == "/registry", mount
        assert target.startswith("/")


@pytest.mark.parametrize("name", ["capture-1", "capture-2"])
def test_captures_command_starts_with_the_addresses_and_secrets_of_the_file(
    name: str, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = run_capture_command(compose_captures()[name], secrets / name, monkeypatch)
    assert (options.pd, options.upstream) == ("pd:2379", "default")
    assert options.kafka.servers == "kafka-1:9093,kafka-2:9093,kafka-3:9093"
    assert options.zookeeper.servers == "zookeeper-1:2281,zookeeper-2:2281,zookeeper-3:2281"
    assert options.schema_registry.url == "https://registry-proxy:8443/apis/ccompat/v7"
    accesses = {"kafka": options.kafka, "zookeeper": options.zookeeper, "schema-registry": options.schema_registry}
    for file, access in accesses.items():
        assert access.config_file == str(secrets / name / f"{file}.properties")
    assert (options.addr, options.advertise_addr) == ("0.0.0.0:8300", f"{name}:8300")
    assert (options.peer_addr, options.advertise_peer_addr) == ("0.0.0.0:8301", f"{name}:8301")
    assert options.puller.tls.cert_path == str(secrets / name / "tidb-cert.pem")
    assert options.credentials == secrets / name / "credentials"
    assert (options.sorters.master, options.sorters.data_dir) == ("local[1]", Path("/var/lib/tidebus"))


@pytest.mark.parametrize("name", ["capture-1", "capture-2"])
def test_capture_that_listens_to_all_lets_in_users_alone_by_tls(name: str) -> None:
    command = compose_captures()[name]
    assert command.value("--addr") == "0.0.0.0:8300" and command.value("--client-credentials")
    assert {"TIDEBUS_CA_PATH", "TIDEBUS_CERT_PATH", "TIDEBUS_KEY_PATH"} <= command.environment.keys()


# Its servers


def test_kafka_keeps_three_copies_and_lets_in_nobody_without_tls_and_a_name() -> None:
    files = [FOLDER / "deployment" / "kafka" / f"kafka-{number}.properties" for number in (1, 2, 3)]
    for number, file in enumerate(files, 1):
        settings = properties(file)
        assert settings["node.id"] == str(number)
        assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == ("3", "2")
        assert settings["unclean.leader.election.enable"] == settings["allow.everyone.if.no.acl.found"] == "false"
        protocols = dict(pair.split(":") for pair in settings["listener.security.protocol.map"].split(","))
        assert protocols == {"CLIENT": "SASL_SSL", "INTERNAL": "SSL", "CONTROLLER": "SSL"}
        asked = [settings[f"listener.name.{listener}.ssl.client.auth"] for listener in ("internal", "controller")]
        assert asked == ["required", "required"]
        assert "User:ANONYMOUS" not in settings["super.users"] and settings["authorizer.class.name"]
        assert f"CLIENT://kafka-{number}:9093" in settings["advertised.listeners"]
    alike = {
        re.sub(r"(kafka-|controller |node\.id=)[123](?=[:\n ]|$)", r"\1N", file.read_text().split("super.users")[0])
        for file in files
    }
    assert len({re.sub(r"controller\.quorum\.voters=.*", "", text) for text in alike}) == 1


def test_zookeeper_has_no_open_port_and_asks_for_a_user() -> None:
    settings = properties(FOLDER / "deployment" / "zoo.cfg")
    assert "clientPort" not in settings and settings["secureClientPort"] == "2281"
    assert settings["ssl.clientAuth"] == settings["ssl.quorum.clientAuth"] == "need"
    assert (settings["sslQuorum"], settings["enforce.auth.enabled"]) == ("true", "true")
    assert settings["enforce.auth.schemes"] == "digest"
    assert sum(key.startswith("server.") for key in settings) == 3


def test_registry_remembers_its_schemas_and_is_reached_through_its_proxy_alone() -> None:
    registry = SERVICES["registry"]
    assert registry["environment"]["QUARKUS_DATASOURCE_JDBC_URL"] == "jdbc:h2:file:/data/registry"
    assert any(mount.endswith(":/data") for mount in registry["volumes"])
    assert registry["networks"] == ["registry"]
    assert {name for name, service in SERVICES.items() if "registry" in service["networks"]} == {
        "registry",
        "registry-proxy",
    }
    proxy = (FOLDER / "deployment" / "registry-proxy.conf").read_text()
    assert "ssl_verify_client on;" in proxy and re.findall(r"listen (.*);", proxy) == ["8443 ssl"]
