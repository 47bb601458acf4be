"""Two sides are asked at the same time, so that each server computes while the other does."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Mine = TypeVar("_Mine")
_Theirs = TypeVar("_Theirs")


def at_once(mine: Callable[[], _Mine], theirs: Callable[[], _Theirs]) -> tuple[_Mine, _Theirs]:
    """Return what both return; ``theirs`` runs in a thread of its own.

    Whatever either raises is raised. Where ``mine`` fails nobody waits for ``theirs``, which may be a statement of an
    hour: its thread ends when it is answered, or with the process.
    """
    answer: Future[_Theirs] = Future()

    def ask() -> None:
        try:
            answer.set_result(theirs())
        except BaseException as error:  # raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=ask, name="verify, the other side", daemon=True).start()
    return mine(), answer.result()
