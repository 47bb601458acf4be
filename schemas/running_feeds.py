"""Which changefeeds a sorter service's threads are working for now: a file, mapped into the service's memory.

First SLOT_BYTES that begin with the number of its heartbeats (u64, big-endian; the rest is zeros), which grows about
once a second while the process can run Python. Then a slot of SLOT_BYTES for each thread: ``namespace/id`` in UTF-8,
filled up with zeros, and in the last THREAD_BYTES which thread it is (u64, big-endian; the highest bit: it only
prepares, and waits for others most of that time); only zeros: it is idle. The pages outlive the process, however it
ends, so its capture reads there which changefeeds were at work when it died, or that it stands still.
"""

import contextlib
import hashlib
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from schemas.errors import Action, BusError, InvariantBrokenError

SLOT_BYTES: Final = 288
"""Namespace and id have at most 128 bytes each."""
THREAD_BYTES: Final = 8
SLOTS_MAX: Final = 65_536
_FILE_PART_BYTES_MAX: Final = 200
_ONLY_PREPARES: Final = 1 << 63
_BEATS: Final = struct.Struct(">Q")
FeedName = tuple[str, str]
"""Namespace and id of a changefeed."""


@dataclass(frozen=True, slots=True)
class ThreadWork:
    """What one thread works for."""

    name: FeedName
    thread: int
    """Its ident."""
    only_prepares: bool


class RunningFileError(BusError):
    """The file in which a service notes its running changefeeds cannot be made or read."""

    code, action = "sorter.running_file", Action.RETRY


def running_file(data_dir: Path, service: str) -> Path:
    """Return where the service of this id, with this data folder, keeps the file."""
    return data_dir / f"running-{_file_part(service)}"


def crash_file(data_dir: Path, service: str) -> Path:
    """Return where that service lets Python's handler of fatal signals (:mod:`faulthandler`) write."""
    return data_dir / f"running-{_file_part(service)}.crash"


def remove_files(data_dir: Path, service: str) -> None:
    """Remove both files of a service that has ended, where they are."""
    for file in (running_file(data_dir, service), crash_file(data_dir, service)):
        with contextlib.suppress(OSError):  # as good as there: nobody reads them any more
            file.unlink(missing_ok=True)


def remove_all_files(data_dir: Path) -> None:
    """Remove these files of all services, as long as none that matters has begun."""
    for file in data_dir.glob("running-*"):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _file_part(service: str) -> str:
    """Return what stands for a service in names of files, which have at most 255 bytes: in the id of one that runs a
    single changefeed are that one's namespace and id.
    """
    name = service.encode()
    return service if len(name) <= _FILE_PART_BYTES_MAX else hashlib.sha256(name).hexdigest()


class RunningFeeds:
    """The service's side. Each thread writes to its own slot; slots need no lock between them."""

    def __init__(self, path: Path, slots: int) -> None:
        """Make the file anew, with all slots idle.

        Raises:
            RunningFileError: it cannot be made.
        """
        if not 0 < slots <= SLOTS_MAX:
            raise InvariantBrokenError("so many slots cannot be", slots=slots, slots_max=SLOTS_MAX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # another process may still have the last one mapped
            path.write_bytes(bytes(SLOT_BYTES * (1 + slots)))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), SLOT_BYTES * (1 + slots))
        except OSError as error:
            raise RunningFileError("file of running changefeeds cannot be made", path=path, reason=error) from error
        self.slots = slots
        self._beats = 0

    def beat(self) -> None:
        """Say that the process runs Python."""
        self._beats += 1
        _BEATS.pack_into(self._map, 0, self._beats)

    def note(self, slot: int, name: FeedName, thread: int = 0, *, only_prepares: bool = False) -> None:
        """Say, before it begins, what the thread of this slot works for; ``thread`` is its ident."""
        text = "/".join(name).encode()
        if len(text) > SLOT_BYTES - THREAD_BYTES:
            raise InvariantBrokenError("name of a changefeed is too long for its slot", name=name)
        number = thread | _ONLY_PREPARES if only_prepares else thread
        self._write(slot, text.ljust(SLOT_BYTES - THREAD_BYTES, b"\0") + number.to_bytes(THREAD_BYTES, "big"))

    def clear(self, slot: int) -> None:
        """Say that the thread of this slot is idle."""
        self._write(slot, b"")

    def note_alone(self, name: FeedName | None) -> None:
        """Say that the process ends for this changefeed's sake, whatever the threads do; None: for nobody's."""
        self._map[SLOT_BYTES:] = bytes(SLOT_BYTES * self.slots)
        if name is not None:
            self.note(0, name)

    def close(self) -> None:
        """Unmap the file and leave it."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, slot: int, text: bytes) -> None:
        if not 0 <= slot < self.slots:
            raise InvariantBrokenError("there is no such slot", slot=slot, slots=self.slots)
        self._map[(slot + 1) * SLOT_BYTES : (slot + 2) * SLOT_BYTES] = text.ljust(SLOT_BYTES, b"\0")


def read_threads(path: Path) -> list[ThreadWork]:
    """Return what the slots name; nothing where there is no file.

    A slot that was torn by the death of its writer, or says nothing that could be a changefeed, is left out.

    Raises:
        RunningFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(SLOT_BYTES)
            content = file.read(SLOT_BYTES * SLOTS_MAX)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunningFileError("file of running changefeeds cannot be read", path=path, reason=error) from error
    slots = (content[at : at + SLOT_BYTES] for at in range(0, len(content), SLOT_BYTES))
    texts = ((slot[:-THREAD_BYTES].rstrip(b"\0"), int.from_bytes(slot[-THREAD_BYTES:], "big")) for slot in slots)
    return [
        ThreadWork(name, number & ~_ONLY_PREPARES, bool(number & _ONLY_PREPARES))
        for text, number in texts
        if (name := _name(text)) is not None
    ]


def read_crashed_thread(path: Path) -> int | None:
    """Return the ident of the thread that a crash file names; None: nothing has crashed, or nobody knows."""
    try:
        words = path.read_text(errors="replace")
    except OSError:
        return None
    idents = re.findall(r"^Current thread 0x([0-9a-f]{1,16}) ", words, re.MULTILINE)
    return int(idents[-1], 16) if idents else None


def read_beats(path: Path) -> int:
    """Return how often the heart of the file's writer has beaten; 0: not yet, or there is no file.

    Raises:
        RunningFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_BEATS.size)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RunningFileError("file of running changefeeds cannot be read", path=path, reason=error) from error
    return int(_BEATS.unpack(head)[0]) if len(head) == _BEATS.size else 0


def _name(slot: bytes) -> FeedName | None:
    try:
        namespace, separator, changefeed_id = slot.decode().partition("/")
    except UnicodeDecodeError:
        return None
    is_name = separator and namespace and changefeed_id and "/" not in changefeed_id and "\0" not in changefeed_id
    return (namespace, changefeed_id) if is_name else None
