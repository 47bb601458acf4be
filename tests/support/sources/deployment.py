"""The files of a deployment as the tests read them: compose's variables filled in, pods, commands for the real CLI."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose.cli import run_cli

FOLDER = Path(__file__).parents[3] / "compose"
REQUIRED = {
    "TIDEBUS_PD": "pd:2379",
    "TIDEBUS_SECRETS": "/secrets",
    "TIDEBUS_IMAGE": "host/tidebus@sha256:" + "0" * 64,
    "KAFKA_IMAGE": "apache/kafka@sha256:" + "1" * 64,
    "ZOOKEEPER_IMAGE": "zookeeper@sha256:" + "2" * 64,
    "REGISTRY_IMAGE": "apicurio/apicurio-registry-mem@sha256:" + "3" * 64,
    "PROXY_IMAGE": "nginxinc/nginx-unprivileged@sha256:" + "4" * 64,
    "TIDEBUS_REGISTRY_DATA": "/registry",
}
"""What users must set; whatever else has no default fails the tests."""
IN_CONTAINER = "/run/tidebus"


@dataclass(frozen=True)
class Command:
    """A command line of TideBus with its environment."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def value(self, option: str) -> str | None:
        """Return an option's value, from either form; None: it is not given."""
        for at, word in enumerate(self.arguments):
            if word == option:
                return self.arguments[at + 1]
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
        return None


def filled(text: str) -> str:
    """Fill in compose's variables."""
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: REQUIRED[match[1]], text)
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: match[2], text)


def services() -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml with their anchors resolved."""
    loaded: dict[str, Any] = yaml.safe_load(filled((FOLDER / "docker-compose.yml").read_text()))
    named: dict[str, dict[str, Any]] = loaded["services"]
    return named


def compose_captures() -> dict[str, Command]:
    """Return the captures' commands."""
    return {
        name: Command(service["command"], service["environment"])
        for name, service in services().items()
        if name.startswith("capture")
    }


def kubernetes() -> list[dict[str, Any]]:
    """Return all objects of compose/kubernetes, whichever file they stand in."""
    files = sorted((FOLDER / "kubernetes").rglob("*.yaml"))
    return [loaded for file in files for loaded in yaml.safe_load_all(file.read_text()) if loaded is not None]


def of_kind(kind: str) -> list[dict[str, Any]]:
    """Return the objects of one kind that are whole, not patches."""
    patches = {"tidebus-capture"} if kind == "StatefulSet" else set()
    objects = [manifest for manifest in kubernetes() if manifest.get("kind") == kind]
    return [
        manifest
        for manifest in objects
        if manifest["metadata"]["name"] not in patches or "replicas" in manifest["spec"]
    ]


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a pod's containers, those that run first too."""
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def kubernetes_capture() -> Command:
    """Return the capture's command, for the pod ``tidebus-capture-0``."""
    (capture,) = of_kind("StatefulSet")
    (container,) = capture["spec"]["template"]["spec"]["containers"]
    (addresses,) = of_kind("ConfigMap")
    own = {each["name"]: in_pod(each["value"]) for each in container["env"] if "value" in each}
    return Command([in_pod(word) for word in container["args"]], addresses["data"] | own)


def in_pod(text: str) -> str:
    """Return what Kubernetes makes of a text in the pod ``tidebus-capture-0``."""
    return text.replace("$(POD_NAME)", "tidebus-capture-0")


def run_capture_command(command: Command, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a capture's command by the real command line up to where it would start; return its options.

    ``secrets`` stands for the folder that is mounted, with files of the same names.
    """
    started: list[Any] = []
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value.replace(IN_CONTAINER, str(secrets)))
    monkeypatch.setattr("compose.capture.process.run_capture", started.append)
    monkeypatch.setattr("compose.logs.start_logging", lambda **_: None)
    assert run_cli([word.replace(IN_CONTAINER, str(secrets)) for word in command.arguments]) in (0, None)
    (options,) = started
    return options
