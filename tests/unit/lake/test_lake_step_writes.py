"""The tables of a step are written some at a time: the small ones, and never two versions of one table."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.run.lake.at_once import AT_ONCE
from sorters.run.lake.held_changes import TableChanges
from sorters.run.lake.step_writes import SMALL_BYTES, write_step
from sorters.run.lake.tables import LakeTables, Written

PATIENCE_S = 30.0
STEP = cast("Cut", None)


@dataclass
class _Tables:
    """Notes what is written, and how much at once."""

    meets: threading.Barrier | None = None
    created: list[str] = field(default_factory=list)
    written: list[tuple[str, int]] = field(default_factory=list)
    at_work: set[str] = field(default_factory=set)
    beside: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self, version: TableVersion) -> str:
        return version.name

    def create(self, versions: Any, step: object, is_stopping: object) -> None:
        self.created = [version.name for version in versions]

    def write(self, changes: TableChanges, step: object) -> Written:
        name = changes.version.name
        with self.lock:
            self.at_work.add(name)
        if self.meets is not None:
            self.meets.wait(PATIENCE_S)
        with self.lock:
            self.beside[name, changes.version.version] = self.at_work - {name}
            self.at_work.remove(name)
            self.written.append((name, changes.version.version))
        return Written(1, by_spark=name == "t0")


def _changes(name: str, version: int = 1, size: int = 10) -> TableChanges:
    changes = TableChanges(cast("TableVersion", SimpleNamespace(name=name, version=Ts(version))), (), Path())
    changes.add(pa.table({"v": pa.array([b"x" * size], pa.binary())}))
    return changes


def _write(tables: _Tables, gathered: list[TableChanges], *, stops: bool = False) -> Written | None:
    return write_step(cast("LakeTables", tables), gathered, STEP, lambda: stops)


def test_small_lake_tables_of_a_step_are_written_at_once_and_counted() -> None:
    tables = _Tables(threading.Barrier(AT_ONCE))
    gathered = [_changes(f"t{number}") for number in range(2 * AT_ONCE)]
    assert _write(tables, gathered) == Written(2 * AT_ONCE, by_spark=True)
    assert tables.created == [f"t{number}" for number in range(2 * AT_ONCE)]


def test_versions_of_a_lake_table_are_written_in_their_order_and_large_ones_alone() -> None:
    tables = _Tables()
    gathered = [_changes("twice"), _changes("large", size=SMALL_BYTES + 1), _changes("twice", 2), _changes("small")]
    assert _write(tables, gathered) == Written(4)
    assert tables.written == [("small", 1), ("twice", 1), ("large", 1), ("twice", 2)]
    assert not any(tables.beside.values())


def test_lake_changes_that_were_put_to_a_file_are_not_small(tmp_path: Path) -> None:
    changes = TableChanges(cast("TableVersion", SimpleNamespace(name="t")), ("v",), tmp_path)
    changes.add(pa.table({"v": pa.array([b"x"], pa.binary())}))
    assert changes.is_small(SMALL_BYTES)
    changes.spill()
    assert not changes.is_small(SMALL_BYTES)
    changes.close()


@pytest.mark.parametrize("count", [1, 5])
def test_lake_step_that_is_told_to_stop_says_so_and_writes_nothing_more(count: int) -> None:
    tables = _Tables()
    assert _write(tables, [_changes(f"t{number}") for number in range(count)], stops=True) is None
    assert not tables.written
