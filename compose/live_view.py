"""What `tidebus run` shows: the live picture, and the summary at the end."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compose.monitor import BusView, FeedView
from schemas.ids import physical_ms

TOPICS_SHOWN_MAX = 12


def live_picture(view: BusView, elapsed_s: float, news: list[str]) -> RenderableType:
    """Return the picture of now; ``news`` are the last messages about processes."""
    log = Table(title="raw log", expand=True)
    for heading in ("rows/s in", "rows in", "frontier resolved_ts", "frontier lag"):
        log.add_column(heading, justify="right")
    resolved = str(view.frontier.resolved_ts) if view.frontier else "-"
    log.add_row(f"{view.rows_in_per_s:,.0f}", f"{view.rows_in_total:,}", resolved, _seconds(view.frontier_lag_s))
    shown: list[RenderableType] = [
        Text(f"TideBus, {elapsed_s:.0f} s; Ctrl-C ends it", style="bold"),
        log,
        _feeds(view.feeds),
        topics_line(view),
    ]
    return Group(*shown, *_errors(view.feeds), *(Text(line, style="yellow") for line in news[-6:]))


def _feeds(feeds: tuple[FeedView, ...]) -> Table:
    table = Table(title="changefeeds", expand=True)
    for heading in ("changefeed", "state"):
        table.add_column(heading)
    for heading in ("rows/s out", "rows out", "checkpoint_ts", "lag", "batch rows", "batch s"):
        table.add_column(heading, justify="right")
    for feed in feeds:
        status = feed.status
        if status is None:
            table.add_row(feed.changefeed_id, "starting", *["-"] * 6)
            continue
        state = Text(status.state, style="green" if status.state == "normal" else "red")
        table.add_row(
            feed.changefeed_id,
            state,
            f"{feed.rows_per_s:,.0f}",
            f"{feed.rows_total:,}",
            str(status.checkpoint_ts),
            _seconds(feed.lag_s),
            f"{status.batch_rows:,}",
            f"{status.batch_s:.2f}",
        )
    return table


def _errors(feeds: tuple[FeedView, ...]) -> list[Text]:
    """Return the last error of each changefeed that has one, on lines of their own: they are long."""
    found = [(feed.changefeed_id, feed.status.error) for feed in feeds if feed.status and feed.status.error]
    return [Text(f"{name}: {error.code}: {error.message}", style="red") for name, error in found]


def topics_line(view: BusView) -> Text:
    """Return the output topics, the first of them by name."""
    names = [f"{name}({partitions})" for name, partitions in view.topics]
    more = f" … and {len(names) - TOPICS_SHOWN_MAX} more" if len(names) > TOPICS_SHOWN_MAX else ""
    return Text(f"{len(names)} topics (partitions): {', '.join(names[:TOPICS_SHOWN_MAX])}{more}")


def progress_line(view: BusView, elapsed_s: float) -> str:
    """Return the same in one line, for where there is no terminal."""
    feeds = "; ".join(
        f"{feed.changefeed_id} {feed.status.state if feed.status else 'starting'} {feed.rows_total:,} rows "
        f"lag {_seconds(feed.lag_s)}"
        for feed in view.feeds
    )
    return f"{elapsed_s:6.1f} s  in {view.rows_in_total:,} rows  frontier lag {_seconds(view.frontier_lag_s)}  {feeds}"


def summary_table(view: BusView, elapsed_s: float) -> Table:
    """Return what was done in all."""
    table = Table(title=f"after {elapsed_s:.0f} s", title_justify="left")
    for heading in ("what", "rows", "mean rows/s", "reached ts", "at (ms)", "state"):
        table.add_column(heading, justify="right" if heading not in ("what", "state") else "left")
    frontier = view.frontier
    resolved = (str(frontier.resolved_ts), str(physical_ms(frontier.resolved_ts))) if frontier else ("-", "-")
    rate = view.rows_in_total / elapsed_s if elapsed_s else 0.0
    table.add_row("raw log", f"{view.rows_in_total:,}", f"{rate:,.0f}", *resolved, "")
    for feed in view.feeds:
        status = feed.status
        reached = (str(status.checkpoint_ts), str(physical_ms(status.checkpoint_ts))) if status else ("-", "-")
        mean = feed.rows_total / elapsed_s if elapsed_s else 0.0
        state = status.state if status else "starting"
        table.add_row(feed.changefeed_id, f"{feed.rows_total:,}", f"{mean:,.0f}", *reached, state)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s" if value < 1000 else f"{value:,.0f} s"
