"""Keeps TiKV's history from the published frontier on, by a GC barrier or a service safe point (docs/formats/pd.md §6).

Only the frontier counts, not the changefeeds: what a paused changefeed has still to read is in the raw log, also past
TiKV's garbage collection. TiKV's history is needed from the published R on, where a restart begins.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from producers.errors import HistoryGoneError, PdUnimplementedError, ProducerBugError
from producers.pull.pd.client import PdClient
from schemas.errors import Action, BusError
from schemas.ids import Ts

log = logging.getLogger(__name__)

UPDATE_S: Final = 60.0
"""PD hears of it at most once a minute, as from TiCDC."""
RETRY_S: Final = 5.0


class SafePointKeeper:
    """One thread that tells PD the newest published ts, and gives up only when gc-ttl has passed without an answer."""

    def __init__(
        self,
        pd: PdClient,
        service_id: str,
        *,
        ttl_s: int,
        on_fatal: Callable[[BusError], None],
        update_s: float = UPDATE_S,
    ) -> None:
        self._pd = pd
        self._service_id = service_id
        self._ttl_s = ttl_s
        self._on_fatal = on_fatal
        self._update_s = update_s
        self._ts: Ts | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="safe-point", daemon=True)

    def start(self) -> None:
        """Start the thread; it is silent until the first :meth:`keep`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop. The entry stays for its TTL: the next start needs the history."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def keep(self, ts: Ts) -> None:
        """Keep what is above ``ts``; the first call goes out at once."""
        first, self._ts = self._ts is None, ts
        if first:
            self._wake.set()

    def _run(self) -> None:
        reached_at = time.monotonic()
        wait_s: float | None = None
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            if self._ts is None:
                continue
            try:
                keep_safe_point(self._pd, self._service_id, self._ts, self._ttl_s)
                reached_at, wait_s = time.monotonic(), self._update_s
            except BusError as error:
                if self._stopping.is_set():
                    return
                if error.action is not Action.RETRY or time.monotonic() - reached_at > self._ttl_s:
                    self._on_fatal(error)
                    return
                log.warning("safe point not updated", extra={"service_id": self._service_id, "error": str(error)})
                wait_s = RETRY_S
            except Exception as error:
                self._on_fatal(ProducerBugError("safe point keeper failed", error=repr(error)))
                raise


def keep_safe_point(pd: PdClient, service_id: str, ts: Ts, ttl_s: int) -> None:
    """Ask PD once to keep everything above ``ts``, by a GC barrier, or the old interface where PD has no other.

    Raises:
        HistoryGoneError: garbage collection has passed it already.
        PdUnreachableError: PD does not answer.
    """
    # An incremental scan from checkpoint_ts reads old values as of checkpoint_ts: so one less, as TiCDC.
    wanted = Ts(max(0, ts - 1))
    try:
        if wanted:
            pd.set_gc_barrier(service_id, wanted, ttl_s)
            return
    except PdUnimplementedError:
        pass
    except HistoryGoneError as error:
        raise _history_gone(ts, pd.gc_state().txn_safe_point) from error
    least = pd.update_service_gc_safe_point(service_id, wanted, ttl_s)
    if least > wanted:
        raise _history_gone(ts, least)


def release_safe_point(pd: PdClient, service_id: str) -> None:
    """Tell PD that nobody needs the history any more; used where an upstream is given up for good."""
    try:
        pd.delete_gc_barrier(service_id)
    except PdUnimplementedError:
        pd.update_service_gc_safe_point(service_id, Ts((1 << 64) - 1), 0)


def _history_gone(ts: Ts, gc_safe_point: int) -> HistoryGoneError:
    return HistoryGoneError(
        "CDC:ErrSnapshotLostByGC: changes after the needed ts are lost to TiKV's garbage collection; start anew from "
        "a ts above the GC safe point, with a fresh raw log",
        needed_ts=ts,
        gc_safe_point=gc_safe_point,
    )
