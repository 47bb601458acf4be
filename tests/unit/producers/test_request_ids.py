"""Request ids: a region never has one twice, and few are in use where tables are small."""

from hypothesis import given
from hypothesis import strategies as st

from producers.pull.core.regions.request_ids import RequestIds, is_shared
from schemas.ids import RegionId


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans())))
def test_request_ids_of_a_region_are_never_the_same_and_are_known(uses: list[tuple[int, bool]]) -> None:
    ids, given_out = RequestIds(), set[tuple[int, int]]()
    for region, shared in uses:
        request_id = ids.shared(RegionId(region)) if shared else ids.own()
        assert is_shared(request_id) == shared
        assert (request_id, region) not in given_out
        given_out.add((request_id, region))
        assert ids.has_shared(request_id, RegionId(region)) == shared
        assert ids.has_own(request_id) == (not shared)
    assert not ids.has_shared(len(uses) + 1, RegionId(1))
    assert not ids.has_own((1 << 32) + len(uses))
    assert not ids.has_shared(0, RegionId(1))


def test_request_ids_of_regions_that_are_registered_once_are_one() -> None:
    ids = RequestIds()
    assert {ids.shared(RegionId(region)) for region in range(1, 100_000)} == {1}
