"""What `tidebus top` shows of one answer of the API's overview: a picture that fits the terminal, whatever its size."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from compose.escapes import escaped
from compose.local.image_bars import table_text
from compose.local.monitor import Rate

WIDE: Final = 100
"""Columns from which on there is room for what one can do without."""
FIXED_LINES: Final = 9
"""Title, two headings with their rules, and what stands between."""
SILENT_S: Final = 10.0
"""An owner that says nothing for longer is missed: what stands of an upstream beside its lag is of then."""
ERRORS_MAX: Final = 3
IMAGES_MAX: Final = 3
"""Changefeeds whose table images are shown."""
PROLOGUES_MAX: Final = 3
"""Changefeeds whose prologue is shown."""
LINES_A_TABLE: Final = 5
"""So many lines of the terminal give room for one table whose image is begun."""
_CODE: Final = re.compile(r"^\[[a-z_.]+\] ")
"""Of an error, for logs and greps; here it would hide the words."""


class Top:
    """Rates over the last seconds, from one answer to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, ...], Rate] = {}
        self._overview: Mapping[str, Any] = {}

    def take(self, overview: Mapping[str, Any], now_s: float) -> None:
        """Take an answer of ``/api/tidebus/overview`` that came at ``now_s``, by a clock that never jumps."""
        self._overview = overview = _shown(overview)
        for item in overview["upstreams"]:
            self._note(("upstream", item["upstream"]), now_s, item.get("rows_in", 0))
        for item in overview["changefeeds"]:
            self._note(("feed", item["namespace"], item["id"]), now_s, item["rows_total"])

    def picture(self, width: int, height: int) -> RenderableType:
        """Return the picture for a terminal of this size."""
        seen = self._overview
        upstreams = self._upstreams(width, max(0, height - FIXED_LINES) // LINES_A_TABLE)
        spark = self._spark(width)
        room = max(2, height - FIXED_LINES - len(upstreams) - len(spark))
        errors = self._errors(width)[: max(0, min(ERRORS_MAX, room // 4))]
        room -= len(errors)
        shown_captures = max(1, min(len(seen["captures"]), room // 3))
        captures = self._captures(width, shown_captures)
        feeds = self._feeds(width, max(1, room - shown_captures))
        return Group(self._title(width), *upstreams, *spark, captures, feeds, *errors)

    def _title(self, width: int) -> Text:
        seen = self._overview
        text = f"TideBus {seen['cluster_id']}: {len(seen['captures'])} captures, {len(seen['changefeeds'])} changefeeds"
        title = Text(text, style="bold")
        if seen["captures"] and not any(capture["is_owner"] for capture in seen["captures"]):
            title.append(", no owner", style="yellow")
        return _line(title, width)

    def _upstreams(self, width: int, tables_max: int) -> list[Text]:
        lines: list[Text] = []
        for upstream in self._overview["upstreams"]:
            rate = self._rate(("upstream", upstream["upstream"]))
            held = upstream.get("tables_held", 0)
            text = Text(f"{upstream['upstream']}: lag {_seconds(upstream.get('lag_s'))}, {rate} rows/s in, ")
            text.append(f"{upstream.get('tables', 0)} tables, {upstream.get('regions', 0)} regions")
            if held:
                text.append(f", {held} tables held", style="yellow")
            if (silent_s := upstream.get("silent_s") or 0.0) > SILENT_S:
                text.append(f", its owner has said nothing for {_seconds(silent_s)}", style="yellow")
            if upstream.get("error"):
                text.append(f", {upstream.get('state', '')}: {upstream['error'].get('message', '')}", style="red")
            for stall in upstream.get("stalls", ())[:1]:
                text.append(f"; {_CODE.sub('', stall)}", style="yellow")
            lines.append(_line(text, width))
            before = [feed for feed in self._overview["changefeeds"] if feed.get("prologue")]
            mine = [feed for feed in before if feed.get("upstream") == upstream["upstream"]]
            lines += [_line(_prologue(feed), width) for feed in mine[:PROLOGUES_MAX]]
            for feed in upstream.get("images", ())[:IMAGES_MAX]:
                tables = feed.get("tables", ())[:tables_max]
                tables_max -= len(tables)
                lines += [_line(text, width) for text in (_image(feed), *map(_imaged_table, tables))]
        return lines

    def _spark(self, width: int) -> list[Text]:
        """Return where Spark shows itself, in one line; none: nowhere, or the capture is of a former version."""
        shown = [service for service in self._overview.get("services", ()) if service["spark_ui"]]
        texts = [f"{service['spark_ui']} ({(service['capture'] or service['id'])[:8]})" for service in shown]
        return [_line(Text(f"Spark: {', '.join(texts)}"), width)] if texts else []

    def _captures(self, width: int, most: int) -> Table:
        seen = self._overview["captures"]
        table = _table(("capture", "address", "tables", "version"), ("left", "left", "right", "left"))
        for capture in seen[:most]:
            name = capture["id"] if width >= WIDE else capture["id"][:8]
            table.add_row(
                Text(f"{name} owner" if capture["is_owner"] else name, style="bold" if capture["is_owner"] else ""),
                Text(capture["address"]),
                "-" if capture["tables"] is None else f"{capture['tables']:,}",
                Text(capture["version"]),
            )
        return _counted(table, len(seen), most)

    def _feeds(self, width: int, most: int) -> Table:
        seen = self._overview["changefeeds"]
        headings = ["changefeed", "state", "lag", "rows/s", "by Spark", "sorter", "ended", "batch", "checkpoint ts"]
        kept = len(headings) if width >= WIDE else 7
        sides: list[JustifyMethod] = ["left", "left", "right", "right", "right", "left", "right", "right", "right"]
        table = _table(headings[:kept], sides)
        # Trouble first: of many only some can be seen.
        for feed in sorted(seen, key=lambda item: (item["error"] is None, -item["checkpoint_lag_s"]))[:most]:
            cells = (
                Text(feed["id"] if feed["namespace"] == "default" else f"{feed['namespace']}/{feed['id']}"),
                Text(feed["state"], style=_STYLES.get(feed["state"], "")),
                _seconds(feed["checkpoint_lag_s"]),
                self._rate(("feed", feed["namespace"], feed["id"])),
                _by_spark(feed),
                _sorter(feed["sorter"]),
                str(feed.get("sorter_deaths", 0)),
                f"{feed['batch_rows']:,} in {feed['batch_s']:.1f} s",
                str(feed["checkpoint_ts"]),
            )
            table.add_row(*cells[:kept])
        return _counted(table, len(seen), most)

    def _errors(self, width: int) -> list[Text]:
        failed = [feed for feed in self._overview["changefeeds"] if feed["error"]]
        texts = [f"{feed['id']}: {feed['error']['code']}: {feed['error']['message']}" for feed in failed]
        return [_line(Text(text, style="red"), width) for text in texts]

    def _note(self, key: tuple[str, ...], now_s: float, counter: int) -> None:
        self._rates.setdefault(key, Rate()).note(now_s, counter)

    def _rate(self, key: tuple[str, ...]) -> str:
        return f"{self._rates[key].per_s():,.0f}"


def _shown(said: object) -> Any:
    """Return an answer whose texts are lines, and drive no terminal: errors quote names and statements of upstream."""
    if isinstance(said, Mapping):
        return {key: _shown(value) for key, value in said.items()}
    if isinstance(said, list):
        return [_shown(value) for value in said]
    return escaped(" ".join(said.split())) if isinstance(said, str) else said


_STYLES: Final = {"normal": "green", "warning": "yellow", "failed": "red", "stopped": "blue"}


def _table(headings: Sequence[str], sides: Sequence[JustifyMethod]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading, side in zip(headings, sides, strict=False):
        table.add_column(heading, justify=side, no_wrap=True, overflow="ellipsis")
    return table


def _counted(table: Table, there: int, most: int) -> Table:
    if there > most:
        table.add_row(Text(f"… and {there - most} more", style="dim"))
    return table


def _line(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _image(feed: Mapping[str, Any]) -> Text:
    eta = "" if feed["eta_s"] is None else f", {_seconds(feed['eta_s'])} to go"
    paused = f", {feed['tables_paused']:,} of them paused" if feed.get("tables_paused") else ""
    reason = f"; {feed['reason']}" if feed.get("reason") else ""
    text = f"  images of {feed['id']}, {feed['state']}: {feed['rows']:,} rows, {feed['tables_left']:,} tables left"
    return Text(f"{text}{paused}{eta}{reason}", style="cyan")


def _prologue(feed: Mapping[str, Any]) -> Text:
    said = feed["prologue"]
    if said["error"]:
        state, style = f"failed: {said['error']['message']}", "red"
    elif said["is_complete"]:
        state, style = "is run by its sorter", "cyan"
    elif said["attempt"]:
        state, style = f"is read from TiKV, attempt {said['attempt']}", "cyan"
    else:
        state, style = "has not begun", "yellow"
    return Text(f"  prologue of {feed['id']}, ({said['start_ts']}, {said['end_ts']}]: {state}", style=style)


def _imaged_table(table: Mapping[str, Any]) -> Text:
    share = "" if table["done_share"] is None else f", {table['done_share']:.0%}"
    eta = "" if table["eta_s"] is None else f", {_seconds(table['eta_s'])} to go"
    paused = ", paused" if table.get("is_paused") else ""
    counts = f"{table['rows']:,} rows, {table['bytes'] / 1e6:,.1f} MB in {table['chunks']:,} chunks"
    return Text(f"    {table_text(table)}: {counts}{share}{eta}{paused}", style="cyan")


def _by_spark(feed: Mapping[str, Any]) -> str:
    rows = feed.get("sorter_rows_total", 0)
    return f"{feed['spark_rows_total'] / rows:.0%}" if rows else "-"


def _sorter(sorter: Mapping[str, Any] | None) -> str:
    if not sorter:
        return "-"
    process = f"pid {sorter['pid']}" if "pid" in sorter else "starts"
    where = sorter.get("capture") or sorter.get("service") or ""
    return f"{process} {where[:8]}".rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s" if value < 1000 else f"{value:,.0f} s"
