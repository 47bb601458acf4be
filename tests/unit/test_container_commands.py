"""The services of docker-compose.yml: their very commands, with the environment that they are given, are understood.

There is no container engine where the tests run, so the file is read here as far as it concerns TideBus: the anchor's
environment, with ``${NAME:-default}`` and ``${NAME:?what}`` as Compose fills them in, and each service's command.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from compose.cli import run_cli

TEXT = (Path(__file__).parents[2] / "compose" / "docker-compose.yml").read_text()
GIVEN = {"TIDEBUS_PD": "pd:2379"}


def filled(text: str) -> str:
    """Fill in variables; one that must be set is in GIVEN, or this is no test of what users do."""
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: GIVEN[found[1]], text)
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: found[2], text)


def environment() -> dict[str, str]:
    return dict(re.findall(r"^    (TIDEBUS_\w+): (.+)$", filled(TEXT), re.MULTILINE))


def commands() -> dict[str, list[str]]:
    """Return the arguments of each of our services."""
    found = re.findall(r"^  ([\w-]+):\n    <<: \*tidebus\n    command: \[(.+)\]$", filled(TEXT), re.MULTILINE)
    return {name: [word.strip().strip('"') for word in words.split(",")] for name, words in found}


def test_containers_every_service_of_ours_has_a_command() -> None:
    assert list(commands()) == ["capture-1", "capture-2"]
    assert TEXT.count("<<: *tidebus") == 2


@pytest.mark.parametrize("service", ["capture-1", "capture-2"])
def test_containers_each_command_starts_with_the_addresses_of_the_file(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("compose.capture.process.run_capture", started.append)
    assert run_cli(commands()[service]) == 0
    (options,) = started
    assert (options.kafka.servers, options.zookeeper.servers) == ("kafka:9092", "zookeeper:2181")
    assert options.schema_registry.url == "http://registry:8080/apis/ccompat/v7"
    assert (options.pd, options.upstream) == ("pd:2379", "default")
    assert (options.sorters.master, options.sorters.data_dir) == ("local[1]", Path("/var/lib/tidebus"))


@pytest.mark.parametrize(
    "flags", [["--sorter-master", "locl[2]"], ["--sorter-master", "spark://host"], ["--sorter-conf", "spark.cores.max"]]
)
def test_capture_with_a_sorter_setting_that_spark_would_choke_on_is_refused_at_once(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.capture.process.run_capture", lambda _: pytest.fail("it was started"))
    given = ["--pd", "p:1", "--kafka", "k:1", "--zookeeper", "z:1", "--schema-registry", "http://r"]
    assert run_cli(["capture", *given, *flags]) == 2
    assert flags[1] in capsys.readouterr().err
