"""`tidebus capture`: one process, in which a capture lives, ends, and starts anew under a new id.

alive --an error that may pass--> pausing --> alive under a new id     (compose.capture.life)
alive --stopped, or an error that waiting does not mend--> over
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from compose.capture.settings.options import CaptureOptions
from compose.capture.signals import stop_signals
from compose.capture.sorters import running_services
from compose.collector import OF_CAPTURE, spare_old_objects
from compose.quick_imports import quick_imports
from edges.zookeeper.session_file import SessionFile
from schemas.errors import Action, BusError
from schemas.rawlog.topic_settings import Complaint

if TYPE_CHECKING:
    from consumers.control.api.serving.server import ApiServer

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
"""The pause between two lives of a capture; it doubles while they end within a minute."""
STEADY_S = 60.0


def run_capture(options: CaptureOptions, stopping: threading.Event | None = None) -> int:
    """Serve until SIGTERM or SIGINT (or ``stopping``), hand over, and return the exit status.

    0 when it was stopped, 1 after an error that waiting does not mend.

    An error before the first registration ends it too: a wrong address should not look like patience.
    """
    stopping, at_once = stopping or threading.Event(), threading.Event()
    spare_old_objects(OF_CAPTURE)
    with (
        stop_signals(stopping, at_once),
        _session_file(options) as sessions,
        running_services(options, is_heir=sessions is not None and sessions.is_held) as services,
        _api(options) as api,
    ):
        with quick_imports():  # only now, as the service, which has as much to import, is on its way already
            from compose.capture.life import Capture
        pause_s, serving, warned = RETRY_FIRST_S, False, set[Complaint]()
        while not stopping.is_set():
            began_at = time.monotonic()
            capture = Capture(options, stopping, api, at_once, services, sessions, warned)
            try:
                capture.serve()
            except BusError as error:
                serving |= capture.registered
                if error.action is not Action.RETRY or not serving:
                    log.error("capture ends", extra={"code": error.code, "error": str(error)})
                    return 1
                pause_s = RETRY_FIRST_S if time.monotonic() - began_at > STEADY_S else min(pause_s * 2, RETRY_MAX_S)
                log.warning("capture starts anew", extra={"code": error.code, "error": str(error), "in_s": pause_s})
                stopping.wait(pause_s)
    log.info("capture stopped")
    return 0


def _session_file(options: CaptureOptions) -> AbstractContextManager[SessionFile | None]:
    """Return where the sessions of this process are noted; None: it has no folder that a next one would have, too."""
    folder = options.sorters.data_dir
    return contextlib.nullcontext() if folder is None else SessionFile(folder.resolve() / "capture.session")


@contextlib.contextmanager
def _api(options: CaptureOptions) -> Iterator["ApiServer | None"]:
    if not options.addr:
        yield None
        return
    with quick_imports():
        from compose.capture.api.server import HistoryWatch, api_server

    with contextlib.closing(api_server(options)) as server, contextlib.closing(HistoryWatch(server.context)):
        yield server
