"""How TiKV groups regions into batched resolved-ts messages: the slowest 8 together, the next 32, 128, 512, …

A message has one ts for all its regions, so a group gets its own minimum, and a region can be told less than it
was told before. Clients keep the maximum. Few messages a round, and one slow region holds back few others.
"""

from collections.abc import Sequence

from schemas.ids import RegionId, Ts

FIRST_GROUP_REGIONS = 8
GROUP_GROWTH = 4


def group(resolved: Sequence[tuple[Ts, RegionId]]) -> list[tuple[Ts, list[RegionId]]]:
    """Return (ts, regions) messages, slowest first, each ts the minimum of its group.

    >>> group([(Ts(7), RegionId(1)), (Ts(5), RegionId(2))])
    [(5, [2, 1])]
    """
    in_order = sorted(resolved)
    messages = []
    at, size = 0, FIRST_GROUP_REGIONS
    while at < len(in_order):
        members = in_order[at : at + size]
        messages.append((members[0][0], [region for _, region in members]))
        at, size = at + size, size * GROUP_GROWTH
    return messages
