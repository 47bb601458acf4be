"""The Kubernetes manifests: whole, least rights, and with a command that the real command line takes."""

import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose.cli import run_cli
from compose.deployment.secrets import make_secrets
from consumers.control.api.access.origin import hosts_of
from tests.support.sources.deployment import (
    FOLDER,
    containers,
    kubernetes,
    kubernetes_capture,
    of_kind,
    run_capture_command,
)

KUBERNETES = FOLDER / "kubernetes"
LABELS = {"app.kubernetes.io/name": "tidebus", "app.kubernetes.io/component": "capture"}


def pod_of(kind: str) -> dict[str, Any]:
    (runs,) = of_kind(kind)
    spec: dict[str, Any] = runs["spec"]["template"]["spec"]
    return spec


def pod() -> dict[str, Any]:
    return pod_of("StatefulSet")


@pytest.mark.parametrize(
    "folder", [KUBERNETES, KUBERNETES / "executors", KUBERNETES / "sorters"], ids=lambda path: path.name
)
def test_kustomization_names_every_file_and_none_that_is_missing(folder: Path) -> None:
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text())
    named = {*wanted["resources"], *(patch["path"] for patch in wanted.get("patches", []))}
    named |= {file for generated in wanted.get("configMapGenerator", []) for file in generated["files"]}
    assert named == {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}


def test_objects_have_an_apis_version_a_name_and_one_namespace() -> None:
    for manifest in kubernetes():
        if manifest["kind"] not in ("Kustomization", "Component"):
            assert re.fullmatch(r"([\w.]+/)?v\d\w*", manifest["apiVersion"])
            assert manifest["metadata"]["name"]
            assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "tidebus"


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_every_container_is_nobody_special_and_writes_only_where_it_must(kind: str) -> None:
    pod = pod_of(kind)
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] == security["fsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True and own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    (namespace,) = of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_image_is_one_that_must_be_named_by_its_digest() -> None:
    images = {container["image"] for kind in ("StatefulSet", "Deployment") for container in containers(pod_of(kind))}
    # .invalid exists nowhere (RFC 2606): as it stands, nothing can be pulled.
    assert images == {"registry.invalid/tidebus:0.1.0"}
    assert "set image registry.invalid/tidebus=HOST/tidebus@sha256:" in (KUBERNETES / "kustomization.yaml").read_text()


def test_captures_command_starts_with_the_addresses_and_the_files_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_secrets(tmp_path / "made")
    run, home = tmp_path / "run", tmp_path / "made" / "capture-1"
    mounted: dict[str, dict[str, str]] = {
        "access": {name: name for name in ("ca.pem", "cert.pem", "key.pem", "credentials")}
        | {f"{name}.properties": f"{name}.properties" for name in ("kafka", "zookeeper", "schema-registry")},
        "tls": {"ca.pem": "tidb-ca.pem", "tls.crt": "tidb-cert.pem", "tls.key": "tidb-key.pem"},
    }
    for container in pod()["initContainers"]:  # what install does
        (volume,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/secrets"]
        words = [*container["command"], *container["args"]]
        (target,) = [word.partition("=")[2] for word in words if word.startswith("--target-directory=")]
        assert "--mode=0400" in words
        for file in container["args"]:
            copy = Path(target.replace("/run/tidebus", str(run))) / Path(file).name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(home / mounted[volume].pop(Path(file).name), copy)
            copy.chmod(0o400)
    assert mounted == {"access": {}, "tls": {}}, "each key of the Secrets is copied"
    options = run_capture_command(kubernetes_capture(), run, monkeypatch)
    name = "tidebus-capture-0.tidebus-captures.tidebus.svc.cluster.local"
    assert (options.advertise_addr, options.advertise_peer_addr) == (f"{name}:8300", f"{name}:8301")
    assert options.credentials == run / "credentials"
    assert options.kafka.config_file == str(run / "kafka.properties")
    assert (options.zookeeper.user, options.zookeeper.cert_path) == ("tidebus", str(run / "cert.pem"))
    assert options.puller.tls.key_path == str(run / "tls" / "tls.key")
    files = [path for path in run.rglob("*") if path.is_file()]
    named = {value.replace("/run/tidebus", str(run)) for value in kubernetes_capture().environment.values()}
    assert {value for value in named if value.startswith(str(run))} <= {str(path) for path in files}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o400 for path in files)


def test_capture_that_listens_to_all_lets_in_users_alone_by_tls() -> None:
    command = kubernetes_capture()
    assert command.value("--addr") == "0.0.0.0:8300" and command.value("--client-credentials")
    assert {"TIDEBUS_CA_PATH", "TIDEBUS_CERT_PATH", "TIDEBUS_KEY_PATH"} <= command.environment.keys()


def test_capture_answers_by_every_name_of_its_service_and_asks_itself_by_its_own() -> None:
    command = kubernetes_capture()
    api_hosts = [word.partition("=")[2] for word in command.arguments if word.startswith("--api-host=")]
    advertised = str(command.value("--advertise-addr"))
    hosts = hosts_of([advertised, *api_hosts])
    (service,) = [each for each in of_kind("Service") if each["spec"].get("clusterIP") != "None"]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    short = f"{name}.{namespace}"
    for host in (name, short, f"{short}.svc", f"{short}.svc.cluster.local"):
        assert hosts.allow(f"{host}:8300"), host
    assert not hosts.allow("tidebus.example.com:8300")
    assert command.environment["TIDEBUS_SERVER"] == f"https://{advertised}"
    assert command.environment["TIDEBUS_CREDENTIALS"] == command.value("--client-credentials")


def test_secrets_are_named_and_never_written_down() -> None:
    assert not of_kind("Secret")
    volumes = [volume["secret"] for volume in pod()["volumes"] if "secret" in volume]
    assert [volume["secretName"] for volume in volumes] == ["tidebus-access", "tidebus-tls"]
    # 0440: whoever runs the pod reads them by its group.
    assert {volume["defaultMode"] for volume in volumes} == {0o440}
    (addresses,) = of_kind("ConfigMap")
    assert not [value for value in addresses["data"].values() if "@" in value or "password" in value.lower()]


def test_probes_ask_whether_it_listens_and_whether_it_can_work() -> None:
    (capture,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in capture["ports"]}
    assert ports == {"api": 8300, "peers": 8301}
    assert capture["startupProbe"]["tcpSocket"] == capture["livenessProbe"]["tcpSocket"] == {"port": "api"}
    assert capture["readinessProbe"]["httpGet"] == {"path": "/api/v2/health", "port": "api", "scheme": "HTTPS"}
    stop_s = int(re.sub(r"\D", "", kubernetes_capture().value("--graceful-stop-timeout") or ""))
    assert pod()["terminationGracePeriodSeconds"] > stop_s + 10


def test_everything_that_selects_captures_selects_their_labels() -> None:
    (capture,) = of_kind("StatefulSet")
    (budget,) = of_kind("PodDisruptionBudget")
    assert capture["spec"]["template"]["metadata"]["labels"] == LABELS
    assert capture["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"] == LABELS
    assert budget["spec"]["maxUnavailable"] == 1 < capture["spec"]["replicas"]
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind("Service")}
    assert {name: spec["selector"] for name, spec in services.items()} == dict.fromkeys(services, LABELS)
    assert services[capture["spec"]["serviceName"]]["clusterIP"] == "None"


def test_network_is_closed_but_for_what_is_named() -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}
    assert policies["deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for rule in policies["captures"]["ingress"]:
        assert rule["from"], "never from everywhere"
    assert all(rule.get("to") for rule in policies["captures"]["egress"]), "never to everywhere"


def test_rights_are_those_of_sparks_driver_and_no_more() -> None:
    (role,) = of_kind("Role")
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert resources == {"pods", "configmaps", "persistentvolumeclaims"}, "no secrets, no pods/exec"
    assert not [rule for rule in role["rules"] if "*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])]
    assert not of_kind("ClusterRole") and not of_kind("ClusterRoleBinding")
    accounts = {
        account["metadata"]["name"]: account["automountServiceAccountToken"] for account in of_kind("ServiceAccount")
    }
    assert accounts == {"tidebus-capture": False, "tidebus-executor": False}
    (binding,) = of_kind("RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == [pod()["serviceAccountName"]]
    assert pod()["automountServiceAccountToken"] is False


def test_sorter_services_command_starts_with_the_addresses_and_files_of_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_secrets(tmp_path / "made")
    started: list[Any] = []
    (addresses,) = of_kind("ConfigMap")
    (secrets,), (container,) = pod_of("Deployment")["initContainers"], pod_of("Deployment")["containers"]
    for file in secrets["args"]:
        copy = tmp_path / "run" / Path(file).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(tmp_path / "made" / "capture-1" / copy.name, copy)
        copy.chmod(0o400)
    for name, value in addresses["data"].items():
        monkeypatch.setenv(name, value.replace("/run/tidebus", str(tmp_path / "run")))
    monkeypatch.setattr("sorters.service.service.run_service", started.append)
    monkeypatch.setattr("compose.stack.spark_files.name_spark_files", lambda: None)
    monkeypatch.setattr("compose.logs.start_logging", lambda **_: None)
    assert run_cli([word.replace("$(POD_NAME)", "tidebus-sorters-a") for word in container["args"]]) in (0, None)
    (options,) = started
    assert (options.service, options.memory_bytes_max) == ("tidebus-sorters-a", 4 << 30)
    assert options.kafka.config_file == str(tmp_path / "run" / "kafka.properties")
    assert options.zookeeper.cert_path == str(tmp_path / "run" / "cert.pem")
    assert str(options.data_dir) == "/var/lib/tidebus"


def test_sorter_services_reach_what_captures_write_to_and_nobody_reaches_them() -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}
    (service,) = of_kind("Deployment")
    labels = service["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"]["matchLabels"] == labels != LABELS
    policy = policies["sorters"]
    assert policy["podSelector"]["matchLabels"] == labels and "ingress" not in policy
    assert [way for way in policy["egress"] if way not in policies["captures"]["egress"]] == []
    patch = yaml.safe_load((KUBERNETES / "sorters" / "captures-patch.yaml").read_text())
    (capture,) = patch["spec"]["template"]["spec"]["containers"]
    assert capture["env"] == [{"name": "TIDEBUS_SORTER_MASTER", "value": "none"}]
