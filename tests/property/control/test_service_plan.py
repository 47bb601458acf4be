"""Which sorter service runs which changefeed, whatever services, changefeeds and assignments there are."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.control.core.changefeeds.service_plan import (
    BALANCE_MOVES_MAX,
    BY_HAND_WAIT_S,
    FEED_LOAD,
    FIRST_WAIT_S,
    GAP_MIN,
    MOVE_SHARE_MAX,
    LivingService,
    ServicePlan,
    WantedFeed,
    dedicated_id,
    is_complete,
    plan_services,
)
from schemas.nodes.sorter_service import Assigned, Assignment, FeedName

NAMES: list[FeedName] = [("default", f"f{number}") for number in range(12)]
SHARED = ["s1", "s2", "s3", "s10"]
ALONE_MAX = 3
DEDICATED = [dedicated_id(home, name) for home in SHARED[:2] for name in NAMES[:ALONE_MAX]]


@st.composite
def feeds(draw: st.DrawFn) -> list[WantedFeed]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return [
        WantedFeed(
            name=name,
            created_zxid=draw(st.integers(1, 2)),
            epoch=draw(st.integers(0, 3)),
            is_alone=name in NAMES[:ALONE_MAX] and draw(st.booleans()),
            load=draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])),
            revision_min=draw(st.integers(0, 9)),
        )
        for name in names
    ]


@st.composite
def living(draw: st.DrawFn) -> list[LivingService]:
    shared = [
        LivingService(service=service, starts_others=draw(st.booleans()), is_leaving=draw(st.booleans()))
        for service in draw(st.lists(st.sampled_from(SHARED), unique=True))
    ]
    own = [
        LivingService(
            service=service, dedicated=NAMES[number % ALONE_MAX], is_leaving=draw(st.sampled_from([False, False, True]))
        )
        for number, service in enumerate(DEDICATED)
        if draw(st.integers(0, 3)) == 0
    ]
    return [*shared, *own]


@st.composite
def assigned(draw: st.DrawFn) -> Assigned:
    namespace, changefeed_id = draw(st.sampled_from(NAMES))
    return Assigned(
        namespace=namespace,
        changefeed_id=changefeed_id,
        created_zxid=draw(st.integers(1, 2)),
        epoch=draw(st.integers(0, 3)),
        revision=draw(st.integers(0, 9)),
    )


ASSIGNMENTS = st.dictionaries(
    st.sampled_from([*SHARED, *DEDICATED]),
    st.builds(
        Assignment,
        feeds=st.lists(assigned(), max_size=6, unique_by=lambda feed: feed.name).map(tuple),
        dedicated=st.lists(st.sampled_from(NAMES[:ALONE_MAX]), max_size=2, unique=True).map(tuple),
    ),
)
PINS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*SHARED, "gone"]), max_size=4)


def after(current: dict[str, Assignment], plan: ServicePlan) -> dict[str, Assignment]:
    return {**current, **plan.write}


def holders(current: dict[str, Assignment]) -> dict[FeedName, list[tuple[str, Assigned]]]:
    services: dict[FeedName, list[tuple[str, Assigned]]] = {}
    for service, assignment in current.items():
        for feed in assignment.feeds:
            services.setdefault(feed.name, []).append((service, feed))
    return services


def free(services: list[LivingService]) -> list[str]:
    return [known.service for known in services if known.dedicated is None and not known.is_leaving]


@given(feeds(), living(), ASSIGNMENTS, PINS, st.booleans(), st.booleans())
@settings(max_examples=200)
def test_plan_gives_each_wanted_changefeed_to_exactly_one_service_that_may_have_it(
    wanted: list[WantedFeed],
    services: list[LivingService],
    current: dict[str, Assignment],
    pins: dict[FeedName, str],
    may_place: bool,
    may_balance: bool,
) -> None:
    plan = plan_services(wanted, services, current, pins=pins, may_place=may_place, may_balance=may_balance)
    held, before = holders(after(current, plan)), holders(current)
    by_id = {known.service: known for known in services}
    assert held.keys() <= {feed.name for feed in wanted}
    for feed in wanted:
        having = held.get(feed.name, [])
        assert len(having) <= 1
        own = [known for known in services if known.dedicated == feed.name and not known.is_leaving]
        if feed.is_alone:
            assert bool(having) == bool(own), "its own service alone has it"
        elif may_place and free(services):
            assert having and having[0][0] in free(services), "there is a service that can take it"
        for service, now in having:
            assert (now.created_zxid, now.epoch) == (feed.created_zxid, feed.epoch)
            same = [(where, was) for where, was in before.get(feed.name, []) if was.created_zxid == feed.created_zxid]
            highest = max([was.revision for _, was in same], default=-1)
            stays = service in [where for where, was in same if was.revision == highest]
            assert now.revision > max(highest, feed.revision_min) or (stays and now.revision == highest)
            if service in by_id:
                assert by_id[service].dedicated in (None, feed.name)


@given(feeds(), living(), ASSIGNMENTS, PINS)
@settings(max_examples=200)
def test_plan_is_the_same_for_the_same_and_empty_once_nothing_has_a_cause_to_change(
    wanted: list[WantedFeed],
    services: list[LivingService],
    current: dict[str, Assignment],
    pins: dict[FeedName, str],
) -> None:
    first = plan_services(wanted, services, current, pins=pins)
    assert first == plan_services(wanted[::-1], services[::-1], dict(reversed(current.items())), pins=pins)
    settled = after(current, first)
    assert plan_services(wanted, services, settled, pins=pins, may_balance=False) == ServicePlan()
    plans = 0
    while (plan := plan_services(wanted, services, settled, pins=pins)).write:
        assert 0 < len(plan.moved) <= BALANCE_MOVES_MAX
        settled = after(settled, plan)
        plans += 1
        assert plans < 10, "it comes to rest"
    bound_holds(wanted, services, settled, pins)


def bound_holds(
    wanted: list[WantedFeed],
    services: list[LivingService],
    current: dict[str, Assignment],
    pins: dict[FeedName, str],
) -> None:
    shared = free(services)
    if not shared:
        return
    load_of = {feed.name: FEED_LOAD + feed.load for feed in wanted}
    alone = {feed.name for feed in wanted if feed.is_alone}
    given_to = {
        service: [feed.name for feed in current.get(service, Assignment()).feeds if feed.name not in alone]
        for service in shared
    }
    loads = {
        service: sum(load_of[name] for name in given_to[service])
        + sum(load_of[name] for name in current.get(service, Assignment()).dedicated if name in alone)
        for service in shared
    }
    gap_min, least = GAP_MIN * sum(loads.values()) / len(shared), min(loads.values())
    for service in shared:
        movable = [load_of[name] for name in given_to[service] if pins.get(name) not in shared]
        lightest = min(movable, default=float("inf"))
        assert loads[service] - least <= max(gap_min, lightest / MOVE_SHARE_MAX) + 1e-9


@given(feeds(), living(), ASSIGNMENTS, PINS)
def test_plan_drains_what_leaves_and_obeys_pins_while_another_can_take_it(
    wanted: list[WantedFeed],
    services: list[LivingService],
    current: dict[str, Assignment],
    pins: dict[FeedName, str],
) -> None:
    now = after(current, plan_services(wanted, services, current, pins=pins))
    shared = free(services)
    alone = {feed.name for feed in wanted if feed.is_alone}
    held = holders(now)
    if shared:
        for known in services:
            if known.is_leaving:
                assert not now.get(known.service, Assignment()).feeds
    for name, service in pins.items():
        if service in shared and name in held and name not in alone:
            assert held[name][0][0] == service
    homes = Counter(name for assignment in now.values() for name in assignment.dedicated)
    assert all(count == 1 for count in homes.values()) and homes.keys() <= alone
    hosts = [known.service for known in services if known.starts_others and known.service in shared]
    own = {known.dedicated for known in services if known.dedicated is not None and not known.is_leaving}
    for name in alone - own if hosts else ():
        assert homes[name] == 1, "somebody is to start it"


def feed(number: int, **more: object) -> WantedFeed:
    return replace(WantedFeed(name=NAMES[number], created_zxid=1, epoch=0), **more)  # type: ignore[arg-type]


def names(assignment: Assignment) -> list[str]:
    return [assigned.changefeed_id for assigned in assignment.feeds]


def test_plan_when_a_service_is_gone_gives_its_changefeeds_away_in_one_write_under_higher_revisions() -> None:
    leaving, staying = LivingService(service="s1"), LivingService(service="s2")
    wanted = [feed(0), feed(1), feed(2), feed(3)]
    before = after({}, plan_services(wanted, [leaving, staying], {}))
    assert {service: names(given_to) for service, given_to in before.items()} == {
        "s1": ["f0", "f2"],
        "s2": ["f1", "f3"],
    }
    plan = plan_services(wanted, [staying], before)
    assert names(plan.write["s1"]) == [] and names(plan.write["s2"]) == ["f0", "f1", "f2", "f3"]
    assert [assigned.revision for assigned in plan.write["s2"].feeds] == [2, 1, 2, 1]
    assert plan.moved == ((NAMES[0], "s1", "s2"), (NAMES[2], "s1", "s2"))
    assert plan_services(wanted, [], before) == ServicePlan(), "nobody can take them: they wait for theirs"
    assert plan_services(wanted, [staying], before, may_place=False) == ServicePlan(), "an owner that has just begun"


def test_plan_when_a_service_joins_moves_a_few_at_once_until_both_bear_the_same() -> None:
    first, joining = LivingService(service="s1"), LivingService(service="s2")
    wanted = [WantedFeed(name=("default", f"g{number:02}"), created_zxid=1, epoch=0) for number in range(40)]
    current = after({}, plan_services(wanted, [first], {}))
    moves = []
    while (plan := plan_services(wanted, [first, joining], current)).write:
        moves.append(len(plan.moved))
        current = after(current, plan)
    assert moves == [8, 8, 2], "up to a quarter of the mean they may differ"
    assert {service: len(given_to.feeds) for service, given_to in current.items()} == {"s1": 22, "s2": 18}


def test_plan_alone_changefeed_waits_for_its_own_service_and_keeps_it_while_the_shared_one_is_gone() -> None:
    host, other = LivingService(service="s1", starts_others=True), LivingService(service="s2", starts_others=True)
    wanted, poison = [feed(0), feed(1)], feed(2, is_alone=True)
    current = after({}, plan_services([*wanted, replace(poison, is_alone=False)], [host, other], {}))
    plan = plan_services([*wanted, poison], [host, other], current)
    current = after(current, plan)
    [home] = [service for service, given_to in current.items() if given_to.dedicated == (poison.name,)]
    assert poison.name not in holders(current), "no shared service runs it again"
    own = LivingService(service=dedicated_id(home, poison.name), dedicated=poison.name)
    current = after(current, plan_services([*wanted, poison], [host, other, own], current))
    assert names(current[own.service]) == ["f2"]
    left = [known for known in (host, other) if known.service != home]
    current = after(current, plan_services([*wanted, poison], [*left, own], current))
    assert (names(current[own.service]), current[home].dedicated) == (["f2"], (poison.name,))
    current = after(current, plan_services([*wanted, poison], left, current))
    assert current[home].dedicated == () and current[left[0].service].dedicated == (poison.name,), "another starts it"
    current = after(current, plan_services([*wanted, feed(2)], left, current))
    assert names(current[left[0].service]) == ["f0", "f1", "f2"] and current[left[0].service].dedicated == ()


def test_plan_alone_changefeed_whose_service_was_started_by_hand_needs_no_capture_to_start_one() -> None:
    host = LivingService(service="s1", starts_others=True)
    hand = LivingService(service="mine", dedicated=NAMES[2])
    plan = plan_services([feed(2, is_alone=True)], [host, hand], {})
    assert (names(plan.write["mine"]), set(plan.write)) == (["f2"], {"mine"})


def test_plan_is_made_when_all_expected_services_are_there_or_have_been_waited_for() -> None:
    assert is_complete(["s1"], ["s1", "s2"], 0.0)
    assert not is_complete(["s1", "s3"], ["s1"], FIRST_WAIT_S - 0.1)
    assert is_complete(["s1", "s3"], ["s1"], FIRST_WAIT_S)


def test_plan_where_services_run_by_hand_alone_is_made_a_moment_after_the_owner_has_begun() -> None:
    assert not is_complete([], ["s1"], BY_HAND_WAIT_S - 0.1), "they come one after the other, too"
    assert is_complete([], ["s1"], BY_HAND_WAIT_S)
    assert not is_complete([], [], FIRST_WAIT_S - 0.1)
