"""What a lake table notes while it is resynced: which files are from before, and which keys its image has had.

    opening ─▶ mark: the newest file so far ─▶ chunks: their rows are written anew ─▶ whole: files up to the mark go

Mode upsert writes a row anew wherever a change or a chunk has it, and the old copy is deleted. So once chunks have had
all keys, what still stands in a file of before is in no chunk: the table of TiDB has it no more. What came since the
mark stands in other files, so nothing of it is undone. The note is a property of the table and moves with main.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.json_text import read_int, read_json
from schemas.rawlog.images import ImageChunk, KeyRange, is_opening, merge_keys, missing_keys


@dataclass(frozen=True, slots=True)
class LakeResync:
    """A resync under way."""

    table_id: TableId
    files_upto: int
    """Iceberg's sequence number of the newest files that were there when it began."""
    done: tuple[KeyRange, ...] = ()
    """Which keys its chunks have had; ascending, no two touch."""

    @property
    def is_whole(self) -> bool:
        """Whether its chunks have had every key."""
        return not missing_keys(KeyRange.of_table(self.table_id), self.done)

    def encode(self) -> str:
        """Return the property's text."""
        done = [[keys.start.hex(), keys.end.hex()] for keys in self.done]
        return json.dumps({"table_id": self.table_id, "files_upto": self.files_upto, "done": done})

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the property.

        Raises:
            CorruptDataError: it is none.
        """
        try:
            raw = read_json(text)
            done = tuple(KeyRange(bytes.fromhex(start), bytes.fromhex(end)) for start, end in raw["done"])
            return cls(TableId(read_int(raw["table_id"], bits=63)), read_int(raw["files_upto"], bits=63), done)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError("note of a lake table's resync does not decode", note=text[:200]) from error


def resync_after(before: LakeResync | None, chunks: Iterable[ImageChunk], files_upto: int) -> LakeResync | None:
    """Return what a table notes after chunks of a resync; None: none of them belongs to one that it saw begin.

    Args:
        before: what it notes now.
        chunks: of one table, that go out together.
        files_upto: the sequence number of its newest files, without those of these chunks.
    """
    noted = before
    for chunk in sorted(chunks, key=lambda chunk: chunk.keys):
        if is_opening(chunk.keys):
            noted = LakeResync(chunk.table_id, files_upto)
        if noted is not None and noted.table_id == chunk.table_id:
            noted = replace(noted, done=merge_keys([*noted.done, chunk.keys]))
    return noted
