"""The folder of a changefeed's epochs: ``origin.json``, what was begun last, and a streaming query's checkpoint in
``query/``.

An epoch is a range of frontier offsets. It is written down before it runs, by the driver itself or by the query's
offset log, so that after a crash the same range runs again, which is cut the same way into the same messages.

All that stands there can be lost: the changefeed's checkpoint is in ZooKeeper, and so is the last epoch that a driver
has begun by itself. Only what a query has begun, on a machine that is gone, is written again from the checkpoint on and
perhaps cut otherwise: the same rows, but watermarks at other places. The folder is on this machine's disk, or on any
file system that Spark's Hadoop knows (``hdfs://``, ``s3a://``, ``file://``), for sorters that change their machine.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.ids import Ts
from sorters.core.beginning import BegunEpoch, Origin

QUERY = "query"
_ORIGIN = "origin.json"


class CheckpointDirError(BusError):
    """The folder for checkpoints cannot be used."""

    code, action = "sorter.checkpoint_dir", Action.RETRY


class Folder(Protocol):
    """Files below one folder; names are relative, with slashes."""

    def location(self, name: str) -> str:
        """Return what Spark is told to find it."""

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None: there is none."""

    def names(self, name: str) -> list[str]:
        """Return what stands in a folder; nothing in one that is not there."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file anew, and the folders that it needs."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all in it, if it is there."""


class LocalFolder:
    """On this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def location(self, name: str) -> str:
        return str(self._root / name)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, name: str) -> list[str]:
        folder = self._root / name
        return [file.name for file in folder.iterdir()] if folder.is_dir() else []

    def write(self, name: str, content: bytes) -> None:
        file = self._root / name
        fresh = file.with_name(f"{file.name}.new")
        try:
            fresh.write_bytes(content)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(content)
        fresh.rename(file)

    def remove(self, name: str) -> None:
        file = self._root / name
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)


class HadoopFolder:
    """On a file system of Hadoop, by the JVM of a Spark session."""

    def __init__(self, spark: Any, uri: str) -> None:
        """Find the file system.

        Raises:
            CheckpointDirError: there is no file system of that kind, or it does not answer.
        """
        self._uri = uri.rstrip("/")
        self._jvm = spark._jvm
        with self._named():
            self._files = self._path("").getFileSystem(spark._jsc.hadoopConfiguration())

    def location(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def read(self, name: str) -> bytes | None:
        with self._named():
            path = self._path(name)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def names(self, name: str) -> list[str]:
        with self._named():
            path = self._path(name)
            if not self._files.exists(path):
                return []
            return [status.getPath().getName() for status in self._files.listStatus(path)]

    def write(self, name: str, content: bytes) -> None:
        with self._named():
            stream = self._files.create(self._path(name), True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()

    def remove(self, name: str) -> None:
        with self._named():
            self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{name}" if name else self._uri)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            reason = str(error.java_exception.toString()).split("\n", 1)[0]
            raise CheckpointDirError(
                "checkpoint folder cannot be used; see --checkpoint-dir", uri=self._uri, reason=reason
            ) from error


def decode_origin(content: bytes | None) -> Origin | None:
    """Return what was begun last; None: nothing, or it does not read."""
    if content is None:
        return None
    try:
        raw = json.loads(content)
        end = raw.get("frontier_end")
        return Origin(
            str(raw["frontier_topic"]),
            Ts(int(raw["origin_ts"])),
            int(raw["frontier_offset"]),
            None if end is None else int(end),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # half written when its process was killed


def encode_origin(origin: Origin) -> bytes:
    """Return the text of what is begun."""
    raw = {
        "frontier_topic": origin.frontier_topic,
        "origin_ts": origin.ts,
        "frontier_offset": origin.offset,
        "frontier_end": origin.end,
    }
    return json.dumps(raw).encode()


def read_origin(folder: Folder) -> Origin | None:
    """Return what was begun last in a folder; None: nothing, or it does not read."""
    return decode_origin(folder.read(_ORIGIN))


def write_origin(folder: Folder, origin: Origin) -> None:
    """Begin an epoch, or a query: of that, nothing of an older one is left."""
    if origin.end is None:
        folder.remove(QUERY)
    folder.write(_ORIGIN, encode_origin(origin))


def epoch_offsets(folder: Folder, topic: str, epoch: int) -> tuple[int, int]:
    """Return the frontier offsets ``[start, end)`` of an epoch, from the streaming query's offset log.

    The log is Spark's: a file an epoch, ``v1``, a line of metadata and one line a source with its end offsets. The
    first epoch starts where the source was told to (``sources/0/0``).

    Raises:
        InvariantBrokenError: the files are not what this version of Spark writes.
    """
    before = f"{QUERY}/sources/0/0" if epoch == 0 else f"{QUERY}/offsets/{epoch - 1}"
    try:
        return _logged_offset(folder, before, topic), _logged_offset(folder, f"{QUERY}/offsets/{epoch}", topic)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InvariantBrokenError("spark offset log does not read", epoch=epoch, reason=error) from error


def last_epoch(folder: Folder, topic: str) -> BegunEpoch | None:
    """Return the last epoch in the query's offset log; None if it has begun none."""
    epochs = [int(name) for name in folder.names(f"{QUERY}/offsets") if name.isdigit()]
    if not epochs:
        return None
    last = max(epochs)
    return BegunEpoch(*epoch_offsets(folder, topic, last), str(last) in folder.names(f"{QUERY}/commits"))


def _logged_offset(folder: Folder, name: str, topic: str) -> int:
    content = folder.read(name)
    if content is None:
        raise ValueError(f"{name} is missing")
    return int(json.loads(content.decode().strip().splitlines()[-1])[topic]["0"])
