"""The region map against a model: the newest known region of each single key."""

from hypothesis import given
from hypothesis import strategies as st

from producers.pull.core.regions.region_map import KnownRegions, Peer, RegionInfo, covering_prefix
from producers.pull.core.regions.span_frontier import EncodedRange
from schemas.ids import RegionId, StoreId

KEYS = 16


def key(at: int) -> bytes:
    return bytes([at])


def region(number: int, start: int, end: int, version: int) -> RegionInfo:
    peers = (Peer(10, StoreId(1)), Peer(20, StoreId(2)))
    return RegionInfo(
        region_id=RegionId(number),
        range=EncodedRange(key(start), key(end)),
        version=version,
        conf_ver=1,
        leader=peers[0],
        peers=peers,
    )


ranges = st.tuples(st.integers(0, KEYS - 1), st.integers(1, KEYS)).filter(lambda pair: pair[0] < pair[1])
steps = st.lists(st.tuples(st.sampled_from(["put", "drop"]), ranges, st.integers(1, 5)), max_size=30)


@given(steps, ranges)
def test_region_map_any_puts_and_drops_then_find_gives_a_gapless_prefix_of_the_newest(
    actions: list[tuple[str, tuple[int, int], int]], wanted: tuple[int, int]
) -> None:
    regions, model = KnownRegions(), dict[int, RegionInfo]()
    for number, (action, (start, end), version) in enumerate(actions):
        overlapped = {model[at] for at in range(start, end) if at in model}
        if action == "put" and any(known.version > version for known in overlapped):
            regions.put([region(number, start, end, version)])
            continue
        # A region goes as a whole: a part of it would be a region that does not exist.
        model = {at: known for at, known in model.items() if known not in overlapped}
        if action == "put":
            info = region(number, start, end, version)
            regions.put([info])
            model.update(dict.fromkeys(range(start, end), info))
        else:
            regions.drop(EncodedRange(key(start), key(end)))
    expected: list[RegionInfo] = []
    for at in range(*wanted):
        if at not in model:
            break
        if model[at] not in expected:
            expected.append(model[at])
    assert regions.find(EncodedRange(key(wanted[0]), key(wanted[1]))) == expected


def test_region_map_when_a_leader_is_hinted_then_only_a_known_peer_is_believed() -> None:
    regions = KnownRegions()
    regions.put([region(1, 0, 4, 1)])
    span = EncodedRange(key(0), key(4))
    assert regions.set_leader(RegionId(1), span, StoreId(2))
    assert regions.find(span)[0].leader == Peer(20, StoreId(2))
    assert not regions.set_leader(RegionId(1), span, StoreId(9))
    assert not regions.set_leader(RegionId(7), span, StoreId(2))


def test_region_map_when_pds_answer_has_a_hole_then_what_lies_behind_is_not_used() -> None:
    answer = [region(3, 8, 12, 1), region(1, 0, 4, 1), region(2, 4, 6, 1)]
    assert [info.region_id for info in covering_prefix(answer, key(1))] == [1, 2]
