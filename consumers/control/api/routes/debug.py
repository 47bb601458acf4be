"""What a process is doing, for whoever looks into trouble: its threads, and where it spends its time."""

import gc
import threading
import time
import traceback
from collections import Counter
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from consumers.control.api.context import User
from consumers.control.api.errors import BusyError
from edges.thread_stacks import threads_standing

router = APIRouter(prefix="/debug", dependencies=[User], default_response_class=PlainTextResponse, tags=["debug"])

SECONDS_MAX: Final = 120.0
SAMPLES_PER_S: Final = 100
"""Looks at all threads in a second: some 0.1 ms each, so that a profile does not change what it measures."""
TYPES_SHOWN: Final = 50


@router.get("/pprof", summary="What there is")
@router.get("/pprof/", include_in_schema=False)
def index() -> str:
    """Return the list of what can be asked."""
    return "/debug/pprof/threads\n/debug/pprof/profile?seconds=10\n/debug/pprof/objects\n"


@router.get("/pprof/threads", summary="Where each thread stands")
@router.get("/pprof/goroutine", include_in_schema=False)
def threads() -> str:
    """Return all threads with their stacks."""
    parts = []
    for thread in threads_standing():
        parts += [f"thread {thread.name} ({thread.ident})\n", *traceback.format_stack(thread.frame), "\n"]
    return "".join(parts)


@router.get("/pprof/profile", summary="Where the time goes")
def profile(seconds: Annotated[float, Query(gt=0, le=SECONDS_MAX)] = 10.0) -> str:
    """Sample all threads for a while; return a line a stack, ``thread;outer;…;inner count``, as flame graphs take it.

    A thread that waits is counted like one that computes: look at what stands at the end of its stack.
    """
    if not _profiling.acquire(blocking=False):
        raise BusyError("a profile is under way; ask again when it is over", seconds_max=SECONDS_MAX)
    try:
        return _sampled(seconds)
    finally:
        _profiling.release()


_profiling: Final = threading.Lock()
"""One at a time: each holds a thread of the pool that answers everybody."""


def _sampled(seconds: float) -> str:
    counts: Counter[str] = Counter()
    me, end_at = threading.get_ident(), time.monotonic() + seconds
    while time.monotonic() < end_at:
        for thread in threads_standing():
            if thread.ident != me:
                counts[f"{thread.name};{thread.folded()}"] += 1
        time.sleep(1 / SAMPLES_PER_S)
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


@router.get("/pprof/objects", summary="What memory is full of")
@router.get("/pprof/heap", include_in_schema=False)
def objects() -> str:
    """Count the objects that the garbage collector knows, by type: containers and instances, no bytes or numbers."""
    counts = Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())
    return "".join(f"{count} {name}\n" for name, count in counts.most_common(TYPES_SHOWN))
