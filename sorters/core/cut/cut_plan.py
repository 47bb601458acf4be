"""Divides the frontier records of an epoch into cuts: pure, so that a repeated epoch is cut the same way again.

A cut spans as many frontier records as its budget of raw records allows, and at least one. The budget counts what is
*new* in the cut, ``high2 - high1``. What must be read again, ``[low1, high1)`` (rows above R1 that had landed
already, as of a long transaction or a lagging table), is not in our hand: where it is more than the budget, a cut may
be as large as it is, or a low that stands still would be read over and over for little.

Chunks of table images go out at their barrier ts: each such ts ends a cut, and no cut spans records that leave out
different changes for images to come (:mod:`sorters.core.cut.images`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.rawlog.images import ImageChunk
from sorters.core.cut.cut import ChangefeedFrontier, Cut, cut_between
from sorters.core.cut.images import FeedImages, LeftOut

CUT_OFFSETS_MAX = 4096
"""Raw records that a cut adds: at some 256 KiB each 1 GiB, which two tasks sort on disk in about ten seconds."""
QUERY_BYTES_MIN = 512 << 20
"""Raw bytes of an epoch from which on a streaming query runs it, and what comes after it: some 2.5 million rows, of
whose CPU a query's own price (2 s) is a twentieth. Below, a job each does the same for less."""


def plan_cuts(
    base: ChangefeedFrontier,
    frontiers: Iterable[ChangefeedFrontier],
    after_ts: Ts,
    *,
    offsets_max: int = CUT_OFFSETS_MAX,
    target_ts: Ts | None = None,
) -> tuple[Cut, ...]:
    """Return the cuts from ``after_ts`` to the last of ``frontiers``, each starting where the one before ended.

    Args:
        base: the frontier before the first of ``frontiers``, at or below ``after_ts``.
        frontiers: in the order of the topic. Those that do not move the ts add nothing of their own.
        after_ts: everything up to here is downstream.
        offsets_max: see the module.
        target_ts: where the changefeed ends; the last cut stops at it.

    Raises:
        InvariantBrokenError: ``base`` is above ``after_ts``, or a frontier goes back.
    """
    if base.resolved_ts > after_ts:
        raise InvariantBrokenError("frontier base is above the checkpoint", base=base.resolved_ts, after_ts=after_ts)
    steps = list(_steps(base, frontiers, target_ts))
    cuts: list[Cut] = []
    at = 0
    while at < len(steps) and (target_ts is None or after_ts < target_ts):
        end = _cut_end(base, steps, at, offsets_max)
        last = steps[end - 1]
        for ends_at, left_out, chunks in _image_steps(base, steps[at], last):
            upto_ts = ends_at if target_ts is None else min(ends_at, target_ts)
            if upto_ts > after_ts:
                cuts.append(cut_between(base, last, after_ts, upto_ts, left_out, chunks if upto_ts == ends_at else ()))
                after_ts = upto_ts
        base, at = last, end
    return tuple(cuts)


def is_backlog(cuts: Sequence[Cut], is_small: Callable[[Cut], bool], record_bytes: float) -> bool:
    """Tell whether a streaming query is to run the cuts of an epoch, and not a job each: they follow one another, are
    not all small, and span raw records of :data:`QUERY_BYTES_MIN` or more.

    A query has a price of its own, which it earns back where cut follows cut
    (docs/decisions/2026-11-23-where-time-goes.md). So one cut is a job however large it is: where a low stands still,
    each beat has one that reads all above it again, and would begin a query for it. ``record_bytes``: mean size of a
    raw record, as far as that is known.
    """
    if len(cuts) < 2 or all(map(is_small, cuts)):
        return False
    return (sum(cuts[-1].end) - sum(cuts[0].start)) * record_bytes >= QUERY_BYTES_MIN


def _image_steps(
    base: ChangefeedFrontier, first: ChangefeedFrontier, last: ChangefeedFrontier
) -> Iterator[tuple[Ts, LeftOut | None, tuple[ImageChunk, ...]]]:
    """Yield where cuts must end between ``base`` and ``last``, with what they leave out and which chunks they emit.

    ``first`` is the frontier after ``base``: another one than ``last`` only where all of them say the same of images.
    """
    if first.images is None:
        yield last.resolved_ts, None, ()
    elif first is last:
        for _, upto_ts, left_out, chunks in first.images.steps(base.resolved_ts, last.resolved_ts):
            yield upto_ts, left_out, chunks
    else:
        yield last.resolved_ts, first.images.left_out_after(base.resolved_ts), ()


def _steps(
    base: ChangefeedFrontier, frontiers: Iterable[ChangefeedFrontier], target_ts: Ts | None
) -> Iterator[ChangefeedFrontier]:
    """Yield the frontiers that move the ts, up to the first that reaches the target: what comes later, a DDL that does
    not decode included, does not concern this changefeed.
    """
    last = base
    for frontier in frontiers:
        if target_ts is not None and last.resolved_ts >= target_ts:
            return
        if frontier.resolved_ts < last.resolved_ts:
            raise InvariantBrokenError(
                "frontier went back", resolved_ts=frontier.resolved_ts, last_resolved_ts=last.resolved_ts
            )
        if frontier.resolved_ts > last.resolved_ts:
            last = frontier
            yield frontier


def _cut_end(base: ChangefeedFrontier, steps: Sequence[ChangefeedFrontier], start: int, offsets_max: int) -> int:
    """Return the end of the cut that starts with ``steps[start]``, which it holds in any case."""
    again = sum(high - low for low, high in zip(base.low, base.high, strict=True))
    budget = max(offsets_max, again)
    end = start + 1
    while (
        end < len(steps)
        and sum(steps[end].high) - sum(base.high) <= budget
        and _say_the_same(base if end == start + 1 else steps[end - 2], steps[end - 1], steps[end])
    ):
        end += 1
    return end


def _say_the_same(before: ChangefeedFrontier, step: ChangefeedFrontier, following: ChangefeedFrontier) -> bool:
    """Tell whether two steps wait for the same images and emit no chunk, so that one cut may span both."""
    if step.images is None and following.images is None:
        return True
    if step.images is None or following.images is None:
        return False
    first, second = (step.images, before.resolved_ts), (following.images, step.resolved_ts)
    return (
        _waits(*first) == _waits(*second)
        and step.images.resync == following.images.resync
        and not step.images.has_chunk(before.resolved_ts, step.resolved_ts)
        and not following.images.has_chunk(step.resolved_ts, following.resolved_ts)
    )


def _waits(images: FeedImages, ts: Ts) -> tuple[LeftOut | None, LeftOut | None]:
    return images.left_out_after(ts), images.read_again_after(ts)
