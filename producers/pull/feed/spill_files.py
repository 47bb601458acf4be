"""The spill on disk: blobs of open transactions in append-only segment files, each blob with its checksum.

::

    FOLDER/lock                 held while a process uses the folder
    FOLDER/00000017.spill       segments; the newest takes what comes, one that has no blob left is deleted

    blob: magic b"TBS1", length (uint32), crc32 (uint32), bytes

Nothing here outlives its process: rows of a transaction belong to one registration of a region, and after a start every
region is registered anew. So the folder is emptied at the start, nothing is synced, and the segments are deleted at the
end. Without a folder the segments are nameless files in the system's temporary folder: a process that is killed leaves
nothing behind.
"""

import errno
import fcntl
import logging
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

from producers.pull.core.match.spill import Address, SpillCorruptError, SpillRefusedError

log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<4sII")
_MAGIC: Final = b"TBS1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSettings:
    """Where open transactions go that are too large for memory."""

    folder: Path | None = None
    """For one process alone; None: the system's temporary folder, which may be small, or memory (tmpfs)."""
    spill_bytes_max: int = 64 << 30
    """Of all segments together. The largest transaction that TiDB lets through by default has some 10 GiB per node."""
    segment_bytes: int = 64 << 20
    """A segment is deleted as a whole, once none of its rows waits."""


def _opened(path: str, flags: int) -> int:
    """Open a segment, which holds rows: nobody else on the machine reads it."""
    return os.open(path, flags, 0o600)


class _BlobAddress(NamedTuple):
    segment: int
    offset: int
    length: int


class _Segment:
    __slots__ = ("bytes", "file", "live", "path")

    def __init__(self, folder: Path, name: str, *, nameless: bool) -> None:
        self.path = folder / name
        if nameless:
            self.file: IO[bytes] = tempfile.TemporaryFile(prefix=name, dir=folder, buffering=0)  # noqa: SIM115
        else:
            self.file = open(self.path, "x+b", buffering=0, opener=_opened)  # noqa: SIM115 # closed when it is deleted
        self.bytes = 0
        self.live = 0


class SpillFiles:
    """A :class:`~producers.pull.core.match.spill.SpillStore` on files. Not thread-safe: the feed's thread calls it."""

    def __init__(self, settings: SpillSettings = SpillSettings()) -> None:
        """Remember the settings, and empty the folder if there is one.

        Raises:
            SpillRefusedError: the folder cannot be used, or another process uses it.
        """
        self.stored_bytes = 0
        self.file_bytes = 0
        """Of all segments; more than ``stored_bytes`` by what was dropped since."""
        self._settings = settings
        self._nameless = settings.folder is None
        self._folder = settings.folder or Path(tempfile.gettempdir())
        self._segments: dict[int, _Segment] = {}
        self._number = 0
        self._lock: int | None = None
        if not self._nameless:
            self._open(self._folder)

    def put(self, blob: bytes) -> Address:
        """Append a blob to the newest segment."""
        size = _HEAD.size + len(blob)
        if self.file_bytes + size > self._settings.spill_bytes_max:
            raise self._refused("open transactions reach spill_bytes_max; raise it, or split the transaction", None)
        try:
            segment = self._newest()
            self._write(segment, (_HEAD.pack(_MAGIC, len(blob), zlib.crc32(blob)), blob))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise self._refused(
                "the disk of the spill folder is full; give it room" if full else "the spill folder cannot be written",
                error,
            ) from error
        address = _BlobAddress(self._number, segment.bytes, len(blob))
        segment.bytes += size
        segment.live += 1
        self.file_bytes += size
        self.stored_bytes += len(blob)
        return address

    def get(self, address: Address) -> bytes:
        """Read a blob and check it."""
        assert isinstance(address, _BlobAddress), "addresses come from put"
        segment = self._segments[address.segment]
        try:
            data = os.pread(segment.file.fileno(), _HEAD.size + address.length, address.offset)
        except OSError as error:
            raise self._corrupt(segment, address, str(error)) from error
        if len(data) != _HEAD.size + address.length:
            raise self._corrupt(segment, address, f"the file ends after {len(data)} bytes of it")
        magic, length, checksum = _HEAD.unpack_from(data)
        blob = data[_HEAD.size :]
        if magic != _MAGIC or length != address.length or checksum != zlib.crc32(blob):
            raise self._corrupt(segment, address, "its checksum does not fit")
        return blob

    def drop(self, address: Address) -> None:
        """Forget a blob; delete its segment with the last one."""
        assert isinstance(address, _BlobAddress), "addresses come from put"
        self.stored_bytes -= address.length
        segment = self._segments[address.segment]
        segment.live -= 1
        if not segment.live:  # the newest, too: a small disk would stay full of what nobody waits for
            self._delete(address.segment)

    def close(self) -> None:
        """Delete all segments; idempotent."""
        for number in list(self._segments):
            self._delete(number)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, folder: Path) -> None:
        """Take the folder for this process, and delete what an earlier one left."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._refused("the spill folder cannot be made or written", error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = list(folder.glob("*.spill"))
            for path in left:
                path.unlink()
        except OSError as error:
            os.close(lock)
            used = isinstance(error, BlockingIOError)
            raise self._refused(
                "another process uses the spill folder; give each capture its own" if used else "cannot be emptied",
                error,
            ) from error
        self._lock = lock
        if left:
            log.info("emptied the spill folder", extra={"folder": str(folder), "segments": len(left)})

    def _newest(self) -> _Segment:
        segment = self._segments.get(self._number)
        if segment is not None and segment.bytes < self._settings.segment_bytes:
            return segment
        self._number += 1
        made = _Segment(self._folder, f"{self._number:08}.spill", nameless=self._nameless)
        self._segments[self._number] = made
        return made

    @staticmethod
    def _write(segment: _Segment, parts: tuple[bytes, bytes]) -> None:
        """Write at the segment's end, whole: one call may take less than it is given."""
        data, at = memoryview(b"".join(parts)), segment.bytes
        while data:
            written = os.pwrite(segment.file.fileno(), data, at)
            data, at = data[written:], at + written

    def _delete(self, number: int) -> None:
        segment = self._segments.pop(number)
        self.file_bytes -= segment.bytes
        segment.file.close()
        if not self._nameless:
            segment.path.unlink(missing_ok=True)

    def _refused(self, message: str, error: OSError | None) -> SpillRefusedError:
        return SpillRefusedError(
            message,
            folder=str(self._folder),
            file_bytes=self.file_bytes,
            allowed_bytes=self._settings.spill_bytes_max,
            reason=str(error) if error is not None else "",
        )

    def _corrupt(self, segment: _Segment, address: _BlobAddress, reason: str) -> SpillCorruptError:
        return SpillCorruptError(
            "spilled rows are damaged on disk; their region is read again",
            path=str(segment.path),
            offset=address.offset,
            bytes=address.length,
            reason=reason,
        )
