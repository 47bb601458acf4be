"""How processes begin that Spark starts for the source: with pyspark's compiled code, where the same is installed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sorters.source.python_start import HOOK, hooked, installed_path

LIB = Path(pyspark.__file__).parent / "python" / "lib"
PY4J = next(LIB.glob("py4j-*-src.zip"))
ASK = (
    "import json, sys, pyspark, py4j; print(json.dumps({'pyspark': pyspark.__file__, 'py4j': py4j.__file__, "
    "'path': sys.path, 'own': getattr(sys, 'machines_own', 0)}))"
)
TWO_PORT_BYTES = b"\0\0"
"""A port as Java reads an int of four bytes begins so."""


def begun(*path: Path) -> dict[str, Any]:
    """Start Python as Spark does, with a path that goes before all else; return what it says of itself."""
    done = started([sys.executable, "-c", ASK], *path)
    assert not done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def started(command: list[str], *path: Path, **env: str) -> "subprocess.CompletedProcess[bytes]":
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **env}
    return subprocess.run(command, env=given, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)


def test_process_with_spark_zips_of_this_installation_takes_what_is_installed() -> None:
    plain, ours = begun(LIB / "pyspark.zip", PY4J), begun(LIB / "pyspark.zip", PY4J, HOOK)

    assert ".zip" in str(plain["pyspark"])
    assert ".zip" in str(plain["py4j"])
    assert Path(str(ours["pyspark"])).samefile(pyspark.__file__)
    assert ".zip" not in str(ours["py4j"])
    assert str(HOOK) not in ours["path"]


def test_process_with_spark_zips_of_another_installation_takes_those(tmp_path: Path) -> None:
    lib = tmp_path / "pyspark" / "python" / "lib"
    lib.mkdir(parents=True)
    shutil.copy(LIB / "pyspark.zip", lib)
    (tmp_path / "pyspark" / "__init__.py").touch()
    other = lib / "py4j-0.0.1-src.zip"

    assert installed_path([str(lib / "pyspark.zip"), str(other), *sys.path])[:2] == [
        str(lib / "pyspark.zip"),
        str(other),
    ]
    assert begun(lib / "pyspark.zip", HOOK)["pyspark"] == str(lib / "pyspark.zip" / "pyspark" / "__init__.py")


def test_process_runs_the_sitecustomize_of_its_machine_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.machines_own = getattr(sys, 'machines_own', 0) + 1\n")

    assert begun(LIB / "pyspark.zip", HOOK, tmp_path)["own"] == 1
    assert begun(LIB / "pyspark.zip", tmp_path, HOOK)["own"] == 1


def test_process_may_find_the_hook_in_two_copies_of_our_code(tmp_path: Path) -> None:
    copied = tmp_path.joinpath(*HOOK.parts[-3:])
    shutil.copytree(HOOK, copied)

    assert not {str(HOOK), str(copied)} & set(begun(LIB / "pyspark.zip", copied, HOOK)["path"])


def test_daemon_has_what_tasks_import_before_its_first_word_and_no_pandas() -> None:
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]

    done = started(command, LIB / "pyspark.zip", HOOK, PYTHONPROFILEIMPORTTIME="1")

    imported = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert {b"sorters.source.task", b"sorters.core.mount.mounter", b"numpy"} <= imported
    assert b"pandas" not in imported
    assert (len(done.stdout), done.stdout[:2]) == (4, TWO_PORT_BYTES)


@pytest.mark.parametrize("before", [None, "tidebus-executors"])
def test_environment_names_the_hook_while_the_source_is_registered_and_not_after(before: str | None) -> None:
    environment = {} if before is None else {"PYTHONPATH": before}
    with hooked(environment):
        assert environment["PYTHONPATH"].split(os.pathsep) == [*([before] if before else []), str(HOOK)]
    assert environment.get("PYTHONPATH") == before
