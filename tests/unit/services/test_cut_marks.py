"""Marks at which the epochs of changefeeds end that are behind together."""

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.service.cut_marks import CROWD, CUT_BYTES, NEAR, CutMarks

RECORD_BYTES = CUT_BYTES / 10


def marks(*highs: tuple[int, int]) -> CutMarks:
    made = CutMarks()
    for offset, high in enumerate(highs):
        made.take(high, offset + 1, RECORD_BYTES)
    return made


def test_epochs_of_a_crowd_end_at_the_same_marks_and_those_of_who_is_beyond_the_last_one_nowhere() -> None:
    made = marks((0, 0), (4, 5), (5, 5), (5, 5), (9, 9), (9, 11), (12, 12))
    crowd = [0] * CROWD
    assert [made.end(start, crowd) for start in range(8)] == [3, 3, 3, 6, 6, 6, None, None]


def test_who_is_behind_with_few_others_goes_as_far_as_there_is_anything() -> None:
    made = marks((0, 0), (10, 0), (20, 0))
    assert made.end(0, [0] * (CROWD - 1) + [2] * 100) is None
    assert made.end(0, [0] * (CROWD - 1) + [1] * 100) == 2
    assert made.end(2, [0] * (CROWD - 1) + [2]) == 3


def test_where_there_are_many_even_one_alone_stops_at_the_marks_that_are_near() -> None:
    made = marks(*((number * 10, 0) for number in range(NEAR + 3)))
    assert len(made._marks) == NEAR + 2
    assert [made.end(start, [start], is_full=True) for start in (0, 1, 2)] == [None, None, None]
    assert [made.end(start, [start], is_full=True) for start in (3, NEAR + 2)] == [4, NEAR + 3]
    assert made.end(3, [3]) is None
    assert made.end(0, [0] * CROWD, is_full=True) == 2, "as ever"


def test_marks_that_nobody_can_ask_for_are_forgotten_and_those_after_them_are_not() -> None:
    made = marks((0, 0), (10, 0), (20, 0), (30, 0))
    made.forget(3)
    assert made._marks == [4]
    assert made.end(3, [3] * CROWD) == 4


def test_without_a_size_of_records_there_are_no_marks() -> None:
    made = CutMarks()
    for offset in range(100):
        made.take((offset * 1_000_000,), offset + 1, 0.0)
    assert made.end(0, [0] * 100) is None


def test_marks_go_on_where_an_owner_begins_below_its_predecessor() -> None:
    made = marks((100, 0), (5, 0), (14, 0), (15, 0))
    assert made._marks == [4]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_cuts_of_a_crowd_are_the_same_from_the_first_mark_on_that_both_have_passed(
    landings: list[int], first: int, second: int
) -> None:
    """Whoever walks from mark to mark runs the same cuts as all others, wherever they have begun."""
    made, high = CutMarks(), 0
    for offset, landed in enumerate(landings):
        high += landed
        made.take((high,), offset + 1, RECORD_BYTES)

    def walk(start: int) -> list[int]:
        ends = []
        while (end := made.end(start, [0] * CROWD)) is not None:
            assert end > start
            ends.append(end)
            start = end
        return ends

    ends, others = walk(first), walk(second)
    assert ends[-len(others) :] == others or others[-len(ends) :] == ends or not ends or not others
    between = [sum(landings[start:end]) for start, end in zip(made._marks, made._marks[1:], strict=False)]
    assert all(landed >= 10 for landed in between)
