"""Which tables the frontier leaves behind, when they come back, and what a changefeed makes of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from consumers.control.core.frontier.frontier import first_record
from consumers.control.core.frontier.held_tables import (
    HELD_GROUPS_MAX,
    HELD_TABLES_MAX,
    LOWS_MAX,
    Holding,
    hold_back,
    pulled_from,
)
from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.scope import held_for

HOLDING = Holding(10)


def at(resolved_ts: int, *held: HeldTables) -> FrontierRecord:
    return replace(first_record(1, Ts(resolved_ts), 1), low=(resolved_ts,), high=(1000,), held=held)


def group(ts: int, *tables: int, low: int = 0) -> HeldTables:
    return HeldTables(tables=tuple(map(TableId, tables)), ts=Ts(ts), low=(low,))


def step(
    previous: FrontierRecord, landed: dict[int, int], ddl_ts: int = 900, holding: Holding = HOLDING
) -> tuple[int, tuple[HeldTables, ...]]:
    tables = {TableId(table): Ts(ts) for table, ts in landed.items()}
    return hold_back(previous, tables, Ts(ddl_ts), holding)


def test_hold_back_table_within_the_lag_is_waited_for() -> None:
    assert step(at(20), {1: 25, 2: 35}) == (25, ())


def test_hold_back_tables_that_lag_are_one_group_from_the_low_before() -> None:
    assert step(at(20), {1: 25, 2: 36, 3: 20}) == (36, (group(20, 1, 3, low=20),))


def test_hold_back_table_that_lags_later_is_a_group_of_its_own() -> None:
    held = group(20, 1, low=20)
    assert step(at(36, held), {1: 21, 2: 40, 3: 60}) == (60, (group(21, 1, low=20), group(40, 2, low=36)))


def test_hold_back_table_that_is_nearly_there_is_waited_for_and_let_go() -> None:
    held = group(20, 1, low=20)
    assert step(at(50, held), {1: 49, 2: 54}) == (50, (held,))
    assert step(at(50, held), {1: 50, 2: 55}) == (50, (held,)), "what is held changes only with R"
    assert step(at(50, held), {1: 51, 2: 55}) == (51, ())


def test_hold_back_table_between_half_the_lag_and_the_lag_stays_as_it_is() -> None:
    assert step(at(50, group(20, 1)), {1: 49, 2: 57}) == (57, (group(49, 1),))
    assert step(at(49), {1: 50, 2: 57}) == (50, ())


def test_hold_back_ddl_feed_that_lags_holds_all_and_no_table() -> None:
    assert step(at(20), {1: 25, 2: 90}, ddl_ts=30) == (25, ())


def test_hold_back_table_that_has_not_landed_up_to_the_published_frontier_is_not_held_but_waited_for() -> None:
    assert step(at(20), {1: 15, 2: 90}) == (20, ())


def test_hold_back_held_table_that_was_dropped_is_held_no_more() -> None:
    assert step(at(20, group(5, 1)), {2: 90}) == (90, ())


def test_hold_back_with_too_many_groups_or_tables_waits_for_the_rest() -> None:
    groups = [group(number, 100 + number) for number in range(HELD_GROUPS_MAX)]
    landed = {100 + number: number for number in range(HELD_GROUPS_MAX)}
    assert step(at(20, *groups), {**landed, 1: 25, 2: 90})[0] == 25
    freed = {**landed, 100: 30}
    assert step(at(20, *groups), {**freed, 1: 20, 2: 90}) == (90, (*groups[1:], group(20, 1, 100, low=20)))
    many = dict.fromkeys(range(HELD_TABLES_MAX + 1), 20)
    assert step(at(20), {**many, 5000: 90}) == (20, ())
    resolved_ts, held = step(at(20), {**many, HELD_TABLES_MAX: 30, 5000: 90})
    assert (resolved_ts, len(held[0].tables)) == (30, HELD_TABLES_MAX)


def test_holding_low_of_a_group_follows_its_ts_by_published_places_and_never_goes_back() -> None:
    held = group(20, 1, low=20)
    holding = HOLDING
    for ts in range(30, 30 + 2 * LOWS_MAX):
        holding = holding.after(at(ts, held))
        assert len(holding.lows) <= LOWS_MAX
    lows = [holding.low_of(group(ts, 1, low=20))[0] for ts in range(20, 30 + 2 * LOWS_MAX)]
    assert lows == sorted(lows)
    assert lows[:10] == [20] * 10
    assert all(low <= ts for ts, low in enumerate(lows[10:], start=30)), "a record above its ts bounds too little"
    assert lows[-1] > 20 + LOWS_MAX
    assert holding.low_of(group(31, 1, low=300)) == (300,)
    assert holding.after(at(900)).lows == ()


def test_pulled_from_held_table_starts_from_its_own_ts_others_from_the_frontier() -> None:
    published = replace(at(50, group(20, 1)), held_ddl=(HeldDdl(ts=Ts(40), start_ts=Ts(39), low=(0,)),))
    starts = [
        pulled_from(published, TableId(table), Ts(made)) for table, made in ((1, 5), (1, 30), (2, 5), (2, 40), (2, 60))
    ]
    assert starts == [20, 30, 50, 40, 60]


class Store:
    """Versions of tables by name."""

    def __init__(self, versions: dict[int, list[tuple[int, str | None]]]) -> None:
        self._versions = versions

    def is_system(self, table: TableId) -> bool:
        return table == 99

    def versions_of(self, table: TableId) -> list[tuple[Ts, Any]]:
        named = self._versions.get(table, [])
        return [(Ts(ts), name and SimpleNamespace(schema="d", table=name, eligible=True)) for ts, name in named]


def test_held_for_changefeed_waits_for_its_own_tables_from_where_they_are_its_own() -> None:
    config = {"filter": {"rules": ["d.mine"]}}
    feed = compile_feed(load_changefeed("kafka://127.0.0.1:1/t?protocol=canal-json", config), "default")
    store: Any = Store(
        {1: [(5, "mine"), (30, None)], 2: [(5, "other")], 3: [(5, "other"), (40, "mine")], 4: [(60, "mine")]}
    )

    def places(*tables: int) -> list[int]:
        return [held.ts for held in held_for(at(50, group(20, *tables)), store, feed)]

    assert [places(table) for table in (1, 2, 3, 99)] == [[20], [], [40], []]
    assert (places(2, 3), places(1, 3)) == ([40], [20])
    assert places(7) == [20], "nobody knows it"
