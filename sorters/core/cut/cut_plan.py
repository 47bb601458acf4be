"""Divides the frontier records of an epoch into cuts: pure, so that a repeated epoch is cut the same way again.

A cut spans as many frontier records as its budget of raw records allows, and at least one. The budget counts what is
*new* in the cut, ``high2 - high1``. What must be read again, ``[low1, high1)`` (rows above R1 that had landed
already, as of a long transaction or a lagging table), is not in our hand: where it is more than the budget, a cut may
be as large as it is, or a low that stands still would be read over and over for little.
"""

from collections.abc import Iterable, Iterator, Sequence

from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from sorters.core.cut.cut import ChangefeedFrontier, Cut, cut_between

CUT_OFFSETS_MAX = 4096
"""Raw records that a cut adds: at some 256 KiB each 1 GiB, which two tasks sort on disk in about ten seconds."""


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
        places: in the order of the topic. Those that do not move the ts add nothing of their own.
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
        at = _cut_end(base, steps, at, offsets_max)
        last = steps[at - 1]
        upto_ts = last.resolved_ts if target_ts is None else min(last.resolved_ts, target_ts)
        if upto_ts > after_ts:
            cuts.append(cut_between(base, last, after_ts, upto_ts))
            after_ts = upto_ts
        base = last
    return tuple(cuts)


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
    while end < len(steps) and sum(steps[end].high) - sum(base.high) <= budget:
        end += 1
    return end
