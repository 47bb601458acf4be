"""Calls of a catalog for many tables: each mostly waits, so some are under way at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

AT_ONCE: Final = 8
Item = TypeVar("Item")
Said = TypeVar("Said")


def at_once(do: Callable[[Item], Said], items: Sequence[Item], what: str) -> list[Said]:
    """Return what ``do`` says of each, in order; ``AT_ONCE`` are done at a time, by threads that ``what`` names. What
    the first raises that fails is raised, when those under way have ended; no further one is begun.
    """
    if len(items) <= 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), f"lake-{what}") as threads:
        return list(threads.map(do, items))
