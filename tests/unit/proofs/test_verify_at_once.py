"""Both sides of a comparison are asked at once."""

import threading

import pytest

from consumers.verify.at_once import at_once

WAIT_S = 30.0


def test_at_once_runs_one_side_while_the_other_runs() -> None:
    both = threading.Barrier(2)

    def side(name: str) -> str:
        both.wait(WAIT_S)  # breaks unless the other one comes, too
        return name

    assert at_once(lambda: side("source"), lambda: side("destination")) == ("source", "destination")


def test_at_once_where_the_other_side_fails_raises_its_error() -> None:
    def fail() -> int:
        raise ValueError("destination")

    with pytest.raises(ValueError, match="destination"):
        at_once(lambda: 1, fail)


def test_at_once_where_this_side_fails_waits_for_nobody() -> None:
    is_over, was_over = threading.Event(), threading.Event()

    def long() -> int:
        is_over.wait(WAIT_S)
        was_over.set()
        return 1

    def fail() -> int:
        raise ValueError("source")

    with pytest.raises(ValueError, match="source"):
        at_once(fail, long)
    assert not was_over.is_set()
    is_over.set()
    assert was_over.wait(WAIT_S)
