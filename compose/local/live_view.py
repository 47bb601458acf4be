"""What `tidebus run` shows: the live picture, and the summary at the end."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compose.local.image_bars import image_bars, image_text
from compose.local.monitor import BusView, FeedView

TOPICS_SHOWN_MAX = 12
TS_WIDTH_MIN = 96
"""Columns of a terminal that has room for the ts, too; without them the picture fits 80 by 24."""
ERROR_LINES_MAX = 3


def live_picture(view: BusView, elapsed_s: float, width: int) -> RenderableType:
    """Return the picture of now for a terminal of ``width`` columns, in few lines: it must not scroll."""
    headings = ["", "state", "rows/s", "rows", "lag", "batch", "resolved or checkpoint ts"]
    if width < TS_WIDTH_MIN:
        headings.pop()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    for row in (_log_row(view), *map(_feed_row, view.feeds)):
        table.add_row(*row[: len(headings)])
    title = Text(f"TideBus, {elapsed_s:.0f} s; Ctrl-C ends it", style="bold")
    topics = topics_line(view)
    topics.no_wrap, topics.overflow = True, "ellipsis"
    return Group(title, table, *image_bars(view.images, width), topics, *_errors(view.feeds, width))


def _log_row(view: BusView) -> tuple[Text | str, ...]:
    resolved = str(view.frontier.resolved_ts) if view.frontier else "-"
    return (
        "raw log",
        "",
        f"{view.rows_in_per_s:,.0f}",
        f"{view.rows_in_total:,}",
        _seconds(view.frontier_lag_s),
        "",
        resolved,
    )


def _feed_row(feed: FeedView) -> tuple[Text | str, ...]:
    status = feed.status
    if status is None:
        return feed.changefeed_id, "starting", *["-"] * 5
    return (
        feed.changefeed_id,
        Text(status.state, style="green" if status.state == "normal" else "red"),
        f"{feed.rows_per_s:,.0f}",
        f"{feed.rows_total:,}",
        _seconds(feed.lag_s),
        f"{status.batch_rows:,} in {status.batch_s:.2f} s" if status.batch_s else "-",
        str(status.checkpoint_ts),
    )


def _errors(feeds: tuple[FeedView, ...], width: int) -> list[Text]:
    """Return the last error of each changefeed that has one, on lines of their own: they are long."""
    errors = [(feed.changefeed_id, feed.status.error) for feed in feeds if feed.status and feed.status.error]
    texts = [Text(f"{name}: {error.code}: {error.message}", style="red") for name, error in errors]
    for text in texts:
        text.truncate(ERROR_LINES_MAX * width, overflow="ellipsis")
    return texts


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
    images = "".join(f"  {image_text(image)}" for image in view.images)
    lag = _seconds(view.frontier_lag_s)
    return f"{elapsed_s:6.1f} s  in {view.rows_in_total:,} rows  frontier lag {lag}  {feeds}{images}"


def summary_table(view: BusView, elapsed_s: float) -> Table:
    """Return what was done in all."""
    table = Table(title=f"after {elapsed_s:.0f} s", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("what", "rows", "mean rows/s", "by Spark", "reached ts", "state"):
        table.add_column(heading, justify="right" if heading not in ("what", "state") else "left", no_wrap=True)
    resolved = str(view.frontier.resolved_ts) if view.frontier else "-"
    rate = view.rows_in_total / elapsed_s if elapsed_s else 0.0
    table.add_row("raw log", f"{view.rows_in_total:,}", f"{rate:,.0f}", "", resolved, "")
    for feed in view.feeds:
        status = feed.status
        reached = str(status.checkpoint_ts) if status else "-"
        mean = feed.rows_total / elapsed_s if elapsed_s else 0.0
        state = status.state if status else "starting"
        share = f"{status.spark_rows_total / status.rows_total:.0%}" if status and status.rows_total else "-"
        table.add_row(feed.changefeed_id, f"{feed.rows_total:,}", f"{mean:,.0f}", share, reached, state)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s" if value < 1000 else f"{value:,.0f} s"
