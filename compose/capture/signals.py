"""What a signal tells a capture: to hand over and leave, and a second one to leave at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_signals(stopping: threading.Event, at_once: threading.Event) -> Iterator[None]:
    """Set ``stopping`` on SIGTERM and SIGINT while inside, and ``at_once`` on another one; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        (at_once if stopping.is_set() else stopping).set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
