"""A thread that looks at what has been written and does what follows from it, for as long as a reign lasts."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from edges.zookeeper.session import LeaseLostError
from schemas.errors import BusError, InvariantBrokenError

log = logging.getLogger(__name__)

BUSY_SHARE_MAX: Final = 0.1
"""Of the time, in looks."""


class LookThread:
    """Calls ``look`` again and again.

    ::

        looking --LeaseLostError--> over        (the capture notices too, and ends its reign)
           |  ^
           |  +--any other BusError             (said once; the next look may work)
           +-----a bug: on_fatal--> over
    """

    def __init__(
        self,
        subject: str,
        look: Callable[[], None],
        on_fatal: Callable[[BusError], None],
        *,
        rest_s: float,
        rest_s_max: float | None = None,
    ) -> None:
        """``subject`` names what is looked at, in the plural; ``on_fatal`` takes a bug, after which nobody looks.

        Between two looks are ``rest_s``, and more where looks take long: up to ``rest_s_max``.
        """
        self._subject, self._look, self._on_fatal = subject, look, on_fatal
        self._rest_s, self._rest_s_max = rest_s, max(rest_s, rest_s_max or 0.0)
        self._failing: str | None = None
        """The code of what the latest look failed with."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=subject.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Return once no look is under way any more; it need not have been started."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            rest_s = 0.0
            while not self._stopping.wait(rest_s):
                began_at_s = time.monotonic()
                self._try_look()
                busy_s = time.monotonic() - began_at_s
                rest_s = min(max(self._rest_s, busy_s / BUSY_SHARE_MAX), self._rest_s_max)
        except LeaseLostError as error:
            log.warning("%s are not looked at any more", self._subject, extra={"code": error.code, "error": str(error)})
        except Exception as error:
            log.exception("%s are not looked at any more", self._subject)
            reason = InvariantBrokenError(f"{self._subject} are not looked at any more", reason=repr(error))
            self._on_fatal(error if isinstance(error, BusError) else reason)

    def _try_look(self) -> None:
        try:
            self._look()
        except (LeaseLostError, InvariantBrokenError):
            raise
        except BusError as error:
            if self._failing != error.code:
                extra = {"code": error.code, "error": str(error)}
                log.warning("%s cannot be looked at", self._subject, extra=extra)
            self._failing = error.code
            return
        if self._failing is not None:
            log.info("%s can be looked at again", self._subject)
        self._failing = None
