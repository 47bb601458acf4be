"""Real browsers for tests of the console: Debian's Chromium without a window, driven by Playwright, and its Firefox
(:mod:`tests.support.browsers.firefox`).

A browser is taken from the PATH, or fetched once with the ordinary package client (``apt-get download``, some 65 to
90 MB and the libraries that this machine lacks) and unpacked into the cache folder, as MariaDB is: that needs no root,
and nothing is installed. Where neither is possible, tests skip and say so.
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

_FETCH_S = 300.0
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
"""Containers have no user namespaces and a small /dev/shm; the only pages opened are those of the test's own bus."""


class NoBrowserError(Exception):
    """There is no such browser on this machine, and none can be fetched."""


@dataclass(frozen=True, slots=True)
class BrowserProgram:
    """Where a browser is."""

    binary: Path
    libraries: str = ""
    """``LD_LIBRARY_PATH`` of one that was unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianBrowser:
    """A browser that Debian has."""

    folder: str
    """In the cache."""
    package: str
    names: tuple[str, ...]
    """What it may be called on the PATH."""
    binary: Path
    """In the package."""

    def find(self) -> BrowserProgram:
        """Return the browser, fetching it where needed.

        Raises:
            NoBrowserError: there is none to be had.
        """
        for name in self.names:
            if there := shutil.which(name):
                return BrowserProgram(Path(there))
        root = cache_dir() / self.folder
        if not (root / self.binary).exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            with (root.parent / ".mariadb.lock").open("w") as lock:  # two package clients are in each other's way
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (root / self.binary).exists():
                    self._fetch(root)
        libraries = sorted({str(file.parent) for file in root.rglob("lib*.so*")})
        return BrowserProgram(root / self.binary, ":".join(libraries))

    def _fetch(self, root: Path) -> None:
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NoBrowserError(f"no {self.package} on the PATH, and no apt-get to fetch it with")
        fresh = root.with_name(f".{self.folder}.{os.getpid()}")
        debs = fresh / "debs"
        try:
            debs.mkdir(parents=True)
            names = self._lacking()
            # Lists of a new machine may never have been read, or be too old for what there is; only root may read them.
            if not (names and _apt(["download", *names], debs)) and os.geteuid() == 0:
                _apt(["update"], debs)
                names = self._lacking()
                _apt(["download", *names], debs)
            for deb in debs.glob("*.deb"):
                unpack = ["dpkg-deb", "-x", str(deb), str(fresh)]
                subprocess.run(unpack, check=True, timeout=_FETCH_S, capture_output=True)
            if not (fresh / self.binary).exists():
                raise NoBrowserError(f"the system's package client could not download {self.package}")
            shutil.rmtree(debs)
            shutil.rmtree(root, ignore_errors=True)
            fresh.rename(root)
        except (subprocess.SubprocessError, OSError) as error:
            raise NoBrowserError(f"{self.package} could not be unpacked: {error!r}") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _lacking(self) -> list[str]:
        """Return the package with those it needs that this machine has not, by the package client's own plan."""
        plan = _asked(["install", "--no-install-recommends", "--simulate", self.package])
        return [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]


CHROMIUM = DebianBrowser(
    folder="chromium",
    package="chromium-headless-shell",
    names=("chromium-headless-shell", "chromium", "chromium-browser"),
    binary=Path("usr/lib/chromium/chromium-headless-shell"),
)


@contextmanager
def skipped_without(browser: str) -> Iterator[None]:
    """Skip the test, and say so loudly, where a browser cannot be had."""
    try:
        yield
    except (NoBrowserError, PlaywrightError) as error:
        warnings.warn(f"NOT TESTED, the console needs {browser}: {error}", stacklevel=1)
        pytest.skip(f"no {browser}: {error}")


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start Chromium, or skip the test and say so loudly."""
    with ExitStack() as stack:
        with skipped_without("Chromium"):
            browser = _launched(stack, CHROMIUM.find())
        yield browser


def _launched(stack: ExitStack, program: BrowserProgram) -> Browser:
    env = {**os.environ, "LD_LIBRARY_PATH": program.libraries} if program.libraries else dict(os.environ)
    playwright = stack.enter_context(sync_playwright())
    browser = playwright.chromium.launch(executable_path=program.binary, args=[*_ARGUMENTS], env=dict(env))
    stack.callback(browser.close)
    return browser


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
