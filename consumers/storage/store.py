"""Files of a sink: each is whole or absent. A local folder by rename, an object storage as it is."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fsspec

from schemas.config.storage_uri import StorageUri
from schemas.errors import Action, BusError

Chunk = bytes | memoryview
Result = TypeVar("Result")


class StorageUnavailableError(BusError):
    """The storage does not answer, is full, or refuses; the same write may work later."""

    code, action = "storage.unavailable", Action.RETRY


class StorageClientMissingError(BusError):
    """The library that talks to this kind of storage is not installed."""

    code, action = "storage.client_missing", Action.STOP_CHANGEFEED


class FileStore(Protocol):
    """Paths are below the root, with ``/`` between their parts. Safe to use from several threads."""

    def put(self, path: str, chunks: Iterable[Chunk]) -> None:
        """Write a file, durable when this returns; one of the same name is replaced in one step.

        Raises:
            StorageUnavailableError, StorageClientMissingError
        """
        ...

    def get(self, path: str) -> bytes | None:
        """Return a file's content, None if it is not there.

        Raises:
            StorageUnavailableError, StorageClientMissingError
        """
        ...


def file_store(storage: StorageUri) -> FileStore:
    """Return the store of a sink URI."""
    return LocalStore(Path(storage.root)) if storage.is_local else ObjectStore(storage)


@dataclass(frozen=True, slots=True)
class LeasedStore:
    """A store for whoever may write only while its lease holds."""

    store: FileStore
    check_lease: Callable[[], None]
    """Raises when it does not."""

    def put(self, path: str, chunks: Iterable[Chunk]) -> None:
        """See :class:`FileStore`. The lease is asked for again when all is written, just before it shows."""
        self.check_lease()
        self.store.put(path, self._checked(chunks))

    def get(self, path: str) -> bytes | None:
        """See :class:`FileStore`."""
        return self.store.get(path)

    def _checked(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        yield from chunks
        self.check_lease()


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder, made when the first file comes."""

    root: Path

    def put(self, path: str, chunks: Iterable[Chunk]) -> None:
        """See :class:`FileStore`."""
        target = self.root / path
        draft = target.parent / f".{target.name}.{secrets.token_hex(8)}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("xb") as file:
                    file.writelines(chunks)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(target)
            except BaseException:
                with suppress(OSError):
                    draft.unlink()
                raise
            _sync_folder(target.parent)
        except OSError as error:
            raise StorageUnavailableError("cannot write a file", path=str(target), reason=error) from error

    def get(self, path: str) -> bytes | None:
        """See :class:`FileStore`."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageUnavailableError("cannot read a file", path=str(self.root / path), reason=error) from error


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket, or a prefix in one: putting an object is one step there."""

    storage: StorageUri

    def put(self, path: str, chunks: Iterable[Chunk]) -> None:
        """See :class:`FileStore`."""
        content = b"".join(chunks)
        self._call("cannot write an object", path, lambda files, key: files.pipe_file(key, content))

    def get(self, path: str) -> bytes | None:
        """See :class:`FileStore`."""

        def read(files: Any, key: str) -> bytes | None:
            try:
                return bytes(files.cat_file(key))
            except FileNotFoundError:
                return None

        return self._call("cannot read an object", path, read)

    def _call(self, what: str, path: str, use: Callable[[Any, str], Result]) -> Result:
        storage = self.storage
        try:
            files = fsspec.filesystem(storage.protocol, **storage.options)
        except ImportError as error:
            raise StorageClientMissingError(
                "storage needs a library that is not installed", storage=storage.public, reason=error
            ) from error
        try:
            return use(files, f"{storage.root}/{path}")
        except Exception as error:  # each storage's client has errors of its own, and fsspec lets them through
            where = {"storage": storage.public, "path": path, "reason": f"{type(error).__name__}: {error}"[:500]}
            raise StorageUnavailableError(what, **where) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
