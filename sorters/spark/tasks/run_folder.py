"""How runs get from the first step to the second where all tasks run on one machine: as ranges of files, past Spark.

A run is written once and read where it lies; Spark moves only which file, and where in it
(docs/decisions/2026-11-22-past-the-jvm.md). The files of a cut stand in a folder that ends with the cut.
"""

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from edges.process_marks import is_of_dead, is_running, process_mark
from sorters.log.failures import RunFolderError

_PREFIX = "tidebus-runs-"
ALIGN_BYTES = 64
"""Arrow reads columns where they lie if they are aligned."""


@contextlib.contextmanager
def run_folder(parent: Path) -> Iterator[str]:
    """Yield a folder for the runs of one cut.

    Raises:
        RunFolderError: it cannot be made.
    """
    with _writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{process_mark()}-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_run_folders(parent: Path) -> None:
    """Remove what processes that were killed have left behind, also one that had our id before us."""
    for folder in parent.glob(f"{_PREFIX}*"):
        mark = folder.name.removeprefix(_PREFIX).rpartition("-")[0]
        # Without a start: of a version that named the id alone.
        if is_of_dead(mark) or (mark.isdecimal() and (int(mark) == os.getpid() or not is_running(int(mark)))):
            shutil.rmtree(folder, ignore_errors=True)


class RunFile:
    """Where one task of the first step puts its runs; a context manager."""

    def __init__(self, folder: str) -> None:
        """Raises RunFolderError where the file cannot be made."""
        self._folder, self._size = folder, 0
        with _writing(folder):
            self._file = tempfile.NamedTemporaryFile(dir=folder, delete=False, buffering=0)  # noqa: SIM115 # closed at exit
        self._name = Path(self._file.name).name

    def __enter__(self) -> "RunFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, block: Any) -> bytes:
        """Write a block, a ``pyarrow.Buffer``; return what names it.

        Raises:
            RunFolderError: there is no room for it.
        """
        start, padding = self._size, -block.size % ALIGN_BYTES
        with _writing(self._folder):
            for part in (memoryview(block), bytes(padding)):
                at = 0
                while at < len(part):
                    at += self._file.write(part[at:])
        self._size += block.size + padding
        return f"{self._name}:{start}:{block.size}".encode()


@contextlib.contextmanager
def _writing(folder: str | Path) -> Iterator[None]:
    """Raise what the system says of a folder as an error of ours, which names it: a worker's exception does not."""
    try:
        yield
    except OSError as error:
        text = "runs of a cut cannot be written: make room, or give the service another --data-dir"
        raise RunFolderError(text, folder=folder, reason=error.strerror or repr(error)) from error


class RunFiles:
    """Reads the files of a folder in the second step, each mapped once."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._maps: dict[str, tuple[mmap.mmap, Any]] = {}

    def block(self, reference: bytes) -> Any:
        """Return the block that a reference names, a ``pyarrow.Buffer`` over the file's bytes."""
        name, start, size = reference.decode().rsplit(":", 2)
        mapped = self._maps.get(name)
        if mapped is None:
            with (self._folder / name).open("rb") as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            mapped = self._maps[name] = pages, pa.py_buffer(pages)
        return mapped[1].slice(int(start), int(size))

    def release(self) -> None:
        """Give the pages back that were read; who reads one again gets it from the page cache."""
        for pages, _ in self._maps.values():
            pages.madvise(mmap.MADV_DONTNEED)
