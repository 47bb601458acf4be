"""Messages from a sorter to the processors of a storage sink: lines of data files, schema files, watermarks.

A row message's **key** is where its lines go: JSON with schema, table, table version, physical partition id (or null)
and what stands first in each file; all rows of a message go to one folder. Its **value** is, for n rows:

==========  ======  =======================================================
heads       n * 25  commit_ts 8, start_ts 8, op 1 (:class:`schemas.sink.position.RowOp`), key bytes 4, line bytes 4;
                    big-endian
keys                the raw TiKV keys, one after the other
lines               what goes into the file, one after the other, each with its terminator
==========  ======  =======================================================

So a message of one row is its head, key and line, and the lines of many lie side by side: a processor writes them with
one copy. A joined message carries the position of its last row. Schema files (of DDL events and bootstraps) have no key
and a JSON value with path and content; they stand in the first partition only, as each is to be written once.

The format on a page: docs/formats/sink-topic.md §3.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.json_text import read_json
from schemas.sink.file_names import is_schema_file_path
from schemas.sink.position import Position, PositionClass, RowOp

HEADS = np.dtype([("commit_ts", ">u8"), ("start_ts", ">u8"), ("op", "u1"), ("key", ">u4"), ("line", ">u4")])
HEAD_BYTES = HEADS.itemsize
_VERSION = 1
_OP_MAX = max(RowOp)


@dataclass(frozen=True, slots=True)
class FolderForm:
    """Which folder rows go to, apart from the date."""

    schema: str
    """Empty, as the table: the folder is named by ``partition_id``, the physical table's id, alone."""
    table: str
    version: Ts
    """commit_ts of the DDL that made the table so, or the changefeed's start_ts where that is later."""
    partition_id: int | None = None
    """The physical id, of a table with partitions and if the sink separates them."""
    file_head: str = ""
    """The first line of each file, with its terminator."""


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """A file that tells a table's, or a schema's, definition; ``path`` begins below the sink's root."""

    path: str
    content: str
    is_ddl: bool
    """False: of a table as it was found; where the file is there already, a DDL has written it and it stays."""


@dataclass(frozen=True, slots=True)
class StorageRows:
    """A row message. ``heads`` is a structured array over ``HEADS``."""

    heads: npt.NDArray[np.void]
    value: bytes

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def _keys_at(self) -> int:
        return len(self.heads) * HEAD_BYTES

    def lines(self, first: int = 0) -> memoryview:
        """Return the lines of the rows from ``first`` on."""
        skipped = int(self.heads["key"].sum()) + int(self.heads["line"][:first].sum())
        return memoryview(self.value)[self._keys_at + skipped :]

    def keys_of(self, first: int) -> tuple[int, int]:
        """Return where in the message the keys of the rows from ``first`` on stand."""
        lengths = self.heads["key"]
        return self._keys_at + int(lengths[:first].sum()), self._keys_at + int(lengths.sum())

    def position(self, row: int) -> bytes:
        """Return the position of a row, as it would stand in the header of a message of its own."""
        head = self.heads[row]
        at = self._keys_at + int(self.heads["key"][:row].sum())
        key = self.value[at : at + int(head["key"])]
        op = RowOp(int(head["op"]))
        return Position(Ts(int(head["commit_ts"])), PositionClass.ROW, Ts(int(head["start_ts"])), op, key).encode()

    def positions(self) -> Iterator[bytes]:
        """Yield the positions of all rows."""
        return (self.position(row) for row in range(len(self)))


def encode_folder(form: FolderForm) -> bytes:
    """Return a row message's key."""
    parts = [_VERSION, form.schema, form.table, form.version, form.partition_id, form.file_head]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def decode_folder(key: bytes) -> FolderForm:
    """Read a row message's key.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        version, schema, table, ts, partition_id, head = read_json(key.decode("utf-8", "surrogateescape"))
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return FolderForm(
            str(schema), str(table), Ts(int(ts)), None if partition_id is None else int(partition_id), head
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptDataError("folder of a row message does not decode", key=key[:200], reason=repr(error)) from error


def decode_storage_rows(value: bytes) -> StorageRows:
    """Read a row message's value.

    Raises:
        CorruptDataError: heads, keys and lines do not add up to it.
    """
    guess = np.frombuffer(value, HEADS, len(value) // HEAD_BYTES)
    # How many rows there are is where what their heads speak of, and the heads themselves, come to the whole length.
    ends = np.cumsum(guess["key"].astype(np.int64) + guess["line"] + HEAD_BYTES)
    count = int(np.searchsorted(ends, len(value))) + 1
    if count > len(ends) or int(ends[count - 1]) != len(value):
        raise CorruptDataError("row message does not add up", bytes=len(value))
    if guess["op"][:count].max() > _OP_MAX:
        raise CorruptDataError("row message has an unknown op", bytes=len(value))
    return StorageRows(guess[:count], value)


def encode_schema_file(file: SchemaFile) -> bytes:
    """Return a DDL's or bootstrap's value."""
    return json.dumps({"path": file.path, "content": file.content, "is_ddl": file.is_ddl}).encode()


def decode_schema_file(value: bytes) -> SchemaFile:
    """Read a DDL's or bootstrap's value.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = read_json(value)
        file = SchemaFile(str(raw["path"]), str(raw["content"]), bool(raw["is_ddl"]))
        if not is_schema_file_path(file.path):
            raise ValueError(f"{file.path[:200]!r} is no path of a schema file")
        return file
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise CorruptDataError("schema file does not decode", value=value[:200], reason=repr(error)) from error
