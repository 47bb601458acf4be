"""Azurite, Microsoft's server that speaks Azure's blobs: fetched once with the ordinary package client (``npm``, 121
MB) into the cache folder, as MariaDB is, each package as ``tests/data/azurite`` pins it. Where it cannot be had, tests
that need it skip and say so.

Its version there is the last one without telemetry, whose packages are half as many as the next one's; it runs by Node
10 and later.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compose.ports import LOOPBACK, free_ports, is_listening
from compose.stack.children import Nursery
from compose.stack.jars import cache_dir
from tests.support.processes.bus import wait_until

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, as its page says."""
PINS = Path(__file__).resolve().parents[2] / "data/azurite"
"""npm's ``package.json`` and the lock of all packages below it, with their checksums."""
_FETCH_S = 150.0
_PROGRAM = Path("node_modules/azurite/dist/src/blob/main.js")


class NoAzuriteError(Exception):
    """There is no Azurite on this machine, and none can be fetched."""


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's host and port; nothing is kept on disk."""
    try:
        program = _find()
    except NoAzuriteError as error:
        warnings.warn(f"NOT TESTED, Azure's storages need Azurite: {error}", stacklevel=1)
        pytest.skip(f"no Azurite: {error}")
    port, folder = free_ports(1)[0], tmp_path_factory.mktemp("azurite")
    command = ["node", str(program), "--blobHost", LOOPBACK, "--blobPort", str(port)]
    # Keys of a customer's own are none of what it knows; what it does not know it passes over.
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--loose", "--silent"]
    with Nursery() as nursery:
        nursery.start("azurite", command, log=folder / "azurite.log", cwd=folder)
        wait_until(lambda: is_listening(port), 60, "Azurite listens")
        yield f"{LOOPBACK}:{port}"


def _find() -> Path:
    pinned = hashlib.sha256((PINS / "package-lock.json").read_bytes()).hexdigest()
    root = cache_dir() / f"azurite-{pinned[:12]}"
    if not shutil.which("node"):
        raise NoAzuriteError("no node on the PATH")
    if not (root / _PROGRAM).exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with (root.parent / ".azurite.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / _PROGRAM).exists():
                _fetch(root)
    return root / _PROGRAM


def _fetch(root: Path) -> None:
    if not (npm := shutil.which("npm")):
        raise NoAzuriteError("no npm on the PATH to fetch it with")
    fresh = root.with_name(f".azurite.{os.getpid()}")
    options = ["--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--omit=optional"]
    command = [npm, "ci", "--prefix", str(fresh), "--cache", str(fresh / "cache"), *options]
    try:
        fresh.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PINS / name, fresh)
        ran = subprocess.run(command, cwd=fresh, capture_output=True, timeout=_FETCH_S, check=False, text=True)
        if not (fresh / _PROGRAM).exists():
            raise NoAzuriteError(f"npm could not fetch it: {ran.stderr.strip()[-300:]}")
        shutil.rmtree(fresh / "cache")
        shutil.rmtree(root, ignore_errors=True)
        with suppress(FileNotFoundError):
            fresh.rename(root)
    except (subprocess.SubprocessError, OSError) as error:
        raise NoAzuriteError(f"it could not be fetched: {type(error).__name__}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
