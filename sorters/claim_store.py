"""Files of ``claim-check`` in a local folder, which all that write and read them must see."""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.config.claim_check_uri import claim_folder
from schemas.errors import Action, BusError
from sorters.core.claim_check import StoreClaim
from sorters.core.feed import CompiledFeed


class ClaimStoreError(BusError):
    """A message that is too large for Kafka cannot be stored; no message names it."""

    code, action = "sink.claim_store_failed", Action.RETRY


def claim_store(feed: CompiledFeed) -> StoreClaim | None:
    """Return what stores a changefeed's whole messages; None: it stores none."""
    large = feed.large_messages
    if large is None or large.claim_check is None:
        return None
    return ClaimFolder(Path(claim_folder(large.claim_check.storage_uri))).store


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
