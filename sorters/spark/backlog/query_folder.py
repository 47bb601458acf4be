"""The folder in which a streaming query keeps its checkpoint, ``query/``: how Spark divides a backlog into epochs.

Nobody needs it after the query: which epoch was begun last stands in ZooKeeper, and a run begins there, with a new
query if it needs one. It is on this machine's disk, or on any file system that Spark's Hadoop knows (``hdfs://``,
``s3a://``, ``file://``).
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.json_text import read_int, read_json
from sorters.spark.session import Session

QUERY = "query"


class CheckpointDirError(BusError):
    """The folder for checkpoints cannot be used."""

    code, action = "sorter.checkpoint_dir", Action.RETRY


class Folder(Protocol):
    """Files below one folder; names are relative, with slashes."""

    def location(self, name: str) -> str:
        """Return what Spark is told to find it."""

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None: there is none."""

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

    def remove(self, name: str) -> None:
        file = self._root / name
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)


class HadoopFolder:
    """On a file system of Hadoop, by the JVM of the Spark session that lives when it is used."""

    def __init__(self, spark: Session, uri: str) -> None:
        """Find the file system.

        Raises:
            CheckpointDirError: there is no file system of that kind, or it does not answer.
        """
        self._uri = uri.rstrip("/")
        self._spark = spark
        with self._named():
            self._files()

    def location(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def read(self, name: str) -> bytes | None:
        with self._named():
            path = self._path(name)
            files = self._files()
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                return bytes(self._spark()._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def remove(self, name: str) -> None:
        with self._named():
            self._files().delete(self._path(name), True)

    def _files(self) -> Any:
        return self._path("").getFileSystem(self._spark()._jsc.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._spark()._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{name}" if name else self._uri)

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
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InvariantBrokenError("spark offset log does not read", epoch=epoch, reason=error) from error


def _logged_offset(folder: Folder, name: str, topic: str) -> int:
    content = folder.read(name)
    if content is None:
        raise ValueError(f"{name} is missing")
    return read_int(read_json(content.decode().strip().splitlines()[-1])[topic]["0"], bits=63)
