"""Work for tests and benches of Spark tasks: importable by name, as a worker must."""

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from schemas.errors import CorruptDataError
from sorters.spark.worker.python_daemon import resident_bytes

_KEPT = dict[str, int]()
_HELD = list[bytes]()


def nothing(number: int) -> bytes:
    """Answer with the task's number."""
    return number.to_bytes(1, "big")


def process_id(number: int) -> bytes:
    """Answer with the worker's process id, and how many tasks it has run."""
    _KEPT["tasks"] = _KEPT.get("tasks", 0) + 1
    return f"{os.getpid()} {_KEPT['tasks']}".encode()


def module_facts(number: int) -> bytes:
    """Answer with the command line's module, what was frozen, and which of our modules the worker had at its start."""
    loaded = [name for name in ("confluent_kafka", "pyarrow", "sorters.core.rows.pipeline") if name in sys.modules]
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    return f"{gc.get_freeze_count()} {spec.name} {','.join(loaded)}".encode()


def safe_path(number: int) -> bytes:
    """Answer whether the worker leaves its folder's modules alone."""
    return str(sys.flags.safe_path).encode()


def fail(number: int) -> bytes:
    """Raise an error of ours in the second task."""
    if number == 1:
        raise CorruptDataError("planted", partition=number)
    return b""


def fail_with_row(kind: str, value: str, number: int) -> bytes:
    """Fail as a task may whose row holds ``value``: by an error of ours, a bug, or a library's word; log it first."""
    try:
        raise ValueError(f"no time of the calendar: {value}")
    except ValueError as error:
        logging.getLogger("sorters.of_a_test").warning("row does not go out", exc_info=error, extra={"key": value})
        if kind == "ours":
            raise CorruptDataError("planted", partition=number, reason=value) from error
        if kind == "bug":
            raise
        raise OSError(f"server refuses {value}") from error


def die_once(marker: str, number: int) -> bytes:
    """Kill the worker, the first time that it is asked to."""
    try:
        with Path(marker).open("x"):
            os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        pass
    return b"lived"


def leak(number: int) -> bytes:
    """Leave 16 MiB that only the collector can free; answer with the worker's resident MiB."""
    garbage: list[object] = [bytearray(os.urandom(1)) * (16 << 20)]
    garbage.append(garbage)
    return str(resident_bytes() >> 20).encode()


def keep(mib: int, number: int) -> bytes:
    """Keep so much for ever; answer with the worker's process id."""
    _HELD.append(b"x" * (mib << 20))
    return str(os.getpid()).encode()


def halves(number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Send one frame to each of two tasks, with our number in it."""
    for _ in frames:
        pass
    for slot in range(2):
        yield slot.to_bytes(8, "big")
        yield b"%d to %d" % (number, slot)


def to_each(number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Send one frame to each of three tasks."""
    for _ in frames:
        pass
    for slot in range(3):
        yield slot.to_bytes(8, "big")
        yield b"%d to %d" % (number, slot)


def keep_in(folder: str, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Write what came to a file of ours."""
    Path(folder, str(number)).write_bytes(b"\n".join(sorted(frames)))
    yield bytes(128 * 1024)


def tick_and_lose_an_executor(folder: str, seconds: float, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Take all frames; then task 0 kills its executor, once, while task 1 ticks into a file of its own, as one that
    writes would. The first attempt of task 1 ticks for so many seconds, later ones for a third of that.
    """
    for _ in frames:
        pass
    root = Path(folder)
    if number == 0 and _is_first(root / "killed"):
        while not list(root.glob("ticks-*")):
            time.sleep(0.05)
        daemon = psutil.Process(os.getppid())
        os.kill(daemon.ppid(), signal.SIGKILL)
        time.sleep(60)
    if number == 1:
        ticks = seconds if _is_first(root / "ticked") else seconds / 3
        with (root / f"ticks-{time.time_ns()}-{os.getpid()}").open("w") as file:
            until = time.monotonic() + ticks
            while time.monotonic() < until:
                file.write(f"{time.time()}\n")
                file.flush()
                yield bytes(128 * 1024)
                time.sleep(0.05)


def _is_first(marker: Path) -> bool:
    try:
        marker.open("x").close()
    except FileExistsError:
        return False
    return True


def broadcast_value(broadcast: object, number: int) -> bytes:
    """Answer with what was broadcast."""
    value: bytes = broadcast.value  # type: ignore[attr-defined]
    return value
