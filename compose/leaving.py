"""How a process of ours ends: by its exit handlers, not by taking the interpreter apart.

Threads of gRPC and librdkafka, and daemon threads that wait in them, are still there when a command is done. A thread
that comes back from C into an interpreter that is being taken apart is ended wherever it stands, frames of C++
included, and now and then the process dies of it by a signal: what ended well has then failed for whoever waits for it.
"""

import atexit
import contextlib
import logging
import os
import sys


class Leaving:
    """Ends the process, once Python's exit handlers have run."""

    def __init__(self) -> None:
        """Take the last turn among the exit handlers: they run in reverse, so this comes before all others."""
        self._status: int | None = None
        atexit.register(self._leave)

    def done(self, status: int) -> None:
        """Note the exit status. Without one (an error that nobody caught) the interpreter ends as always."""
        self._status = status

    def _leave(self) -> None:
        if self._status is None:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is None:  # `>&-`
                continue
            try:
                with contextlib.suppress(ValueError):  # it is closed
                    stream.flush()
            except OSError:
                return  # what is printed gets nowhere: Python says so, and ends with a status of its own
        os._exit(self._status)
