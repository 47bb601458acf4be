"""Lake tables are made some at a time: what becomes of each is its own, and nothing is begun that must not be."""

import logging
import threading
from collections.abc import Callable
from typing import cast

import pytest

from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.lake.errors import LakeSchemaError, LakeTakenError
from sorters.run.lake.at_once import AT_ONCE, at_once
from sorters.run.lake.creation import Created, NewTable, create_each
from sorters.run.lake.names import LakeName
from sorters.run.lake.table import LakeTable

PATIENCE_S = 30.0


def _wanted(count: int) -> list[NewTable]:
    version = cast("TableVersion", None)  # nobody here looks at it
    names = [LakeName(("s",), f"t{number}") for number in range(count)]
    return [NewTable(name, version, Ts(1), image_to_come=False, newest_tag=None) for name in names]


def _table(new: NewTable) -> LakeTable:
    return cast("LakeTable", f"table {new.name}")


def _create_each(
    wanted: list[NewTable],
    create: Callable[[NewTable], LakeTable] = _table,
    check_lease: Callable[[], None] = lambda: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Created:
    return create_each(wanted, create, check_lease, is_stopping)


def test_lake_tables_are_made_so_many_at_once_and_no_more() -> None:
    meets, at_work, most, lock = threading.Barrier(AT_ONCE), [0], [0], threading.Lock()

    def create(new: NewTable) -> LakeTable:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        meets.wait(PATIENCE_S)
        with lock:
            at_work[0] -= 1
        return _table(new)

    wanted = _wanted(3 * AT_ONCE)
    created = _create_each(wanted, create)
    assert created.tables == {new.name: _table(new) for new in wanted}
    assert (created.errors, most[0]) == ({}, AT_ONCE)


def test_lake_table_that_is_refused_keeps_no_other_from_being_made_and_the_first_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted, others_are_refused = _wanted(40), threading.Event()

    def create(new: NewTable) -> LakeTable:
        if new is wanted[5]:
            others_are_refused.wait(PATIENCE_S)
            raise LakeSchemaError("refused", table="t5")
        if new is wanted[30]:
            others_are_refused.set()
            raise LakeTakenError("taken", table="t30")
        return _table(new)

    created = _create_each(wanted, create)
    assert {new.name.table for new in wanted if new.name not in created.tables} == {"t5", "t30"}
    assert set(created.errors) == {wanted[5].name, wanted[30].name}
    with caplog.at_level(logging.ERROR), pytest.raises(LakeSchemaError, match="t5"):
        created.raise_first(wanted)
    assert [record.__dict__["table"] for record in caplog.records] == ["s.t30"]


def test_lake_catalog_that_fails_is_asked_for_no_further_table() -> None:
    begun = list[LakeName]()

    def create(new: NewTable) -> LakeTable:
        begun.append(new.name)
        raise ConnectionError("no answer")

    wanted = _wanted(10 * AT_ONCE)
    created = _create_each(wanted, create)
    assert len(begun) <= AT_ONCE
    assert set(created.errors) == set(begun) and not created.tables
    with pytest.raises(ConnectionError):
        created.raise_first(wanted)


def test_lake_tables_are_not_made_by_who_has_lost_the_lease() -> None:
    begun = list[LakeName]()

    def lost() -> None:
        raise InvariantBrokenError("somebody else writes")

    def create(new: NewTable) -> LakeTable:
        begun.append(new.name)
        return _table(new)

    wanted = _wanted(20)
    created = _create_each(wanted, create, lost)
    assert not begun and not created.tables
    with pytest.raises(InvariantBrokenError):
        created.raise_first(wanted)


@pytest.mark.parametrize("count", [1, 20])
def test_lake_tables_that_were_not_begun_when_a_run_stops_are_neither_made_nor_failed(count: int) -> None:
    assert _create_each(_wanted(count), is_stopping=lambda: True) == Created()


def test_lake_calls_at_once_answer_in_order_and_the_first_that_failed_is_raised() -> None:
    assert at_once(lambda number: number * 2, range(50), "double") == [number * 2 for number in range(50)]
    later = threading.Event()

    def fail(number: int) -> None:
        if number == 3:
            later.wait(PATIENCE_S)
            raise LakeTakenError("taken", table="t3")
        if number == 5:
            later.set()
            raise LakeSchemaError("refused", table="t5")

    with pytest.raises(LakeTakenError, match="t3"):
        at_once(fail, range(20), "fail")
