"""Jars that tests alone need: by Ivy, once, into the cache; where they cannot be had, tests skip and say so."""

import fcntl
import subprocess
import warnings
from pathlib import Path

import pytest

from compose.stack.jars import cache_dir, pyspark_jars
from compose.stack.java import find_java

_TIMEOUT_S = 300


def fetched_jars(folder_name: str, ivy_file: Path, conf: str, what: str) -> list[Path]:
    """Return the jars of a configuration of an Ivy file, fetching them where needed, or skip the test.

    Args:
        folder_name: of the cache's folder for them.
        what: is not tested without them.
    """
    folder = cache_dir() / "jars" / folder_name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".ivy-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Ivy's cache is for one process at a time, and tests run in several
        _fetch(folder, ivy_file, conf, what)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path, ivy_file: Path, conf: str, what: str) -> None:
    if not (folder / "whole").exists():
        ivy = next(pyspark_jars().glob("ivy-*.jar"))
        command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", "-m2compatible", "-warn"]
        command += ["-cache", str(cache_dir() / "jars" / ".ivy"), "-ivy", str(ivy_file), "-confs", conf]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if ran.returncode != 0:
            warnings.warn(f"NOT TESTED, {what}: {ran.stdout[-500:]}", stacklevel=1)
            pytest.skip(f"no jars of {what}")
        (folder / "whole").touch()
