"""Request ids: a region never has one twice, and few are in use where tables are small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.regions.region_map import RegionInfo
from producers.pull.core.regions.request_ids import SHARED_REGIONS_MAX, RequestIds, is_shared
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.subscription import Retry, Subscription
from producers.pull.core.regions.subscriptions import Subscriptions
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan


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


def registered(subscription: Subscription, count: int) -> list[tuple[int, RegionId]]:
    """Register a span as so many regions; return their request ids and region ids."""
    whole = EncodedRange(*subscription.span.encoded)
    inner = [encode_bytes(row_key(subscription.span.table_id, at)) for at in range(1, count)]
    regions = [
        RegionInfo(region_id=RegionId(at), range=EncodedRange(start, end), version=1, conf_ver=1, leader=None)
        for at, (start, end) in enumerate(zip([whole.start, *inner], [*inner, whole.end], strict=True), start=1)
    ]
    locked = subscription.lock_for(Retry(whole), regions, 0.0)
    return [(made.request_id, made.region.region_id) for made in locked.registrations]


def test_request_id_when_many_events_of_a_span_that_has_ended_still_come_then_all_spans_are_not_looked_at_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscriptions, looks = Subscriptions(MatcherQuota()), 0
    large = subscriptions.begin(TableSpan.of_table(TableId(1)), Ts(1), 0.0)
    for table in range(2, 102):
        subscriptions.begin(TableSpan.of_table(TableId(table)), Ts(1), 0.0)
    used = registered(large, 2 * SHARED_REGIONS_MAX)
    own = [(request_id, region_id) for request_id, region_id in used if not is_shared(request_id)]
    assert len(own) == SHARED_REGIONS_MAX
    request_id, region_id = own[0]
    assert not subscriptions.has_used(request_id, RegionId(999))
    asked = Subscription.own_request_ids

    def counted(subscription: Subscription) -> object:
        nonlocal looks
        looks += 1
        return asked(subscription)

    monkeypatch.setattr(Subscription, "own_request_ids", counted)
    assert all(subscriptions.has_used(*each) for each in own)
    subscriptions.end(TableId(1))
    assert all(subscriptions.has_used(*each) for each in own for _ in range(10))
    assert not subscriptions.has_used(request_id + 1, region_id), "that id nobody has been given yet"
    assert looks <= 102
