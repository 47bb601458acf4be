"""Where a run of a changefeed begins, by what the run before it has left behind: pure.

An epoch is a range of frontier offsets. It is written down before it runs, so that one which was begun, and perhaps not
finished, is run again as it was, on whatever machine: cut the same way, into the same messages. Only where the
checkpoint stands within it, though: elsewhere somebody has set it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from schemas.ids import Ts
from schemas.json_text import read_int, read_json, read_text


@dataclass(frozen=True, slots=True)
class BegunEpoch:
    """The epoch that was begun last."""

    frontier_topic: str
    after_ts: Ts
    """Everything up to it was downstream then."""
    start: int
    end: int
    """Offsets ``[start, end)`` of the frontier topic."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins."""

    after_ts: Ts
    start: int
    """Where the next epoch starts in the frontier topic."""
    end: int | None = None
    """Where the epoch ends that must run first, just as it is; None: there is none."""


def left_off(
    begun: BegunEpoch | None, frontier_topic: str, checkpoint_ts: Ts, resolved_at: Callable[[int], Ts]
) -> Beginning | None:
    """Return where the last run left off; None: nothing is known of one, or it does not fit the checkpoint.

    It does not where the user has set the checkpoint, or the changefeed had another upstream once. That it fits says
    only that the epoch may be planned again: of its cuts one must then begin or end at the checkpoint. Where the epoch
    starts, the upstream's resolved ts may be far above the changefeed's, which waits for a held table.

    Args:
        begun: what that run has begun last.
        frontier_topic: the upstream's.
        checkpoint_ts: everything up to it is downstream.
        resolved_at: returns the resolved ts of a reader who has read up to an offset of the frontier topic.
    """
    if begun is None or begun.frontier_topic != frontier_topic:
        return None
    if not begun.after_ts <= checkpoint_ts <= resolved_at(begun.end):
        return None
    return Beginning(begun.after_ts, begun.start, begun.end)


def encode_begun(epoch: BegunEpoch) -> bytes:
    """Return the text of what is begun."""
    raw = {
        "frontier_topic": epoch.frontier_topic,
        "origin_ts": epoch.after_ts,
        "frontier_offset": epoch.start,
        "frontier_end": epoch.end,
    }
    return json.dumps(raw).encode()


def decode_begun(content: bytes | None) -> BegunEpoch | None:
    """Return what was begun last; None: nothing, or it does not read.

    An older version wrote no end where Spark ran the epoch: the next run begins at the checkpoint then, which loses
    nothing.
    """
    if content is None:
        return None
    try:
        raw = read_json(content)
        numbers = (raw["origin_ts"], raw["frontier_offset"], raw["frontier_end"])
        after_ts, start, end = (read_int(number, bits=63) for number in numbers)
        return BegunEpoch(read_text(raw["frontier_topic"]), Ts(after_ts), start, end) if start <= end else None
    except (ValueError, KeyError, TypeError):
        return None
