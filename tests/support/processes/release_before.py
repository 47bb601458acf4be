"""Captures of the version before sorter services, as real processes beside those of this version."""

import io
import subprocess
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.children import TIDEBUS, Child
from compose.stack.jars import cache_dir
from tests.support.sources.repository import ROOT

COMMIT = "45ec899db85a42945fcc7d80da28d9bdd7beb214"
BEFORE = "before"
"""How names of captures of that version begin."""
UNKNOWN_OPTIONS = ("--tz",)
"""Options with a value that a bus of today gives its captures, and that version does not have."""
GRACE_S = 60.0
"""A capture hands its spans over and waits for its sorters."""


def tree_before(folder: Path) -> Path:
    """Write that version's files below ``folder`` and return where; a clone without its history skips the test."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True, check=False)
    if packed.returncode:
        said = packed.stderr.decode(errors="replace").strip()
        warnings.warn(f"NOT TRIED: rolling upgrade from {COMMIT[:7]}, which this clone lacks: {said}", stacklevel=2)
        pytest.skip(f"this clone lacks {COMMIT[:7]}: {said}")
    tree = folder / "before"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


class MixedBus(LocalBus):
    """A bus whose captures a test starts, stops and replaces; nobody else starts them again."""

    def __init__(self, options: BusOptions, tree: Path) -> None:
        super().__init__(options, say=lambda _: None)
        self._tree = tree

    def start_capture(self, name: str, *more: str) -> Child:
        """Start a capture, of the version before where its name says so; the bus itself starts none."""
        return self.processes[name] if name == "capture" else super().start_capture(name, *more)

    def start(self) -> None:
        """Start the stack alone."""
        self.processes["capture"] = self.nursery.start("capture", ["true"], log=self.logs / "none.log")
        super().start()
        del self.processes["capture"]

    def replace(self, former: str, name: str, *, killed: bool) -> None:
        """Take a capture away, by SIGTERM or by kill -9 with all that it has started, and start another."""
        child = self.processes.pop(former)
        if killed:
            child.kill()
        else:
            child.discard(GRACE_S)
            assert child.exit_status() == 0, child.tail()
        self.start_capture(name)

    def _start(self, name: str, arguments: list[str], *, restart: bool, env: Mapping[str, str] | None = None) -> Child:
        is_before = name.startswith(BEFORE)
        more = {"PYTHONPATH": str(self._tree), "TIDEBUS_CACHE": str(cache_dir())} if is_before else {}
        child = self.nursery.start(
            name,
            [*TIDEBUS, *(known_before(arguments) if is_before else arguments)],
            log=self.logs / f"{name}.log",
            env={**(env or {}), **more},
            cwd=self._tree if is_before else ROOT,
        )
        self.processes[name] = child
        return child


def known_before(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a capture without the options that the version before does not have."""
    return [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if argument not in UNKNOWN_OPTIONS and before not in UNKNOWN_OPTIONS
    ]


def has_died(bus: MixedBus) -> list[str]:
    """Return the captures that have ended though nobody asked them to."""
    return [name for name, child in bus.processes.items() if not child.is_running()]
