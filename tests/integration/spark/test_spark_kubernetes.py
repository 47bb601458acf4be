"""Executors' pods as Spark posts them to Kubernetes, by the settings of compose/kubernetes/executors."""

import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose.stack.jars import spark_jars
from sorters.spark.connector import SPARK_JARS_ENV
from tests.support.processes.bus import wait_until
from tests.support.processes.kubernetes_api import KubernetesApi, kubernetes_api
from tests.support.sources.deployment import FOLDER, of_kind

EXECUTORS = FOLDER / "kubernetes" / "executors"
IMAGE, DRIVER = f"registry.invalid/spark@sha256:{'0' * 64}", "tidebus-capture-0"
_SESSION = (
    "import json, sys, time; from pathlib import Path; from sorters.spark.session import create_session; "
    "session = create_session(sys.argv[1], 'tidebus', Path(sys.argv[2]), conf=json.loads(sys.argv[3])); "
    "session.stop(); time.sleep(600)"
)
SECRET = "0123456789abcdef" * 4
PATIENCE_S = 120.0


def documented_settings() -> dict[str, str]:
    """Return the ``--sorter-conf`` that the component's own comment gives captures."""
    text = (EXECUTORS / "kustomization.yaml").read_text()
    return dict(re.findall(r"^#   --sorter-conf=([\w.]+)=(\S+)$", text, re.MULTILINE))


def filled_in(settings: dict[str, str], secret: Path) -> dict[str, str]:
    """Return settings as Kubernetes, and who deploys, would fill them in; ``secret`` stands for what is mounted."""
    values = {
        "HOST/IMAGE@sha256:…": IMAGE,
        "$(POD_NAME)": DRIVER,
        "$(POD_IP)": "127.0.0.1",
        "/etc/tidebus/executors/executor.yaml": str(EXECUTORS / "executor.yaml"),
        "/etc/tidebus/spark/secret": str(secret),
    }
    return {key: values.get(value, value) for key, value in settings.items()}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """Yield an API server to which a session of the sorters' has posted all that it posts at its start."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with kubernetes_api() as api, (folder / "session.log").open("wb") as log:
        api.add("tidebus", "pods", {"metadata": {"name": DRIVER}, "status": {"phase": "Running"}})
        # It waits so long for executors, which never come.
        asked_for = {"spark.executor.instances": "2", "spark.scheduler.maxRegisteredResourcesWaitingTime": "2s"}
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        settings = json.dumps(filled_in(documented_settings(), secret) | asked_for)
        environment = {SPARK_JARS_ENV: ",".join(map(str, spark_jars())), **os.environ, "KUBECONFIG": os.devnull}
        session = subprocess.Popen(
            [sys.executable, "-c", _SESSION, f"k8s://{api.address}", str(folder), settings],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
        try:
            wait_until(
                lambda: len(executors(api)) == 2 or session.poll() is not None, PATIENCE_S, "executors are posted"
            )
            assert session.poll() is None, (folder / "session.log").read_text()[-3000:]
            yield api
        finally:
            os.killpg(session.pid, signal.SIGKILL)
            session.wait()


def executors(api: KubernetesApi) -> list[dict[str, Any]]:
    return [pod for pod in api.posted("pods") if pod["metadata"]["name"] != DRIVER]


def test_executors_pods_are_let_in_by_the_restricted_profile(api: KubernetesApi) -> None:
    """By the fields that Kubernetes' Pod Security Standards name for ``restricted``, which the namespace enforces."""
    for pod in executors(api):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 185
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {*spec} & {"hostNetwork", "hostPID", "hostIPC"} == set()
        assert {kind for volume in spec["volumes"] for kind in volume} == {"name", "configMap", "emptyDir", "secret"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_executors_write_into_volumes_that_go_with_their_pod(api: KubernetesApi) -> None:
    for pod in executors(api):
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        environment = {entry["name"]: entry.get("value") for entry in container["env"]}
        written = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        for path in ("/opt/spark/work-dir", "/tmp", environment["SPARK_LOCAL_DIRS"]):
            assert path in written and "emptyDir" in volumes[mounts[path]["name"]], path


def test_executors_pods_have_no_rights_and_go_with_the_captures_pod(api: KubernetesApi) -> None:
    (driver,) = (pod for pod in api.posted("pods") if pod["metadata"]["name"] == DRIVER)
    accounts = {account["metadata"]["name"] for account in of_kind("ServiceAccount")}
    for pod in executors(api):
        assert pod["spec"]["serviceAccountName"] == "tidebus-executor" in accounts
        assert pod["spec"]["automountServiceAccountToken"] is False
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", DRIVER, driver["metadata"]["uid"])


def test_executors_run_our_code_in_the_named_image_with_bounded_memory(api: KubernetesApi) -> None:
    for pod in executors(api):
        (container,) = pod["spec"]["containers"]
        environment = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert container["image"] == IMAGE and container["args"] == ["executor"]
        assert "tidebus-code.zip" in str(environment["PYTHONPATH"]).split(":")
        memory = {kind: bounds["memory"] for kind, bounds in container["resources"].items()}
        # 1 GiB of heap, and what Python workers take beside it.
        assert memory == {"requests": "3072Mi", "limits": "3072Mi"}


def test_secret_is_in_a_volume_that_executors_and_captures_mount_and_in_nothing_that_pods_show(
    api: KubernetesApi,
) -> None:
    file = Path(documented_settings()["spark.authenticate.secret.file"])
    patch = yaml.safe_load((EXECUTORS / "captures-patch.yaml").read_text())["spec"]["template"]["spec"]
    pods = [pod["spec"] for pod in executors(api)]
    for spec in [patch, *pods]:
        (container,) = spec["containers"]
        (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == str(file.parent))
        (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
        assert volume["secret"] == {"secretName": "tidebus-spark", "defaultMode": 0o440} and mount["readOnly"] is True
    for spec in pods:
        assert spec["securityContext"]["fsGroup"] == 185, "who may read it"
        assert "_SPARK_AUTH_SECRET" not in {entry["name"] for entry in spec["containers"][0]["env"]}
    shown = json.dumps([api.posted("pods"), api.posted("configmaps")])
    assert not [text for text in (SECRET, b64encode(SECRET.encode()).decode()) if text in shown]


def test_policies_select_the_executors_pods(api: KubernetesApi) -> None:
    selectors = [policy["spec"]["podSelector"] for policy in of_kind("NetworkPolicy")]
    (expression,) = (each for selector in selectors for each in selector.get("matchExpressions", []))
    assert expression["operator"] == "In"
    for pod in executors(api):
        assert pod["metadata"]["namespace"] == "tidebus"
        assert pod["metadata"]["labels"][expression["key"]] in expression["values"]


def test_role_allows_all_that_the_driver_asks(api: KubernetesApi) -> None:
    (role,) = of_kind("Role")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert ("pods", "create") in api.verbs
    wait_until(lambda: ("configmaps", "deletecollection") in api.verbs, PATIENCE_S, "the session has ended")
    assert api.verbs <= allowed and api.unknown == []


def test_settings_name_what_the_component_mounts() -> None:
    patch = (EXECUTORS / "captures-patch.yaml").read_text()
    template = documented_settings()["spark.kubernetes.executor.podTemplateFile"]
    assert f"mountPath: {Path(template).parent}" in patch
    assert (EXECUTORS / Path(template).name).exists()
