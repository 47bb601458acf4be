"""Files of a sink: each is whole or absent. A local folder by rename, an object storage as it is.

**A late write.** Whoever lost its lease must show nothing more, and a storage cannot refuse it. So the lease is asked
for in the last moment, when a file is written and does not show yet; what is left is one short request, which has a
third of the session's time. What remains possible: docs/decisions/2026-11-22-late-writes-to-storages.md.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from edges.storages.objects import Objects, key_below, open_objects
from schemas.config.sink.storage_uri import StorageUri
from schemas.errors import Action, BusError, InvariantBrokenError

Chunk = bytes | memoryview
Result = TypeVar("Result")
Check = Callable[[], None]
_FOLDERS_MAX = 10_000
"""That a store remembers; then it looks anew."""


def _always() -> None:
    """Whoever writes may."""


class StorageUnavailableError(BusError):
    """The storage does not answer, is full, or refuses; the same write may work later."""

    code, action = "storage.unavailable", Action.RETRY


class SinkStorageClientMissingError(BusError):
    """The library that talks to this kind of storage is not installed."""

    code, action = "storage.client_missing", Action.STOP_CHANGEFEED


class FileStore(Protocol):
    """Paths are below the root, with ``/`` between their parts. Safe to use from several threads."""

    def put(self, path: str, chunks: Iterable[Chunk], may_show: Check = _always) -> None:
        """Write a file, durable when this returns; one of the same name is replaced in one step.

        Args:
            may_show: called when all is written, just before it shows; if it raises, it never does.

        Raises:
            StorageUnavailableError, SinkStorageClientMissingError
        """
        ...

    def get(self, path: str) -> bytes | None:
        """Return a file's content, None if it is not there.

        Raises:
            StorageUnavailableError, SinkStorageClientMissingError
        """
        ...


class ExpiringStore(FileStore, Protocol):
    """A store whose old files can be removed."""

    def remove_if(self, is_old: Callable[[str], bool], check: Check = _always) -> int:
        """Remove the files whose paths ``is_old`` says yes to; return how many there were.

        Args:
            check: called before each file, or each request that removes objects; if it raises, no more is removed.

        Raises:
            StorageUnavailableError, SinkStorageClientMissingError
        """
        ...


def file_store(storage: StorageUri) -> ExpiringStore:
    """Return the store of a sink URI."""
    return LocalStore(Path(storage.root)) if storage.is_local else ObjectStore(storage)


@dataclass(frozen=True, slots=True)
class LeasedStore:
    """A store for whoever may write only while its lease holds."""

    store: ExpiringStore
    check_lease: Check
    """Raises when it does not."""

    def put(self, path: str, chunks: Iterable[Chunk], may_show: Check = _always) -> None:
        """See :class:`FileStore`. The lease is asked for before anything is written, and again before it shows."""

        def check() -> None:
            may_show()
            self.check_lease()

        self.check_lease()
        self.store.put(path, chunks, check)

    def get(self, path: str) -> bytes | None:
        """See :class:`FileStore`."""
        return self.store.get(path)

    def remove_if(self, is_old: Callable[[str], bool], check: Check = _always) -> int:
        """See :class:`ExpiringStore`."""

        def both() -> None:
            check()
            self.check_lease()

        return self.store.remove_if(is_old, both)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder, made when the first file comes. It stays the same: where it was removed, or a disk was mounted there or
    taken away, what had been written is elsewhere, and nothing may be written behind it."""

    root: Path
    _root: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Device and inode of the folder, once it is there."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _durable: set[Path] = field(default_factory=set, init=False, repr=False, compare=False)
    """Folders that are known to be written down in theirs."""

    def put(self, path: str, chunks: Iterable[Chunk], may_show: Check = _always) -> None:
        """See :class:`FileStore`."""
        target = self._target(path)
        draft = target.parent / f".{target.name}.{secrets.token_hex(8)}"
        try:
            self._check_root()
            self._make(target.parent)
            self._check_root()
            try:
                with draft.open("xb") as file:
                    file.writelines(chunks)
                    file.flush()
                    os.fsync(file.fileno())
                may_show()
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
        target = self._target(path)
        try:
            self._check_root()
            return target.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageUnavailableError("cannot read a file", path=str(target), reason=error) from error

    def remove_if(self, is_old: Callable[[str], bool], check: Check = _always) -> int:
        """See :class:`ExpiringStore`. Folders that become empty go too."""
        removed = 0
        try:
            for folder, _, names in os.walk(self.root, topdown=False):
                below = Path(folder).relative_to(self.root)
                for name in names:
                    if is_old((below / name).as_posix()):
                        check()
                        (Path(folder) / name).unlink(missing_ok=True)
                        removed += 1
                if removed and folder != str(self.root):
                    with suppress(OSError), self._lock:  # it is not empty
                        Path(folder).rmdir()
                        self._durable.discard(Path(folder))
        except OSError as error:
            raise StorageUnavailableError("cannot remove old files", path=str(self.root), reason=error) from error
        return removed

    def _check_root(self) -> None:
        try:
            stands = self.root.stat()
        except FileNotFoundError:
            now = None
        else:
            now = (stands.st_dev, stands.st_ino)
        with self._lock:
            if not self._root and now is not None:
                self._root.append(now)
            if self._root and self._root[0] != now:
                raise StorageUnavailableError(
                    "the sink's folder is not the one that was written to: it was removed, or a disk was mounted or "
                    "unmounted there",
                    path=str(self.root),
                )

    def _target(self, path: str) -> Path:
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise InvariantBrokenError("a path is not below the sink's root", path=path[:200])
        return self.root.joinpath(*parts)

    def _make(self, folder: Path) -> None:
        """Make a folder with those above it; each new one is written down in its own when this returns.

        One lock for all: who finds a folder that another thread has made must not go on before that is durable.
        """
        with self._lock:
            new = [path for path in (folder, *folder.parents) if self._is_new(path)]
            for path in reversed(new):
                path.mkdir(exist_ok=True)
                _sync_folder(path.parent)
            if len(self._durable) + len(new) > _FOLDERS_MAX:
                self._durable.clear()
            self._durable.update(new)

    def _is_new(self, folder: Path) -> bool:
        """Tell whether a folder may not be written down yet: an earlier process may have made it and ended there."""
        if not folder.exists():
            return True
        return self.root in folder.parents and folder not in self._durable


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket, or a prefix in one: putting an object is one step there."""

    storage: StorageUri

    def put(self, path: str, chunks: Iterable[Chunk], may_show: Check = _always) -> None:
        """See :class:`FileStore`."""
        content = b"".join(chunks)
        self._call("cannot write an object", path, lambda objects, key: objects.put(key, content, may_show))

    def get(self, path: str) -> bytes | None:
        """See :class:`FileStore`."""
        return self._call("cannot read an object", path, lambda objects, key: objects.get(key))

    def remove_if(self, is_old: Callable[[str], bool], check: Check = _always) -> int:
        """See :class:`ExpiringStore`."""
        root, what = key_below(self.storage, ""), "cannot remove old files"
        keys = self._call(what, "", lambda objects, key: objects.find(key.removesuffix("/")))
        old = [key for key in keys if is_old(key.removeprefix(root))]
        at_once = self._call(what, "", lambda objects, _: objects.removed_at_once)
        for start in range(0, len(old), at_once):
            check()
            self._remove(old[start : start + at_once])
        return len(old)

    def _remove(self, keys: list[str]) -> None:
        self._call("cannot remove old files", "", lambda objects, _: objects.remove(keys))

    def _call(self, what: str, path: str, use: Callable[[Objects, str], Result]) -> Result:
        storage = self.storage
        try:
            return use(open_objects(storage), key_below(storage, path))
        except BusError:  # who wrote may not any more
            raise
        except ImportError as error:
            raise SinkStorageClientMissingError(
                "storage needs a library that is not installed",
                storage=storage.public,
                install=f"tidebus[{storage.extra}]",
                reason=error,
            ) from error
        except Exception as error:  # each storage's client has errors of its own
            reason = storage.masked(f"{type(error).__name__}: {error}")[:500]
            where = {"storage": storage.public, "path": path, "reason": reason}
            raise StorageUnavailableError(what, **where) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
