"""Files of ``claim-check``: in a local folder, which all that write and read them must see, or in an object storage."""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edges.storages.objects import key_below, open_objects
from schemas.config.sink.storage_uri import StorageUri
from schemas.errors import Action, BusError
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed


class ClaimStoreError(BusError):
    """A message that is too large for Kafka cannot be stored; no message names it."""

    code, action = "sink.claim_store_failed", Action.RETRY


class ClaimClientMissingError(BusError):
    """The library that talks to this kind of storage is not installed."""

    code, action = "sink.storage_client_missing", Action.STOP_CHANGEFEED


def claim_store(feed: CompiledFeed) -> StoreClaim | None:
    """Return what stores a changefeed's whole messages; None: it stores none."""
    large = feed.large_messages
    if large is None or large.claim_check is None:
        return None
    storage = large.claim_check.storage
    return ClaimFolder(Path(storage.root)).store if storage.is_local else ClaimBucket(storage).store


@dataclass(frozen=True, slots=True)
class ClaimBucket:
    """A bucket, or a prefix in one. Putting an object is one step there."""

    storage: StorageUri

    def store(self, name: str, content: bytes) -> None:
        """Write a file; one of the same name is replaced.

        Raises:
            ClaimStoreError: the storage refuses, or does not answer.
            ClaimClientMissingError: the library that reaches the storage is not installed.
        """
        try:
            open_objects(self.storage).put(key_below(self.storage, name), content, lambda: None)
        except ImportError as error:
            raise ClaimClientMissingError(
                "storage needs a library that is not installed",
                storage=self.storage.public,
                install=f"tidebus[{self.storage.extra}]",
                reason=error,
            ) from error
        except Exception as error:  # each storage's client has errors of its own
            reason = self.storage.masked(f"{type(error).__name__}: {error}")[:500]
            where = {"storage": self.storage.public, "reason": reason}
            raise ClaimStoreError("cannot store a large message", **where) from error


@dataclass(frozen=True, slots=True)
class ClaimFolder:
    """A folder, made when the first file comes."""

    folder: Path

    def store(self, name: str, content: bytes) -> None:
        """Write a file, on disk when this returns; one of the same name is replaced in one step.

        Raises:
            ClaimStoreError: the system refuses.
        """
        # The same file may be under way twice: by a task, and by the one that repeats it.
        draft = self.folder / f".{name}.{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.folder / name)
            except BaseException:
                with suppress(OSError):
                    draft.unlink()
                raise
            self._sync_folder()
        except OSError as error:
            raise ClaimStoreError("cannot store a large message", folder=str(self.folder), reason=error) from error

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
