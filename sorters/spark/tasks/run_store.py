"""Holds the packed runs of one task until all have come: in memory up to a bound, beyond it in a file."""

import mmap
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from sorters.core.records.runs import Run, unpack_run
from sorters.spark.tasks.run_folder import ALIGN_BYTES

MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""Bytes of packed runs that one task keeps in memory; two such tasks run at once on two cores."""


class RunStore:
    """A context manager; runs that were taken out must not be used after it."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._memory_left = memory_bytes_max
        self._blocks: list[Any] = []
        self._places: list[tuple[int, int]] = []
        self._file: IO[bytes] | None = None
        self._size = 0
        self.spilled_bytes = 0

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.clear()
        if self._file is not None:
            self._file.close()

    def add(self, block: Any) -> None:
        """Keep one block of :func:`sorters.core.records.runs.pack_run`, a ``pyarrow.Buffer``."""
        if block.size <= self._memory_left:
            self._memory_left -= block.size
            self._blocks.append(block)
            return
        self._memory_left = 0  # Buffers of one Arrow batch are let go together: keep no later ones of it
        if self._file is None:
            # Spark tells its Python workers where its own spills go.
            folder = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 # closed with the store
        self._file.write(block)
        self._places.append((self._size, block.size))
        padding = -block.size % ALIGN_BYTES
        self._file.write(bytes(padding))
        self._size += block.size + padding
        self.spilled_bytes += block.size

    def take(self) -> list[Run]:
        """Return all runs, and keep those that are in memory no longer."""
        runs = [unpack_run(block) for block in self._blocks]
        self._blocks.clear()
        if self._file is not None:
            self._file.flush()
            mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
            runs += [unpack_run(mapped.slice(start, size)) for start, size in self._places]
        return runs
