"""Where each thread of this process stands, for whoever looks into trouble."""

import sys
import threading
from types import FrameType
from typing import NamedTuple


class Standing(NamedTuple):
    """One thread; what it does goes on meanwhile."""

    ident: int
    name: str
    """'?': it has none, as one that Python has not started."""
    frame: FrameType
    """The innermost."""

    def folded(self) -> str:
        """Return ``file:function:line`` of each of its frames, the outermost first, with ``;`` between."""
        names = list[str]()
        frame: FrameType | None = self.frame
        while frame is not None:
            code = frame.f_code
            names.append(f"{code.co_filename.rpartition('/')[2]}:{code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return ";".join(reversed(names))


def threads_standing() -> list[Standing]:
    """Return all threads, the caller's too, by their identity."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [Standing(ident, names.get(ident, "?"), frame) for ident, frame in sorted(sys._current_frames().items())]
