"""Executors' pods as Spark posts them to Kubernetes, by the settings of compose/kubernetes/executors."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose.stack.jars import spark_jars
from sorters.spark.session import SPARK_JARS_ENV
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
PATIENCE_S = 120.0


def documented_settings() -> dict[str, str]:
    """Return the ``--sorter-conf`` that the component's own comment gives captures."""
    text = (EXECUTORS / "kustomization.yaml").read_text()
    return dict(re.findall(r"^#   --sorter-conf=([\w.]+)=(\S+)$", text, re.MULTILINE))


def filled_in(settings: dict[str, str]) -> dict[str, str]:
    """Return settings as Kubernetes, and who deploys, would fill them in."""
    values = {
        "HOST/IMAGE@sha256:…": IMAGE,
        "$(POD_NAME)": DRIVER,
        "$(POD_IP)": "127.0.0.1",
        "/etc/tidebus/executors/executor.yaml": str(EXECUTORS / "executor.yaml"),
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
        settings = json.dumps(filled_in(documented_settings()) | asked_for)
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
        assert {kind for volume in spec["volumes"] for kind in volume} <= {"name", "configMap", "emptyDir"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


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


def test_session_secret_is_in_executors_environment_alone(api: KubernetesApi) -> None:
    for pod in executors(api):
        (container,) = pod["spec"]["containers"]
        (secret,) = (entry["value"] for entry in container["env"] if entry["name"] == "_SPARK_AUTH_SECRET")
        assert len(secret) >= 32
        others = [entry for entry in container["env"] if entry["name"] != "_SPARK_AUTH_SECRET"]
        assert secret not in json.dumps([others, container["args"], pod["metadata"], api.posted("configmaps")])


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
