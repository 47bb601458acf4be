"""The files that set a machine up agree with each other and name no registry."""

import importlib
import os
import re
import socket
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from compose.ports import free_ports, is_free
from compose.stack import jars, java
from compose.stack.errors import MachineError
from compose.stack.spark_files import name_spark_files

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()


def test_lock_pins_every_direct_dependency_by_hash_and_names_no_registry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"], "hatchling", "editables"]
    pinned = set(re.findall(r"^([a-z0-9-]+)==", LOCK, re.MULTILINE))
    assert {re.split(r"[\[<>=!~ ]", name)[0].lower() for name in wanted} <= pinned
    assert LOCK.count("==") <= LOCK.count("--hash=sha256:")
    assert "://" not in LOCK and "index-url" not in LOCK


def test_spark_connector_has_the_version_of_the_installed_pyspark() -> None:
    assert version("pyspark") == jars.SPARK_VERSION
    assert f"\npyspark=={jars.SPARK_VERSION} " in LOCK


def test_ivy_file_has_a_place_for_every_version() -> None:
    text = (ROOT / "compose" / "stack" / "ivy-stack.xml").read_text()
    assert set(re.findall(r"@(\w+)@", text)) == {"iceberg", "kafka", "registry", "spark"}


def test_ci_calls_the_readmes_test_command() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test"
    assert re.search(r"^    make test ", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_packages_resolve_inside_the_project() -> None:
    for package in ("tidebus", "schemas", "edges", "producers", "sorters", "consumers", "compose"):
        origin = importlib.import_module(package).__file__
        assert origin is not None
        assert Path(origin).is_relative_to(ROOT)


def test_find_java_when_there_is_none_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MachineError, match="no java found: install Java 17 or newer"):
        java.find_java()


@pytest.mark.parametrize(
    ("said", "fine"),
    [
        ('openjdk version "11.0.2"', False),
        ('java version "1.8.0_9"', False),
        ('openjdk version "17.0.15" 2025', True),
        ('openjdk version "21-ea"', True),
    ],
)
def test_find_java_accepts_17_and_newer(said: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if fine:
        assert java.find_java() == program
    else:
        with pytest.raises(MachineError, match="17 or newer is needed"):
            java.find_java()


def test_java_home_that_is_gone_is_not_handed_to_sparks_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    name_spark_files()
    assert "JAVA_HOME" not in os.environ
    assert "JAVA_HOME names no Java" in caplog.text


def test_ports_that_another_process_was_given_are_not_given_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server binds its port seconds later; both processes begin to look at the same one here."""
    program = "from compose.ports import free_ports; print(*free_ports(3), flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        given = {int(port) for port in other.stdout.readline().split()}
        monkeypatch.setattr("os.getpid", lambda: other.pid)
        assert len(given) == 3 and given.isdisjoint(free_ports(3))
        other.communicate("\n")


def test_free_ports_are_different_free_and_below_the_ephemeral_range() -> None:
    first, second = free_ports(5), free_ports(5)
    assert len({*first, *second}) == 10
    assert all(is_free(port) and port < 32_768 for port in (*first, *second))


def test_kept_ports_are_the_former_ones_unless_somebody_has_taken_one(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    program = f"""from pathlib import Path; from compose.ports import kept_ports
print(*kept_ports(Path({str(file)!r}), ["kafka", "zookeeper"]).values())"""

    def ports() -> list[int]:
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return [int(port) for port in ran.stdout.split()]

    kafka, zookeeper = ports()
    assert ports() == [kafka, zookeeper]
    with socket.create_server(("127.0.0.1", kafka)):
        other, again = ports()
        assert other not in (kafka, zookeeper) and again == zookeeper
    for damaged in ("", "[1]", '{"kafka": "80", "zookeeper": 80}'):
        file.write_text(damaged)
        assert len({*ports()}) == 2 and 80 not in ports()


def test_archive_is_unpacked_by_a_python_that_knows_no_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jar").write_text("bytes")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "jar", "home/jar")
    unpacked = tarfile.TarFile.extractall

    def without_filters(self: tarfile.TarFile, path: Path) -> None:  # as 3.11.2 has it, which is Debian 12's
        unpacked(self, path)

    monkeypatch.setattr(tarfile.TarFile, "extractall", without_filters)
    monkeypatch.delattr(tarfile, "data_filter")
    jars.unpack(tmp_path / "packed.tar.gz", tmp_path / "into")
    assert (tmp_path / "into" / "home" / "jar").read_text() == "bytes"


def test_archive_whose_names_leave_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jar").touch()
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "jar", "../outside")
    with pytest.raises(tarfile.FilterError):
        jars.unpack(tmp_path / "packed.tar.gz", tmp_path / "into")
