"""Which snapshots of a lake table say how far it is, and which may go.

    main ─▶ compaction ─▶ commit wm 30 ─▶ commit wm 20 ─▶ commit wm 10
                                 │              └ expires, unless a tag or a young reader holds it
                                 └ stays: it says how far the table is

A snapshot of a compaction says nothing of watermarks: what says it stands below, and must not expire before it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.ids import Ts


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A snapshot that a table's metadata has."""

    id: int
    parent_id: int | None
    at_ms: int
    """When it was written, by its writer's clock."""
    watermark_ts: Ts | None
    """None: it says none, as one of a compaction or of somebody else."""


def expired_snapshots(
    snapshots: Mapping[int, LakeSnapshot], named: Iterable[int], head_id: int, kept_ms: int
) -> tuple[int, ...]:
    """Return the snapshots that may go, oldest first.

    Args:
        snapshots: by id.
        named: those that tags and branches name.
        head_id: main's.
        kept_ms: how long a reader may go on with one that main has left, as of the newest snapshot.
    """
    kept = {head_id, *named}
    at = snapshots.get(head_id)
    while at is not None and at.watermark_ts is None:
        at = None if at.parent_id is None else snapshots.get(at.parent_id)
        if at is not None:
            kept.add(at.id)
    newest_ms = max((snapshot.at_ms for snapshot in snapshots.values()), default=0)
    left_ms = {each.parent_id: each.at_ms for each in snapshots.values()}
    old = [
        each
        for each in snapshots.values()
        if each.id not in kept and left_ms.get(each.id, each.at_ms) < newest_ms - kept_ms
    ]
    return tuple(each.id for each in sorted(old, key=lambda each: (each.at_ms, each.id)))
