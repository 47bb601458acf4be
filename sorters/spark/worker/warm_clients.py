"""Kafka clients that a Python worker keeps from one task to the next: a new one connects, logs in and asks anew.

A client that is in use is in nobody else's hands, and comes back only when all that it was given is acknowledged or
read. One that failed, or whose task was given up, does not come back: its purge is the last that it does, so that
nothing of a cut that was given up is sent by the task after it.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

CLIENTS_MAX = 16
"""Clients that wait in one worker; each has threads and connections of its own."""

Client = TypeVar("Client")


class WarmClients(Generic[Client]):
    """The clients of one kind in one worker, by what they were made for."""

    def __init__(self, drop: Callable[[Client], None], clients_max: int = CLIENTS_MAX) -> None:
        """``drop`` ends a client: one that failed, or the one that waited longest when there are too many."""
        self._drop, self._clients_max = drop, clients_max
        self._waiting: dict[Hashable, Client] = {}

    def waiting(self) -> list[Client]:
        """Return the clients that wait."""
        return list(self._waiting.values())

    @contextmanager
    def lend(self, made_for: Hashable, make: Callable[[], Client]) -> Iterator[Client]:
        """Yield a client that was made for this, or a new one; it is kept if what is done with it ends well.

        Leaving by any exception, also that of a generator that is closed, drops it.
        """
        client = self._waiting.pop(made_for, None) or make()
        try:
            yield client
        except BaseException:
            self._drop(client)
            raise
        former = self._waiting.pop(made_for, None)  # of one that was lent at the same time
        self._waiting[made_for] = client
        if former is not None:
            self._drop(former)
        while len(self._waiting) > self._clients_max:
            self._drop(self._waiting.pop(next(iter(self._waiting))))
