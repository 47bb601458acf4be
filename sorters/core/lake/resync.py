"""What a lake table notes while it is resynced: which files are from before, and which keys its image has had.

    opening ─▶ mark: the newest file so far ─▶ chunks: their rows are written anew ─▶ whole: files up to the mark go

Mode upsert writes a row anew wherever a change or a chunk has it, and the old copy is deleted. So once chunks have had
all keys, what still stands in a file of before is in no chunk: the table of TiDB has it no more. What came since the
mark stands in other files, so nothing of it is undone. The note is a property of the table and moves with main.

**Partitions** are imaged each by itself, and are one lake table. All begin together, so the first opening of any sets
the mark, and the last to become whole lets the files go. One that comes later is waited for where the frontier says so;
else it has come without rows, or with those of partitions that were whole.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.json_text import read_int, read_json
from schemas.rawlog.images import (
    IdRange,
    ImageChunk,
    KeyRange,
    holds_id,
    is_opening,
    merge_ids,
    merge_keys,
    missing_keys,
)
from sorters.core.cut.cut import Cut

PARTITIONS_MAX: Final = 1 << 16
"""Of a table, many times as many as TiDB allows (8,192): what a property says is not taken for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """What a step of a cut says of a table's resync."""

    table_id: TableId
    partitions: frozenset[TableId]
    """That the table has at the step's end, by the ids that row keys carry: its own where it has none."""
    waiting: frozenset[TableId] = frozenset()
    """Of them, those that are resynced and were not whole when the step began."""
    has_begun: bool = False
    """Of one of those that are waited for a chunk went out before."""
    chunks: tuple[ImageChunk, ...] = ()
    """Of those that are waited for; they go out with the step."""
    upto_ts: Ts = Ts(0)
    """The step's end."""

    @property
    def opened(self) -> frozenset[TableId]:
        """Those whose image begins with the step."""
        return frozenset(chunk.table_id for chunk in self.chunks if is_opening(chunk))


def table_step(cut: Cut, table_id: TableId, partitions: Collection[TableId]) -> TableStep:
    """Return what a step says of a table.

    Args:
        cut: the step.
        table_id: the table's.
        partitions: as :attr:`TableStep.partitions`.
    """
    ids = frozenset(partitions)
    waiting = frozenset(each for each in ids if holds_id(cut.resync, each)) if cut.resync else frozenset()
    done = {} if cut.read_again is None else cut.read_again.done
    return TableStep(
        table_id=table_id,
        partitions=ids,
        waiting=waiting,
        has_begun=any(done.get(each) for each in waiting),
        chunks=tuple(chunk for chunk in cut.chunks if chunk.table_id in waiting),
        upto_ts=cut.upto_ts,
    )


@dataclass(frozen=True, slots=True)
class LakeResync:
    """A resync under way."""

    table_id: TableId
    files_upto: int
    """Iceberg's sequence number of the newest files that were there when it began."""
    partitions: frozenset[TableId] = frozenset()
    """That the table had then; none: a version that knew of no partitions has noted it."""
    done: tuple[KeyRange, ...] = ()
    """Which keys chunks have had, of partitions that are not whole; ascending, no two touch."""
    whole: frozenset[TableId] = frozenset()
    """Partitions all of whose keys chunks have had."""
    since_ts: Ts = Ts(0)
    """End of the step in which it began; 0: a version that did not say so has noted it last."""

    def is_whole(self, step: TableStep) -> bool:
        """Tell whether each row that the table has after a step was written anew since the mark."""
        return all(
            each in self.whole or not (each in self.partitions or each in step.waiting or self._has(each))
            for each in step.partitions
        )

    def begun_again(self, opened: Collection[TableId]) -> Self:
        """Return it with nothing done of partitions but their openings."""
        kept = (keys for keys in self.done if not any(_is_of(keys, each) for each in opened))
        openings = (KeyRange(start, start + b"\0") for start in (KeyRange.of_table(each).start for each in opened))
        return replace(self, done=merge_keys([*kept, *openings]), whole=self.whole.difference(opened))

    def with_chunk(self, chunk: ImageChunk) -> Self:
        """Return it with the keys of a chunk, if it has seen the opening of the chunk's partition."""
        if not self._has(chunk.table_id):
            return self
        done = merge_keys([*self.done, chunk.keys])
        own = [keys for keys in done if _is_of(keys, chunk.table_id)]
        if missing_keys(KeyRange.of_table(chunk.table_id), own):
            return replace(self, done=done)
        return replace(self, done=tuple(keys for keys in done if keys not in own), whole=self.whole | {chunk.table_id})

    def of_partitions(self, partitions: Collection[TableId]) -> Self:
        """Return it without what is done of partitions that are gone."""
        done = tuple(keys for keys in self.done if any(_is_of(keys, each) for each in partitions))
        return replace(self, done=done, whole=self.whole.intersection(partitions))

    def _has(self, table_id: TableId) -> bool:
        """Tell whether a partition has begun, and is not whole."""
        return any(_is_of(keys, table_id) for keys in self.done)

    def encode(self) -> str:
        """Return the property's text. Partitions are noted so that a version without them finds nothing whole."""
        done = [[keys.start.hex(), keys.end.hex()] for keys in self.done]
        said: dict[str, object] = {"table_id": self.table_id, "files_upto": self.files_upto, "done": done}
        said |= {"partitions": _ranges(self.partitions), "whole": _ranges(self.whole), "since_ts": self.since_ts}
        return json.dumps(said)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the property.

        Raises:
            CorruptDataError: it is none.
        """
        try:
            raw = read_json(text)
            done = tuple(KeyRange(bytes.fromhex(start), bytes.fromhex(end)) for start, end in raw["done"])
            return cls(
                TableId(read_int(raw["table_id"], bits=63)),
                read_int(raw["files_upto"], bits=63),
                _ids(raw.get("partitions", [])),
                done,
                _ids(raw.get("whole", [])),
                Ts(read_int(raw.get("since_ts", 0), bits=63)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError("note of a lake table's resync does not decode", note=text[:200]) from error


def resync_after(before: LakeResync | None, step: TableStep, files_upto: int) -> LakeResync | None:
    """Return what a table notes after a step; None: no resync is under way that it saw begin.

    A resync that is over by the frontier and was not whole here ends with nothing taken away.

    Args:
        before: what it notes now.
        step: one that the table has not had.
        files_upto: the sequence number of its newest files, without those of this step.
    """
    noted = before
    if noted is not None and not _goes_on(noted, step):
        noted = None
    opened = step.opened
    if opened and step.waiting == step.partitions and not step.has_begun:
        noted = LakeResync(step.table_id, files_upto, step.partitions, since_ts=step.upto_ts)
    if noted is None:
        return None
    noted = noted.of_partitions(step.partitions)
    if opened:
        noted = noted.begun_again(opened)
    for chunk in step.chunks:
        noted = noted.with_chunk(chunk)
    return noted


def _goes_on(noted: LakeResync, step: TableStep) -> bool:
    is_known = bool(noted.partitions) or step.partitions == {noted.table_id}
    return bool(step.waiting) and noted.table_id == step.table_id and is_known


def _is_of(keys: KeyRange, table_id: TableId) -> bool:
    every = KeyRange.of_table(table_id)
    return every.start <= keys.start and keys.end <= every.end


def _ranges(ids: Iterable[TableId]) -> list[list[int]]:
    return [[item.first, item.last] for item in merge_ids(IdRange(each, each) for each in ids)]


def _ids(raw: Any) -> frozenset[TableId]:
    ranges = [(read_int(first, bits=63), read_int(last, bits=63)) for first, last in raw]
    if any(first > last for first, last in ranges) or sum(last - first for first, last in ranges) > PARTITIONS_MAX:
        raise ValueError("more partitions than a table can have, or ranges that end before they begin")
    return frozenset(TableId(each) for first, last in ranges for each in range(first, last + 1))
