"""An operator's orders to a reign, from any thread: taken at the owner's next tick and answered then.

:class:`ReignOrders` is what the API asks of an owner (``consumers.control.api.backend.Scheduling``).
"""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from consumers.control.owner.figures.owner_figures import SchedulerFigures
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, TableId

Answer = TypeVar("Answer")
ANSWER_S = 5.0
"""For an order; the owner ticks each 50 ms or sooner, and one that waits for Kafka has other worries."""
ORDERS_MAX = 100


class NotOwnerError(BusError):
    """This reign is over: ask the next owner."""

    code, action = "scheduling.not_owner", Action.RETRY


class OwnerBusyError(BusError):
    """The owner has not come to the order, and will not: nothing was done."""

    code, action = "scheduling.owner_busy", Action.RETRY


class Schedules(Protocol):
    """What a reign does at its tick; as ``consumers.control.api.backend.Scheduling``, but for one thread."""

    def check_ready(self) -> None:
        """Raise unless it schedules."""

    def tables(self) -> Mapping[CaptureId, Collection[TableId]]:
        """Return the tables of each capture."""

    def figures(self) -> SchedulerFigures:
        """Return how the spans are spread."""

    def drain(self, capture: CaptureId) -> int:
        """Move all spans of a capture away; return how many it has."""

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        """Move a table."""

    def rebalance(self) -> None:
        """Give every capture its share."""

    def resign(self) -> None:
        """End."""


class ReignOrders:
    """The queue between; :meth:`work_off` and :meth:`close` are the reign's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[Schedules], object], Future[Any]]] = []
        self._closed = False

    def check_ready(self) -> None:
        """Raise unless every capture has answered this owner and their versions go together.

        Raises:
            NotInitializedError: a capture has not answered.
            VersionMismatchError: nothing new is begun.
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        self._ask(lambda reign: reign.check_ready())

    def tables(self) -> Mapping[CaptureId, Collection[TableId]]:
        """Return the tables that each capture pulls or is about to pull; a split one may be at several.

        Raises:
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        return self._ask(lambda reign: reign.tables())

    def figures(self) -> SchedulerFigures:
        """Return how the spans are spread over the captures, for the metrics.

        Raises:
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        return self._ask(lambda reign: reign.figures())

    def drain(self, capture: CaptureId) -> int:
        """Move all spans of a capture away; return how many it has now.

        Raises:
            NotInitializedError, DrainRefusedError: not now.
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        return self._ask(lambda reign: reign.drain(capture))

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        """Move a table, with all its spans.

        Raises:
            NotInitializedError, MoveRefusedError: not now.
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        self._ask(lambda reign: reign.move_table(table, capture))

    def rebalance(self) -> None:
        """Give every capture its share at once.

        Raises:
            NotInitializedError: too early.
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        self._ask(lambda reign: reign.rebalance())

    def resign(self) -> None:
        """End this reign; the next capture in line becomes the owner.

        Raises:
            NotOwnerError, OwnerBusyError: there is no answer.
        """
        self._ask(lambda reign: reign.resign())

    def work_off(self, reign: Schedules) -> None:
        """Do what was asked since the last call."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for order, future in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(order(reign))
            except BusError as error:
                future.set_exception(error)

    def close(self) -> None:
        """Refuse what waits and all that comes."""
        with self._lock:
            waiting, self._waiting, self._closed = self._waiting, [], True
        for _, future in waiting:
            future.cancel()

    def _ask(self, order: Callable[[Schedules], Answer]) -> Answer:
        future: Future[Answer] = Future()
        with self._lock:
            if self._closed:
                raise NotOwnerError("this capture is the owner no more")
            if len(self._waiting) >= ORDERS_MAX:
                raise OwnerBusyError("too many orders wait for the owner", allowed=ORDERS_MAX)
            self._waiting.append((order, future))
        try:
            return future.result(ANSWER_S)
        except TimeoutError as error:
            if future.cancel():
                raise OwnerBusyError("the owner does not come to it", waited_s=ANSWER_S) from error
            return future.result()
        except CancelledError as error:
            raise NotOwnerError("this capture is the owner no more") from error
