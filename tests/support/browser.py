"""A real browser for tests of the console: Debian's Chromium without a window, driven by Playwright.

``chromium-headless-shell`` is taken from the PATH, or fetched once with the ordinary package client (``apt-get
download``, some 65 MB and the libraries that this machine lacks) and unpacked into the cache folder, as MariaDB is:
that needs no root, and nothing is installed. Where neither is possible, tests skip and say so.
"""

import fcntl
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from compose.stack.jars import cache_dir

PACKAGE = "chromium-headless-shell"
_BINARY = Path("usr/lib/chromium/chromium-headless-shell")
_FETCH_S = 300.0
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
"""Containers have no user namespaces and a small /dev/shm; the only pages opened are those of the test's own bus."""


class NoBrowserError(Exception):
    """There is no Chromium on this machine, and none can be fetched."""


@dataclass(frozen=True, slots=True)
class BrowserProgram:
    """Where Chromium is."""

    binary: Path
    libraries: str = ""
    """``LD_LIBRARY_PATH`` of one that was unpacked."""


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start a browser, or skip the test and say so loudly."""
    with ExitStack() as stack:
        try:
            browser = _launched(stack, find_browser())
        except (NoBrowserError, PlaywrightError) as error:
            warnings.warn(f"NOT TESTED, the console needs Chromium: {error}", stacklevel=1)
            pytest.skip(f"no Chromium: {error}")
        yield browser


def _launched(stack: ExitStack, program: BrowserProgram) -> Browser:
    env = {**os.environ, "LD_LIBRARY_PATH": program.libraries} if program.libraries else dict(os.environ)
    playwright = stack.enter_context(sync_playwright())
    browser = playwright.chromium.launch(executable_path=program.binary, args=[*_ARGUMENTS], env=dict(env))
    stack.callback(browser.close)
    return browser


def find_browser() -> BrowserProgram:
    """Return a browser, fetching it where needed.

    Raises:
        NoBrowserError: there is none to be had.
    """
    for name in (PACKAGE, "chromium", "chromium-browser"):
        if there := shutil.which(name):
            return BrowserProgram(Path(there))
    root = cache_dir() / "chromium"
    if not (root / _BINARY).exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with (root.parent / ".mariadb.lock").open("w") as lock:  # two package clients are in each other's way
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / _BINARY).exists():
                _fetch(root)
    libraries = sorted({str(file.parent) for file in root.rglob("lib*.so*")})
    return BrowserProgram(root / _BINARY, ":".join(libraries))


def _fetch(root: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NoBrowserError(f"no {PACKAGE} on the PATH, and no apt-get to fetch it with")
    fresh = root.with_name(f".chromium.{os.getpid()}")
    debs = fresh / "debs"
    try:
        debs.mkdir(parents=True)
        names = _lacking()
        # Lists of a new machine may never have been read, or be too old for what there is; only root may read them.
        if not (names and _apt(["download", *names], debs)) and os.geteuid() == 0:
            _apt(["update"], debs)
            names = _lacking()
            _apt(["download", *names], debs)
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(fresh)], check=True, timeout=_FETCH_S, capture_output=True)
        if not (fresh / _BINARY).exists():
            raise NoBrowserError(f"the system's package client could not download {PACKAGE}")
        shutil.rmtree(debs)
        shutil.rmtree(root, ignore_errors=True)
        fresh.rename(root)
    except (subprocess.SubprocessError, OSError) as error:
        raise NoBrowserError(f"{PACKAGE} could not be unpacked: {error!r}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _lacking() -> list[str]:
    """Return the browser's package with those it needs that this machine has not, by the package client's own plan."""
    plan = _asked(["install", "--no-install-recommends", "--simulate", PACKAGE])
    return [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]


def _apt(arguments: list[str], folder: Path) -> bool:
    try:
        ran = subprocess.run(
            ["apt-get", "-q", *arguments], cwd=folder, capture_output=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


def _asked(arguments: list[str]) -> str:
    ran = subprocess.run(["apt-get", "-q", *arguments], capture_output=True, timeout=_FETCH_S, check=False, text=True)
    return ran.stdout if ran.returncode == 0 else ""
