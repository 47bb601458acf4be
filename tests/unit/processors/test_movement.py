"""When a processor's trouble counts as over."""

from collections.abc import Mapping

from consumers.processors.core.backoff import Movement
from schemas.ids import Ts


def at(ts: int, rows: int = 0) -> tuple[Ts, int]:
    return Ts(ts), rows


def moves(
    movement: Movement, ts: int, ddl: int, partitions: Mapping[int, tuple[Ts, int]], *, is_steady: bool = True
) -> bool:
    return movement.has_moved(Ts(ts), ddl, partitions, is_steady=is_steady)


def test_partition_that_stands_is_not_well_because_others_go_on() -> None:
    movement = Movement()
    assert not moves(movement, 0, 0, {0: at(5), 1: at(5)})
    for ts in range(6, 20):
        assert not moves(movement, 0, 0, {0: at(5), 1: at(ts, ts)})
    assert moves(movement, 0, 0, {0: at(6), 1: at(19, 19)}), "all have moved since the beginning"
    assert not moves(movement, 0, 0, {0: at(7), 1: at(19, 19)})


def test_rows_at_one_ts_the_checkpoint_or_a_ddl_are_movement_too() -> None:
    movement = Movement()
    assert not moves(movement, 1, 0, {0: at(5, 0)})
    assert moves(movement, 1, 0, {0: at(5, 100)}), "rows of an image have one ts"
    assert moves(movement, 2, 0, {0: at(5, 100)})
    assert moves(movement, 2, 1, {0: at(5, 100)})
    assert not moves(movement, 2, 1, {0: at(5, 100)})


def test_partitions_that_come_and_go_are_not_movement() -> None:
    movement = Movement()
    assert not moves(movement, 0, 0, {})
    assert not moves(movement, 0, 0, {0: at(5)})
    assert not moves(movement, 0, 0, {0: at(5), 1: at(9)})
    assert not moves(movement, 0, 0, {1: at(9)})
    assert moves(movement, 0, 0, {1: at(10)}), "nobody waits for one that was given away"


def test_processor_that_leads_again_has_not_moved_by_that() -> None:
    movement = Movement()
    for _ in range(3):  # each run fails, and another one leads meanwhile
        assert not moves(movement, 0, 0, {})
        assert not moves(movement, 7, 0, {})
    assert moves(movement, 8, 0, {}), "further than any run before"


def test_run_that_comes_as_far_as_the_one_before_it_has_not_moved() -> None:
    movement = Movement()
    for rows in (100, 60, 100):
        assert not moves(movement, 0, 0, {0: at(0), 1: at(0)}), "it is not known yet where they stand"
        assert not moves(movement, 0, 0, {0: at(0), 1: at(5)})
        assert not moves(movement, 0, 0, {0: at(5), 1: at(5)})
        assert not moves(movement, 0, 0, {0: at(5), 1: at(5, rows)})
    assert moves(movement, 0, 0, {0: at(6), 1: at(6)})


def test_idle_partitions_of_a_run_that_has_just_begun_do_not_stand_for_the_one_that_it_fails_by() -> None:
    movement = Movement()
    for ts in range(6, 12):  # each run takes the idle one first, then the other, by which it fails
        assert not moves(movement, 0, 0, {0: at(ts)}, is_steady=False)
        assert not moves(movement, 0, 0, {0: at(ts), 1: at(5)}, is_steady=False)
    assert not moves(movement, 0, 0, {0: at(13)}, is_steady=False), "somebody else has the other one"
    assert moves(movement, 0, 0, {0: at(14)}), "and this processor has long been well without it"
