"""What the live display computes from counters, and how it shows a view."""

import io
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from compose.local.live_run import Picture
from compose.local.live_view import live_picture, progress_line, summary_table
from compose.local.monitor import BusView, FeedView, Monitor, Rate
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedError, ChangefeedStatus, ZkPaths
from schemas.rawlog.frontier import FrontierRecord

CLEAR = "\x1b[2J"
FRONTIER = FrontierRecord(
    owner_rev=1, resolved_ts=Ts(470618910879645696), high=(1,), low=(0,), ddl_high=0, repeat_high=(0,)
)


def _view(*, failed: bool) -> BusView:
    error = ChangefeedError(code="sink.encode_refused", message="ENUM value 0", time="2026-01-01T00:00:00Z")
    status = ChangefeedStatus(
        state="failed" if failed else "normal",
        checkpoint_ts=Ts(470618910879645696),
        resolved_ts=Ts(470618910879645696),
        error=error if failed else None,
        rows_total=12_345,
        batch_rows=678,
        batch_s=0.43,
    )
    feeds = (
        FeedView(changefeed_id="canal", status=status, rows_per_s=1500.0, rows_total=12_345, lag_s=0.7),
        FeedView(changefeed_id="young", status=None, rows_per_s=0.0, rows_total=0, lag_s=None),
    )
    return BusView(
        rows_in_per_s=2000.0,
        rows_in_total=54_321,
        frontier=FRONTIER,
        frontier_lag_s=0.2,
        feeds=feeds,
        topics=(("t", 3),),
    )


def _shown(*what: object) -> str:
    console = Console(width=150, record=True, file=io.StringIO())
    for item in what:
        console.print(item)
    return console.export_text()


def test_rate_is_the_mean_over_its_window() -> None:
    rate = Rate()
    for second in range(20):
        rate.note(float(second), 1_000 * second if second < 10 else 9_000)
    assert rate.per_s() == 0.0
    assert rate.total == 9_000


def test_rate_when_a_process_started_anew_counts_on() -> None:
    rate = Rate()
    for at, counter in enumerate([0, 100, 200, 50, 150]):
        rate.note(float(at), counter)
    assert rate.total == 350
    assert rate.per_s() == 100.0


def test_live_picture_shows_rates_lags_batches_and_topics() -> None:
    shown = _shown(live_picture(_view(failed=False), 12.0, 150))
    for text in (
        "2,000",
        "54,321",
        "470618910879645696",
        "1,500",
        "12,345",
        "0.7 s",
        "678 in 0.43 s",
        "t(3)",
        "starting",
    ):
        assert text in shown


@pytest.mark.parametrize("width", [80, 120])
def test_live_picture_fits_a_small_terminal_whole(width: int) -> None:
    view = _view(failed=True)
    long = replace(view.feeds[0], changefeed_id="canal-json-demo", rows_total=123_456_789, rows_per_s=123_456.0)
    many = tuple((f"canal_some_schema_some_table_{number}", 3) for number in range(90))
    console = Console(width=width, height=24, record=True, file=io.StringIO())
    console.print(live_picture(replace(view, feeds=(long, view.feeds[1]), topics=many), 12.0, width))
    lines = console.export_text().splitlines()
    assert len(lines) < 24
    assert max(len(line.rstrip()) for line in lines) <= width
    assert "canal-json-demo" in "".join(lines) and "123,456,789" in "".join(lines)
    assert sum("…" in line for line in lines) == 1, "only the list of topics is cut"


def test_live_picture_of_a_failed_changefeed_shows_its_error() -> None:
    shown = _shown(live_picture(_view(failed=True), 12.0, 150))
    assert "failed" in shown and "sink.encode_refused: ENUM value 0" in shown


def test_picture_when_the_terminal_gets_another_size_begins_on_a_clean_screen() -> None:
    out = io.StringIO()
    console = Console(width=100, height=30, file=out, force_terminal=True)
    with Live(console=console, auto_refresh=False) as live:
        picture = Picture(live, lambda: 1.0)
        picture(_view(failed=False))
        assert CLEAR not in out.getvalue()
        console.size = ConsoleDimensions(70, 30)
        picture(_view(failed=False))
    assert out.getvalue().count(CLEAR) == 1


def test_summary_and_progress_line_say_what_was_done() -> None:
    assert "canal normal 12,345 rows lag 0.7 s; young starting" in progress_line(_view(failed=False), 3.0)
    shown = _shown(summary_table(_view(failed=False), 10.0))
    assert "54,321" in shown and "5,432" in shown and "canal" in shown


@pytest.mark.parametrize("error", [KazooTimeoutError(), ConnectionLoss(), CorruptDataError("no node of ours")])
def test_look_goes_on_while_zookeeper_is_away_or_slow(error: Exception) -> None:
    zookeeper = MagicMock(spec=["get", "get_children", "exists", "get_children_async", "get_async"])
    for ask in (zookeeper.get, zookeeper.get_children, zookeeper.exists):
        ask.side_effect = error
    for ask in (zookeeper.get_children_async, zookeeper.get_async):
        ask.return_value.get.side_effect = error
    monitor = Monitor.__new__(Monitor)
    monitor._zookeeper, monitor._paths, monitor._node = zookeeper, ZkPaths("c"), "/node"
    assert monitor.changefeed_ids() == [] and monitor.entries() == {} and monitor.status("f") is None
    assert monitor.state("f", None) == "normal"
    assert monitor._spark_uis() == () and monitor._images() == ()
