"""Processes that a capture starts, tends and ends with itself, such as sorters and processors."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from schemas.scoped import Scoped


class ChildProcess(Protocol):
    """What is asked of :class:`compose.stack.children.Child`."""

    @property
    def pid(self) -> int:
        """The process id, of the group too."""

    @property
    def log(self) -> Path:
        """Where its output goes."""

    def start(self) -> None:
        """Start it again; BusError: the machine has no room for it."""

    def turn_over_log(self) -> None:
        """Set the log aside if it has grown too large."""

    def is_running(self) -> bool:
        """Tell whether it runs now."""

    def exit_status(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end and do not wait."""

    def kill(self) -> None:
        """End it as ``kill -9`` does, with whatever it has started in its group."""

    def wait(self, timeout_s: float) -> int | None:
        """Wait for it to end; return the exit status, or None when the time is over."""

    def discard(self, grace_s: float) -> None:
        """Stop it, with whatever it has left behind, and forget it."""

    def tail(self, lines: int) -> str:
        """Return the last lines of its log."""


class ChildStarter(Protocol):
    """What is asked of :class:`compose.stack.children.Nursery`: children that never outlive this process."""

    def start(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start ``command`` with its output appended to ``log``; ``env`` is added to ours.

        Raises:
            BusError: the machine has no room for it.
        """

    def stop_together(self, grace_s: float) -> None:
        """Stop every child, all asked first and given ``grace_s`` in all."""


class Fleet(Scoped):
    """Children of one kind. ``start`` begins to look for what must run, ``stop`` ends all children."""

    def __init__(self, children: ChildStarter, data_dir: Path | None, kind: str) -> None:
        """``data_dir`` is for logs and the children's files; None: a folder that goes with this process."""
        self._children, self._data_dir, self._kind = children, data_dir, kind
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None

    def _folder(self) -> Path:
        if self._data_dir is not None:
            return self._data_dir.resolve()
        if self._own_folder is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix=f"tidebus-{self._kind}-")
        return Path(self._own_folder.name)

    def _remove_folder(self) -> None:
        if self._own_folder is not None:
            self._own_folder.cleanup()
