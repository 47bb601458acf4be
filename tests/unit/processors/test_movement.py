"""When a processor's trouble counts as over."""

from consumers.processors.core.backoff import Movement
from schemas.ids import Ts


def at(ts: int, rows: int = 0) -> tuple[Ts, int]:
    return Ts(ts), rows


def test_partition_that_stands_is_not_well_because_others_go_on() -> None:
    movement = Movement()
    assert not movement.has_moved(Ts(0), 0, {0: at(5), 1: at(5)})
    for ts in range(6, 20):
        assert not movement.has_moved(Ts(0), 0, {0: at(5), 1: at(ts, ts)})
    assert movement.has_moved(Ts(0), 0, {0: at(6), 1: at(19, 19)}), "all have moved since the beginning"
    assert not movement.has_moved(Ts(0), 0, {0: at(7), 1: at(19, 19)})


def test_rows_at_one_ts_the_checkpoint_or_a_ddl_are_movement_too() -> None:
    movement = Movement()
    assert not movement.has_moved(Ts(1), 0, {0: at(5, 0)})
    assert movement.has_moved(Ts(1), 0, {0: at(5, 100)}), "rows of an image have one ts"
    assert movement.has_moved(Ts(2), 0, {0: at(5, 100)})
    assert movement.has_moved(Ts(2), 1, {0: at(5, 100)})
    assert not movement.has_moved(Ts(2), 1, {0: at(5, 100)})


def test_partitions_that_come_and_go_are_not_movement() -> None:
    movement = Movement()
    assert not movement.has_moved(Ts(0), 0, {})
    assert not movement.has_moved(Ts(0), 0, {0: at(5)})
    assert not movement.has_moved(Ts(0), 0, {0: at(5), 1: at(9)})
    assert not movement.has_moved(Ts(0), 0, {1: at(9)})
    assert movement.has_moved(Ts(0), 0, {1: at(10)}), "nobody waits for one that was given away"
