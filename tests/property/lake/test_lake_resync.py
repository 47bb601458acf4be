"""A resync of a lake table: rows of before that no chunk has go, none that was written since, over restarts too."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, opening_of
from sorters.core.lake.resync import LakeResync, resync_after
from tests.support.rawlog.raw_log import row_key

TABLE = TableId(7)
KEYS = 12
_WHOLE = KeyRange.of_table(TABLE)


def _chunk(ts: int, keys: KeyRange, table_id: TableId = TABLE) -> ImageChunk:
    return ImageChunk(
        ts=Ts(ts), number=0, attempt=0, table_id=table_id, feeds=("f",), keys=keys, partition=0, offsets=(0, 0),
        rows=0, bytes=0,
    )  # fmt: skip


def _within(chunk: ImageChunk, key: int) -> bool:
    return chunk.keys.start <= row_key(TABLE, key) < chunk.keys.end


def _chunks(borders: set[int], after_ts: int) -> list[ImageChunk]:
    """Return an opening and chunks between borders, some ts apart."""
    at = [_WHOLE.start, *(row_key(TABLE, key) for key in sorted(borders)), _WHOLE.end]
    ranges = [opening_of(TABLE), *(KeyRange(start, end) for start, end in itertools.pairwise(at))]
    return [_chunk(after_ts + 3 * (number + 1), keys) for number, keys in enumerate(ranges)]


@given(
    upstream=st.sets(st.integers(0, KEYS - 1)),
    held=st.sets(st.integers(0, KEYS - 1)),
    changes=st.dictionaries(st.integers(1, 60), st.tuples(st.integers(0, KEYS - 1), st.booleans())),
    borders=st.sets(st.integers(1, KEYS - 1), max_size=4),
    restarts=st.sets(st.integers(1, 60)),
)
def test_a_resynced_table_is_the_upstream_whatever_it_held(
    upstream: set[int],
    held: set[int],
    changes: dict[int, tuple[int, bool]],
    borders: set[int],
    restarts: set[int],
) -> None:
    """A lake by hand: which commit has written each key's row. A restart reads the note from its text again."""
    files = dict.fromkeys(held, 1)
    note, commit = None, 1
    chunks = {chunk.ts: chunk for chunk in _chunks(borders, 2)}
    whole_at = max(chunks)
    for ts in range(1, 61):
        if ts in changes:
            key, is_put = changes[ts]
            (upstream.add if is_put else upstream.discard)(key)
        chunk = chunks.get(Ts(ts))
        if ts not in changes and chunk is None:
            continue
        before, commit = commit, commit + 1
        if ts in changes:
            files.pop(changes[ts][0], None)
            if changes[ts][1]:
                files[changes[ts][0]] = commit
        if chunk is not None:
            files |= {key: commit for key in upstream if _within(chunk, key)}
            note = resync_after(note, [chunk], before)
            assert note is not None and note.is_whole is (ts == whole_at)
        if note is not None and note.is_whole:
            files = {key: number for key, number in files.items() if number > note.files_upto}
            note = None
        if note is not None and ts in restarts:
            note = LakeResync.decode(note.encode())
    assert set(files) == upstream


def test_a_chunk_without_its_opening_takes_nothing_away() -> None:
    opening, *rest = _chunks({3}, 1)
    assert resync_after(None, rest, 5) is None
    begun = resync_after(None, [opening], 5)
    assert begun == LakeResync(TABLE, 5, (opening.keys,))
    assert resync_after(begun, [], 9) == begun
    assert resync_after(begun, [_chunk(9, KeyRange.of_table(TableId(8)), TableId(8))], 9) == begun, "another table's"
    assert resync_after(begun, [opening], 9) == LakeResync(TABLE, 9, (opening.keys,)), "asked for anew"


@pytest.mark.parametrize("text", ["", "[]", '{"table_id": -1}', '{"table_id":1,"files_upto":2,"done":[["zz","00"]]}'])
def test_a_note_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="note of a lake table"):
        LakeResync.decode(text)
