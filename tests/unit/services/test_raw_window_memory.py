"""What a window over a raw topic says that it holds is what it takes of the process's memory."""

import ctypes
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import RowChanges
from schemas.ids import RegionId, TableId
from schemas.rawlog.record_check import CHECK_HEADER, RowsCheck, Whose, check_headers
from schemas.rawlog.region_batch import RegionBatch, SharedRecord, decode_region_batch, encode_region_batch
from schemas.rawlog.row_parts import PartJoiner
from sorters.service import raw_window
from sorters.service.raw_window import RawWindow

COUNT = 2_000


class Endless:
    """A consumer of a topic of records of ``row_count`` rows each, each with bytes of its own."""

    def __init__(self, row_count: int) -> None:
        ts = np.arange(10**17, 10**17 + row_count, dtype=np.int64)
        rows = RowChanges(
            table_id=TableId(7),
            commit_ts=ts,
            start_ts=ts - 1,
            op=np.ones(row_count, np.int8),
            key=pa.array([b"t%018d" % at for at in range(row_count)], pa.binary()),
            value=pa.array([b"v" * 100] * row_count, pa.binary()),
            old_value=pa.array([b""] * row_count, pa.binary()),
            txn_source=np.zeros(row_count, np.int64),
        )
        self.record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        ((_, self.said),) = check_headers(RowsCheck.of(rows), self.record, Whose.of(rows))
        self.at = 0

    def assign(self, partitions: list[Any]) -> None:
        self.at = partitions[0].offset

    def poll(self, _timeout_s: float) -> Any:
        offset, said = self.at, bytes(bytearray(self.said))
        self.at += 1
        return SimpleNamespace(
            error=lambda: None,
            topic=lambda: "raw",
            headers=lambda: [(CHECK_HEADER, said)],
            partition=lambda: 3,
            offset=lambda: offset,
            value=lambda: self.record,
        )

    def consume(self, count: int, timeout: float) -> list[Any]:
        return [self.poll(timeout) for _ in range(count // 10)]

    def close(self) -> None:
        """Nothing is held."""


def window_of(row_count: int, **options: Any) -> RawWindow:
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(raw_window, "offsets_consumer", lambda *_, **__: Endless(row_count))
        return RawWindow({}, "raw", **options)


def read(window: RawWindow, start: int, count: int, *, is_decoded: bool) -> None:
    joiner = PartJoiner()
    for _, _, record in window.reader(lambda: False).read_all({3: (start, start + count)}):
        whole = joiner.take(3, record)
        if is_decoded and whole is not None:
            decode_region_batch(whole)


def in_use(of_all: Callable[[], int], window: RawWindow, start: int, count: int, *, is_decoded: bool) -> int:
    before = of_all()
    read(window, start, count, is_decoded=is_decoded)
    gc.collect()
    return of_all() - before


@pytest.mark.parametrize("row_count", [1, 20])
def test_count_of_records_is_their_memory_and_that_of_a_jump_is_none_of_those_before(row_count: int) -> None:
    window = window_of(row_count)
    read(window, 0, 1, is_decoded=False)
    tracemalloc.start()
    try:
        said = window.held_bytes
        taken = in_use(lambda: tracemalloc.get_traced_memory()[0], window, 0, COUNT, is_decoded=False)
        assert window.held_bytes - said == pytest.approx(taken, rel=0.1)
        full = window.held_bytes
        far = COUNT + 2 * raw_window.JUMP_RECORDS
        given_back = in_use(lambda: tracemalloc.get_traced_memory()[0], window, far, 1, is_decoded=False)
        assert window.held_bytes < full / 10
        assert given_back == pytest.approx(window.held_bytes - full, rel=0.15)
    finally:
        tracemalloc.stop()


def test_no_more_is_decoded_than_its_bound_and_nothing_of_what_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 200_000
    monkeypatch.setattr(raw_window, "DECODED_BYTES_MAX", bound)
    window = window_of(1)
    kept: list[SharedRecord] = []
    for start in (0, 500, 200):  # also what is old, once more
        read(window, start, 300, is_decoded=True)
        records = window.take(3, start, start + 300, lambda: False) or []
        kept += [record for _, record in records if isinstance(record, SharedRecord)]
        columns = window.held_bytes - sum(record.held_bytes for record in all_kept(window))
        assert 0.9 * bound < columns <= bound
        assert columns == sum(record.columns_bytes for record in all_kept(window))
    read(window, 2 * raw_window.JUMP_RECORDS, 1, is_decoded=False)
    assert window.held_bytes == sum(record.held_bytes for record in all_kept(window))
    late = kept[-1]
    decode_region_batch(late)
    assert late.batch is not None
    assert window.held_bytes == sum(record.held_bytes for record in all_kept(window)), "it is its reader's alone"


def all_kept(window: RawWindow) -> list[SharedRecord]:
    """Every record that the window would hand out."""
    held: list[SharedRecord] = []
    at = window.first(3, 0)
    while (has_more := window._kept_of(3, at, at + 10**6))[1]:
        held += [record for _, record in has_more[1] or [] if isinstance(record, SharedRecord)]
        at += len(has_more[1] or [])
    return held


@pytest.mark.skipif(sys.platform != "linux", reason="glibc tells how much is allocated, Arrow's objects too")
@pytest.mark.parametrize("row_count", [1, 20, 400])
def test_count_of_columns_is_the_memory_of_all_that_was_allocated(row_count: int) -> None:
    env = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": os.pathsep.join(sys.path)}
    called = [sys.executable, "-m", "tests.unit.services.test_raw_window_memory", str(row_count)]
    taken, said = map(int, subprocess.run(called, env=env, check=True, capture_output=True, text=True).stdout.split())
    assert said == pytest.approx(taken, rel=0.1)


class Mallinfo2(ctypes.Structure):
    """What glibc says of its heap, in bytes."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def main() -> None:
    """Print what decoding records has taken, and what the window says of it."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2

    def allocated() -> int:
        seen = mallinfo2()
        return int(seen.uordblks + seen.hblkhd)

    window = window_of(int(sys.argv[1]))
    read(window, 0, 300, is_decoded=True)
    said = window.held_bytes
    taken = in_use(allocated, window, 300, 600, is_decoded=True)
    print(taken, window.held_bytes - said)


if __name__ == "__main__":
    main()
