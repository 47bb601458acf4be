"""The live picture of `tidebus top`: whatever the terminal's size, it fits."""

import json
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from compose.cli import run_cli
from compose.operator.top_view import Top
from consumers.control.api.serving.server import ApiServer
from schemas.ids import TableId
from tests.support.control.memory_bus import ME, OTHER, Memory, Shares


def feed(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "namespace": "default",
        "id": f"changefeed-with-a-long-name-{number}",
        "upstream": "u",
        "state": "normal",
        "checkpoint_ts": 461373440000000100,
        "checkpoint_lag_s": 1.25,
        "resolved_lag_s": 0.5,
        "rows_total": 1000 * number,
        "sorter_deaths": 0,
        "batch_rows": 12_345,
        "batch_s": 0.5,
        "error": None,
        "sorter": {"host": "h", "pid": 4711, "service": "s1", "capture": "00000001-0000-4000-8000-000000000000"},
        **changes,
    }


def overview(captures: int, feeds: list[dict[str, Any]], **upstream: Any) -> dict[str, Any]:
    return {
        "cluster_id": "default",
        "at_s": 0.0,
        "upstreams": [{"upstream": "u", "lag_s": 0.4, "rows_in": 0, "tables": 28, "regions": 90, **upstream}],
        "captures": [
            {
                "id": f"{number:08d}-0000-4000-8000-000000000000",
                "is_owner": number == 0,
                "address": f"127.0.0.1:{8300 + number}",
                "version": "0.1.0",
                "tables": 10 + number if number < 50 else None,
            }
            for number in range(captures)
        ],
        "changefeeds": feeds,
    }


def drawn(top: Top, width: int, height: int) -> list[str]:
    text = StringIO()
    Console(file=text, width=width, height=height, color_system=None).print(top.picture(width, height))
    return text.getvalue().rstrip("\n").split("\n")


ERROR = {"time": "", "addr": "", "code": "sorter.dispatch_failed", "message": "no such\ncolumn " + "x" * 300}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 15), (200, 50), (100, 24)])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_top_fits_the_terminal_with_few_and_with_many(width: int, height: int, count: int) -> None:
    top = Top()
    feeds = [feed(number, error=ERROR if number % 2 else None) for number in range(count)]
    top.take(overview(count, feeds, tables_held=2, stalls=["table 5: region 7 has no leader " + "x" * 200]), 0.0)
    lines = drawn(top, width, height)
    assert len(lines) <= height, "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"TideBus default: {count} captures, {count} changefeeds")


def test_top_shows_any_text_without_driving_the_terminal() -> None:
    evil = "t\x1b]52;c;cm0gLXJm\x07\x9b2J\u202e\x7f"
    seen = overview(1, [feed(1, error={"time": "", "addr": "", "code": "x.y", "message": evil})])
    seen["captures"][0]["address"] = f"[/red]{evil}"
    top = Top()
    top.take(seen, 0.0)
    lines = drawn(top, 200, 40)
    assert any("[/red]t" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_top_shows_lag_rates_sorters_tables_and_errors_at_80_by_24() -> None:
    top = Top()
    feeds = [feed(1, id="good"), feed(2, id="bad", state="failed", error=ERROR, sorter=None, sorter_deaths=3)]
    top.take(overview(2, feeds, tables_held=2), 10.0)
    again = [{**changefeed, "rows_total": changefeed["rows_total"] + 500} for changefeed in feeds]
    top.take(overview(2, again, tables_held=2, rows_in=4000), 12.0)
    text = "\n".join(drawn(top, 80, 24))
    assert "u: lag 0.4 s, 2,000 rows/s in, 28 tables, 90 regions, 2 tables held" in text
    assert "00000000 owner" in text and "127.0.0.1:8301" in text and " 11 " in text
    good, bad = (next(line for line in text.split("\n") if line.startswith(name)) for name in ("good", "bad "))
    assert good.split() == ["good", "normal", "1.3", "s", "250", "pid", "4711", "0"] or "250" in good.split()
    assert "pid 4711" in good and "failed" in bad and bad.split()[-1] == "3"
    assert text.index("bad ") < text.index("good"), "trouble stands first"
    assert "bad: sorter.dispatch_failed: no such column" in text


def test_top_says_that_there_is_no_owner_and_how_long_it_has_said_nothing() -> None:
    top = Top()
    seen = overview(2, [feed(1)], silent_s=599.6)
    for capture in seen["captures"]:
        capture["is_owner"] = False
    top.take(seen, 0.0)
    lines = drawn(top, 120, 24)
    assert lines[0].strip() == "TideBus default: 2 captures, 1 changefeeds, no owner"
    assert lines[1].strip() == (
        "u: lag 0.4 s, 0 rows/s in, 28 tables, 90 regions, its owner has said nothing for 599.6 s"
    )
    top.take(overview(2, [feed(1)], silent_s=9.9), 1.0)
    lines = drawn(top, 120, 24)
    assert not any("owner has said" in line or "no owner" in line for line in lines)


def test_top_shows_where_spark_is_and_its_share_of_rows() -> None:
    top = Top()
    half = feed(1, id="half", sorter_rows_total=200, spark_rows_total=50)
    services = [
        {"id": "one", "capture": "00000001-0000-4000-8000-000000000000", "spark_ui": "http://127.0.0.1:4040"},
        {"id": "by-hand", "capture": "", "spark_ui": "http://127.0.0.1:4041"},
        {"id": "cold", "capture": "", "spark_ui": ""},
    ]
    top.take({**overview(1, [half, feed(2, id="none")]), "services": services}, 0.0)
    for width in (80, 120):
        lines = drawn(top, width, 24)
        assert "Spark: http://127.0.0.1:4040 (00000001), http://127.0.0.1:4041 (by-hand)" in [
            line.strip() for line in lines
        ]
        assert "25%" in next(line for line in lines if line.startswith("half")).split()
        assert "%" not in next(line for line in lines if line.startswith("none"))


def test_top_says_what_of_images_rests_and_why() -> None:
    top = Top()
    images = {"id": "a", "state": "paused", "rows": 1200, "tables_left": 7, "tables_paused": 2, "eta_s": None}
    top.take(overview(1, [feed(1)], images=[{**images, "reason": "its images are paused"}]), 0.0)
    line = next(line for line in drawn(top, 120, 24) if "images of a" in line)
    assert line.strip() == "images of a, paused: 1,200 rows, 7 tables left, 2 of them paused; its images are paused"
    older = {key: value for key, value in images.items() if key != "tables_paused"}
    top.take(overview(1, [feed(1)], images=[{**older, "state": "running", "eta_s": 9.0}]), 0.0)
    line = next(line for line in drawn(top, 120, 24) if "images of a" in line)
    assert line.strip() == "images of a, running: 1,200 rows, 7 tables left, 9.0 s to go"


def test_top_shows_the_tables_whose_images_are_begun_where_there_is_room() -> None:
    top = Top()
    counts = {"rows": 1200, "bytes": 3_400_000, "chunks": 2}
    tables = [
        {"table_id": 7, "name": "d.t", "partition": "p0", **counts, "done_share": 0.25, "eta_s": 12.0},
        {"table_id": 8, "name": "", **counts, "done_share": None, "eta_s": None, "is_paused": True},
        *({"table_id": 9, "name": "d.u", **counts, "done_share": None, "eta_s": None} for _ in range(5)),
    ]
    images = {"id": "a", "state": "running", "rows": 1200, "tables_left": 9, "eta_s": None, "tables": tables}
    top.take(overview(1, [feed(1)], images=[images]), 0.0)
    lines = [line.strip() for line in drawn(top, 120, 30) if " MB in " in line]
    assert lines[:2] == [
        "d.t (p0): 1,200 rows, 3.4 MB in 2 chunks, 25%, 12.0 s to go",
        "8: 1,200 rows, 3.4 MB in 2 chunks, paused",
    ]
    assert (len(lines), len(drawn(top, 120, 30)) <= 30) == (4, True)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"attempt": 0, "is_complete": False, "error": None}, "has not begun"),
        ({"attempt": 2, "is_complete": False, "error": None}, "is read from TiKV, attempt 2"),
        ({"attempt": 2, "is_complete": True, "error": None}, "is run by its sorter"),
        ({"attempt": 2, "is_complete": False, "error": {"code": "c", "message": "gone"}}, "failed: gone"),
    ],
)
def test_top_says_how_far_a_prologue_is(said: dict[str, Any], line: str) -> None:
    top = Top()
    top.take(overview(1, [feed(1, id="a", prologue={"start_ts": 5, "end_ts": 9, **said}), feed(2)]), 0.0)
    (shown,) = [text.strip() for text in drawn(top, 120, 24) if "prologue" in text]
    assert shown == f"prologue of a, (5, 9]: {line}"


@pytest.fixture
def server() -> Iterator[str]:
    bus = Memory()
    bus.leader, bus.shares = ME.capture_id, Shares({OTHER.capture_id: [TableId(1)]})
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        yield server.address


def test_top_once_prints_one_picture_and_json_all_of_it(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["top", "--once", "--interval", "10ms", "--server", server]) == 0
    assert "TideBus default: 2 captures, 0 changefeeds" in capsys.readouterr().out
    assert run_cli(["top", "--once", "--json", "--server", server]) == 0
    assert json.loads(capsys.readouterr().out)["captures"][1]["tables"] == 1
