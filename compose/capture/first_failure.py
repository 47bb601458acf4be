"""What ends a capture: the first error of any of its parts."""

import threading

from schemas.errors import BusError


class FirstFailure:
    """The first error of any part, told from its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: BusError | None = None

    def set(self, error: BusError) -> None:
        """Note an error; later ones follow from it."""
        with self._lock:
            self._error = self._error or error

    def check(self) -> None:
        """Raise what was noted.

        Raises:
            BusError: what was noted.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
