"""Which files a flush writes, and how a crash in the middle of one is undone.

    data files → the state (offset, position, the last file of each folder) → index files → metadata

The state is one object a partition, put whole. Before it is there, new data files are leftovers: nobody's index names
them, and whoever takes the partition over writes their numbers anew, as soon as rows for that folder come; and they do,
as those in the leftovers come again. After it, index files follow from it, and are written again at the next start.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from consumers.processors.core.storage.partition import FolderLines, NotedEnd
from consumers.processors.core.storage.paths import PathForm
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.json_text import read_int, read_json, read_text
from schemas.sink.storage_rows import FolderForm

STATE_FOLDER = ".tidebus"
"""Below the root; without an extension, and with a dot, so that nobody takes a state for data."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to write."""

    folder: str
    name: str
    chunks: tuple[bytes | memoryview, ...]

    @property
    def path(self) -> str:
        """Below the sink's root."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What stands in the storage about a partition. ``last_files``: by folder, of the last flush."""

    end: NotedEnd
    last_files: Mapping[str, str]


def state_path(changefeed: str, partition: int) -> str:
    """Return where a partition's state stands; ``changefeed`` names this life of it."""
    return f"{STATE_FOLDER}/{changefeed}/partition-{partition}"


def encode_state(state: PartitionState) -> bytes:
    """Return the state's bytes: JSON, for people too."""
    end = state.end
    return json.dumps(
        {
            "offset": end.offset,
            "last": end.last.hex(),
            "watermark_ts": end.watermark_ts,
            "last_files": dict(state.last_files),
        }
    ).encode()


def decode_state(data: bytes, path: str) -> PartitionState:
    """Read a state.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = read_json(data)
        end = NotedEnd(
            read_int(raw["offset"], bits=63), bytes.fromhex(raw["last"]), Ts(read_int(raw["watermark_ts"], bits=63))
        )
        return PartitionState(end, {folder: read_text(name) for folder, name in raw["last_files"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("state of a storage sink does not decode", path=path, reason=repr(error)) from error


def data_files(
    paths: PathForm, form: FolderForm, lines: FolderLines, folder: str, first_number: int, file_bytes_max: int
) -> Iterator[DataFile]:
    """Yield the files that hold the lines of one folder, numbered from ``first_number`` on.

    A file ends at the chunk that takes it to ``file_bytes_max``: lines are not cut, and a chunk is at most a message.
    """
    head = form.file_head.encode()
    number, chunks, size = first_number, [], 0
    for chunk in lines.chunks:
        chunks.append(chunk)
        size += len(chunk)
        if size >= file_bytes_max:
            yield DataFile(folder, paths.file_name(number), (*_head(head), *chunks))
            number, chunks, size = number + 1, [], 0
    if chunks:
        yield DataFile(folder, paths.file_name(number), (*_head(head), *chunks))


def _head(head: bytes) -> tuple[bytes, ...]:
    return (head,) if head else ()


def encode_metadata(checkpoint_ts: Ts) -> bytes:
    """Return the metadata file: everything up to ``checkpoint_ts`` is in files."""
    return b'{"checkpoint-ts":%d}' % checkpoint_ts
