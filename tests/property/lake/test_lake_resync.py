"""A resync of a lake table: rows of before that no chunk has go, none that was written since, over restarts too."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, opening_of
from sorters.core.lake.resync import LakeResync, TableStep, resync_after
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


def _step(*chunks: ImageChunk, waiting: frozenset[TableId] = frozenset({TABLE}), has_begun: bool = True) -> TableStep:
    """Return a step of a table that is resynced."""
    table = frozenset({TABLE})
    return TableStep(table_id=TABLE, partitions=table, waiting=waiting, has_begun=has_begun, chunks=chunks)


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
            note = resync_after(note, _step(chunk, has_begun=ts > min(chunks)), before)
            assert note is not None and note.is_whole(_step(chunk)) is (ts == whole_at)
        if note is not None and note.is_whole(_step()):
            files = {key: number for key, number in files.items() if number > note.files_upto}
            note = None
        if note is not None and ts in restarts:
            note = LakeResync.decode(note.encode())
    assert set(files) == upstream


def test_a_chunk_without_its_opening_takes_nothing_away() -> None:
    opening, *rest = _chunks({3}, 1)
    assert resync_after(None, _step(*rest), 5) is None
    table = frozenset({TABLE})
    begun = resync_after(None, replace(_step(opening, has_begun=False), upto_ts=Ts(50)), 5)
    assert begun == LakeResync(TABLE, 5, table, (opening.keys,), since_ts=Ts(50))
    assert resync_after(begun, replace(_step(), upto_ts=Ts(60)), 9) == begun
    again = resync_after(begun, replace(_step(opening, has_begun=False), upto_ts=Ts(70)), 9)
    assert again == LakeResync(TABLE, 9, table, (opening.keys,), since_ts=Ts(70)), "asked for anew"
    assert resync_after(begun, _step(waiting=frozenset()), 9) is None, "over by the frontier"
    assert resync_after(begun, replace(_step(), table_id=TableId(8)), 9) is None, "another table's"


def test_a_note_of_a_version_without_partitions_goes_on_for_a_table_that_has_none() -> None:
    opening, *rest = _chunks(set(), 1)
    noted = LakeResync.decode(
        f'{{"table_id": 7, "files_upto": 5, "done": [["{opening.keys.start.hex()}", "{opening.keys.end.hex()}"]]}}'
    )
    assert noted.since_ts == 0, "nor did that version say since when"
    after = resync_after(noted, _step(*rest), 9)
    assert after is not None and after.is_whole(_step(*rest)) and after.files_upto == 5
    parted = replace(_step(), partitions=frozenset({TABLE, TableId(8)}))
    assert resync_after(noted, parted, 9) is None, "which chunks it had of partitions nobody knows"


def test_a_version_without_partitions_finds_no_range_of_the_table_in_a_partitioned_ones_note() -> None:
    """It takes a table for whole that has all of ``done``, and passes over what else stands there."""
    table, parts = TableId(5), (TableId(21), TableId(22), TableId(23), TableId(30))
    note = LakeResync(table, 5, frozenset(parts), (opening_of(parts[0]),), frozenset(parts[1:]), Ts(8))
    said = json.loads(note.encode())
    assert (said["partitions"], said["whole"]) == ([[21, 23], [30, 30]], [[22, 23], [30, 30]])
    assert {key[:18] for keys in said["done"] for key in keys} == {row_key(parts[0], 0).hex()[:18]}
    assert LakeResync.decode(note.encode()) == note


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"table_id": -1}',
        '{"table_id":1,"files_upto":2,"done":[["zz","00"]]}',
        '{"table_id":1,"files_upto":2,"done":[],"whole":7}',
        '{"table_id":1,"files_upto":2,"done":[],"since_ts":"soon"}',
        '{"table_id":1,"files_upto":2,"done":[],"whole":[[1,9223372036854775807]]}',
    ],
)
def test_a_note_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="note of a lake table"):
        LakeResync.decode(text)
