"""Snapshots of a lake table expire: tags, young readers and what says how far the table is go on finding theirs."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from sorters.core.lake.snapshots import LakeSnapshot, expired_snapshots

KEPT_MS = 100
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["commit", "compact", "tag", "untag", "expire"]), st.integers(0, 80)), max_size=40
)


@given(HAPPENINGS)
def test_expiry_leaves_what_is_named_young_or_says_the_watermark(happenings: list[tuple[str, int]]) -> None:
    snapshots = {1: LakeSnapshot(1, None, 0, Ts(10))}
    tags: list[int] = []
    left_at: dict[int, int] = {}
    head, newest, now, watermark = 1, 1, 0, 10
    for what, passed_ms in happenings:
        now += passed_ms
        if what in ("commit", "compact"):
            watermark += 10 if what == "commit" else 0
            newest += 1
            snapshots[newest] = LakeSnapshot(newest, head, now, Ts(watermark) if what == "commit" else None)
            left_at[head], head = now, newest
        elif what == "tag":
            tags.append(head)
        elif what == "untag":
            tags = tags[1:]
        else:
            before = dict(snapshots)
            for gone in expired_snapshots(snapshots, tags, head, KEPT_MS):
                del snapshots[gone]
            for gone in before.keys() - snapshots.keys():
                assert gone not in (*tags, head)
            newest_ms = max(each.at_ms for each in before.values())
            assert all(left_at[gone] < newest_ms - KEPT_MS for gone in before.keys() - snapshots.keys())
            stale = [number for number in snapshots if left_at.get(number, now) < newest_ms - KEPT_MS]
            assert len(stale) <= len(set(tags)) + 1 + _unsaid(snapshots, head), "nothing else stays"
    assert _said(snapshots, head) == watermark


def _said(snapshots: dict[int, LakeSnapshot], at: int) -> int | None:
    snapshot: LakeSnapshot | None = snapshots[at]
    while snapshot is not None and snapshot.watermark_ts is None:
        snapshot = snapshots.get(snapshot.parent_id or 0)
    return None if snapshot is None else snapshot.watermark_ts


def _unsaid(snapshots: dict[int, LakeSnapshot], at: int) -> int:
    """Return how many snapshots stand from main down to the one that says the watermark."""
    count, snapshot = 1, snapshots[at]
    while snapshot.watermark_ts is None:
        count, snapshot = count + 1, snapshots[snapshot.parent_id or 0]
    return count


def test_snapshot_under_compactions_stays_however_old_and_the_rest_goes() -> None:
    chain = [
        LakeSnapshot(1, None, 0, Ts(10)),
        LakeSnapshot(2, 1, 10, Ts(20)),
        LakeSnapshot(3, 2, 20, None),
        LakeSnapshot(4, 3, 9_000, None),
    ]
    assert expired_snapshots({each.id: each for each in chain}, [], 4, KEPT_MS) == (1,)
    assert expired_snapshots({each.id: each for each in chain}, [1], 4, KEPT_MS) == ()


def test_snapshot_that_was_main_until_just_now_stays_however_old() -> None:
    chain = [LakeSnapshot(1, None, 0, Ts(10)), LakeSnapshot(2, 1, 9_000, Ts(20)), LakeSnapshot(3, 2, 9_010, Ts(30))]
    assert expired_snapshots({each.id: each for each in chain}, [], 3, KEPT_MS) == ()
