"""A changefeed that waits for a table says which and why, in its own status, and others say nothing."""

from dataclasses import dataclass

from compose.capture.replicated_tables import replicated_tables
from consumers.control.owner.held_feeds import (
    SAY_AGAIN_S,
    STANDS_AFTER_S,
    WARN_AFTER_S,
    HeldFeeds,
    HeldTable,
    held_tables,
)
from schemas.ddl.schema_change import StoredTable
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.frontier import FrontierRecord, HeldTables, LandingReport
from schemas.rawlog.pull_figures import PullFigures, StalledSpan
from schemas.tidb.spans import TableSpan

URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"
ORDERS = HeldTable(TableId(7), "shop", "orders", True, Ts(50), "region 3 at store 0: no leader (capture a)")
HEAP = HeldTable(TableId(8), "shop", "heap", False, Ts(50), "it is behind")


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def info(*rules: str, **config: object) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="f", upstream=UpstreamId("u"), sink_uri=URI, config={"filter": {"rules": list(rules)}, **config},
        start_ts=Ts(1),
    )  # fmt: skip


def stored(table_id: TableId, name: str) -> StoredTable:
    return StoredTable(1, "shop", name, table_id, (), True, False, False, Ts(1), True, b"")


def report(capture: str, tables: dict[int, int], *stalls: StalledSpan) -> LandingReport:
    landed = {TableSpan.of_table(TableId(table)): Ts(ts) for table, ts in tables.items()}
    return LandingReport(
        capture=CaptureId(capture), landed_ts=landed, ends=(1,), chunks=(), floors=(1,), repeat_ends=(0,),
        figures=PullFigures(stalls=stalls),
    )  # fmt: skip


def test_changefeed_with_a_table_that_is_held_for_long_says_which_and_why() -> None:
    clock = Clock()
    feeds, mine, other = HeldFeeds(replicated_tables, clock), info("shop.*"), info("shop.*", "!shop.orders")
    feeds.note([ORDERS], Ts(90), ())
    assert feeds.why(mine) is None, "a moment is no trouble"
    clock.now_s += WARN_AFTER_S
    feeds.note([ORDERS], Ts(90), ())
    said = feeds.why(mine)
    assert said is not None
    assert said.code == "changefeed.table_held"
    assert "shop.orders (table id 7) stands at ts 50: region 3 at store 0: no leader (capture a)" in said.message
    assert feeds.why(other) is None
    feeds.note([], Ts(90), ())
    assert feeds.why(mine) is None


def test_changefeed_warning_that_counts_seconds_is_said_anew_only_now_and_then() -> None:
    clock, mine = Clock(), info("*.*")
    feeds = HeldFeeds(replicated_tables, clock)
    feeds.note([ORDERS], Ts(90), ())
    clock.now_s += WARN_AFTER_S
    said = []
    for number in range(25):
        feeds.note([HeldTable(TableId(7), "shop", "orders", True, Ts(50), f"scanning for {number} s")], Ts(90), ())
        said.append(feeds.why(mine))
        clock.now_s += 1.0
    assert len({id(warning) for warning in said}) == -(-25 // int(SAY_AGAIN_S))
    assert len({warning.time for warning in said if warning}) == 1


def test_changefeeds_all_say_why_the_frontier_of_their_upstream_stands() -> None:
    clock, mine = Clock(), info("other.*")
    feeds = HeldFeeds(replicated_tables, clock)
    for _ in range(2):
        feeds.note([], Ts(90), ["the owner waits for captures to answer: b"])
        assert feeds.why(mine) is None
        clock.now_s += STANDS_AFTER_S / 2
    feeds.note([ORDERS], Ts(90), ["the owner waits for captures to answer: b"])
    said = feeds.why(mine)
    assert said is not None
    assert said.code == "changefeed.upstream_stands"
    assert said.message == "the upstream's frontier stands at ts 90: the owner waits for captures to answer: b"
    feeds.note([], Ts(91), ())
    assert feeds.why(mine) is None


def test_table_without_a_key_holds_nobody_who_does_not_replicate_it() -> None:
    clock = Clock()
    feeds = HeldFeeds(replicated_tables, clock)
    feeds.note([HEAP], Ts(90), ())
    clock.now_s += WARN_AFTER_S
    feeds.note([HEAP], Ts(90), ())
    assert feeds.why(info("*.*")) is None


def test_held_tables_have_the_reason_of_the_capture_that_pulls_them() -> None:
    published = FrontierRecord(
        owner_rev=1, resolved_ts=Ts(90), high=(1,), low=(0,), repeat_high=(0,), ddl_high=1,
        held=(HeldTables(tables=(TableId(7), TableId(8), TableId(9)), ts=Ts(50), low=(0,)),),
    )  # fmt: skip
    names = {TableId(7): "orders", TableId(8): "lines", TableId(9): "new"}
    held = held_tables(
        published,
        lambda table: stored(table, names[table]),
        {
            CaptureId("a"): report("a", {7: 50}, StalledSpan(TableSpan.of_table(TableId(7)), "no leader")),
            CaptureId("b"): report("b", {8: 60}),
        },
    )
    assert [(table.table, table.ts, table.why) for table in held] == [
        ("orders", 50, "no leader (capture a)"),
        ("lines", 50, "it is behind the other tables (capture b)"),
        ("new", 50, "no capture has taken it up yet"),
    ]
