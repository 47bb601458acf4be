"""Where each thread stands goes to the log on SIGUSR1: a sorter service has no port at which one could ask."""

import logging
import signal
import threading

from edges.thread_stacks import threads_standing

log = logging.getLogger(__name__)


def log_stacks_on_signal() -> None:
    """Answer SIGUSR1 from now on. Only the main thread may ask for signals: nothing happens in another."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _on_signal)


def _on_signal(*_: object) -> None:
    # In a thread of its own: the main one may be within a line of the log, whose stream it cannot begin to write again.
    threading.Thread(target=_log_stacks, name="asked-stacks", daemon=True).start()


def _log_stacks() -> None:
    for thread in threads_standing():
        if thread.ident != threading.get_ident():
            log.warning("thread stands", extra={"thread_name": thread.name, "stack": thread.folded()})
