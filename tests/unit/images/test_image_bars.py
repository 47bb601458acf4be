"""Table images under way, as `tidebus run` shows them."""

import io
import json
from dataclasses import asdict, replace
from typing import Any, cast

import pytest
from kazoo.exceptions import NoNodeError
from rich.console import Console

from compose.local.image_bars import BAR, ImageBar
from compose.local.live_view import live_picture, progress_line
from compose.local.monitor import BusView, Monitor
from compose.stack.local import Addresses
from consumers.control.owner.images.image_progress import FeedProgress, TableProgress, images_status
from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths

HALF = TableProgress(
    table_id=TableId(5), name="shop.items", partition="p0", mode="initial", rows=1_200, done_share=0.5, eta_s=9.0
)
YOUNG = TableProgress(table_id=TableId(6), name="", mode="resync", is_paused=True)
FEED = FeedProgress(
    namespace="default", id="orders", state="running", tables_left=2, tables_done=3, rows=4_500, eta_s=61.4,
    tables=(HALF, YOUNG),
)  # fmt: skip


def bars(*feeds: FeedProgress) -> tuple[ImageBar, ...]:
    """Return what is read of what an owner writes."""
    return tuple(ImageBar.read(item) for item in json.loads(json.dumps(images_status(feeds))))


def view(*feeds: FeedProgress) -> BusView:
    return BusView(
        rows_in_per_s=0.0, rows_in_total=0, frontier=None, frontier_lag_s=None, feeds=(), topics=(), images=bars(*feeds)
    )


def drawn(shown: BusView, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(live_picture(shown, 1.0, width))
    return console.export_text().rstrip("\n").split("\n")


def test_a_changefeed_and_its_begun_tables_have_a_line_each() -> None:
    lines = drawn(view(FEED), 100)
    at = lines.index("images of orders, running: 4,500 rows, 3 of 5 tables whole, 61 s to go")
    assert lines[at + 1].strip() == f"{'█' * (BAR // 2)}{'░' * (BAR // 2)}  50%  shop.items (p0): 1,200 rows, 9 s to go"
    assert lines[at + 2].strip() == "6: 0 rows, paused"
    assert not any("images of" in line for line in drawn(view(), 100))


def test_where_there_is_no_terminal_a_plain_line_says_how_far_images_are() -> None:
    paused = replace(FEED, state="paused", reason="its images are paused", eta_s=None)
    line = progress_line(view(paused), 7.0)
    assert line.endswith("  images of orders, paused: 4,500 rows, 3 of 5 tables whole; its images are paused")
    assert "images" not in progress_line(view(), 7.0)


@pytest.mark.parametrize("width", [40, 80])
def test_many_images_neither_scroll_nor_wrap(width: int) -> None:
    many = [replace(FEED, id=f"changefeed-with-a-long-name-{number}", tables=(HALF,) * 8) for number in range(20)]
    lines = drawn(view(*many), width)
    assert sum("images of" in line for line in lines) == 3
    assert sum("shop.items" in line or "█" in line for line in lines) == 12
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("node", [{}, {"id": "a"}, {**asdict(FEED), "rows": "many"}, {**asdict(FEED), "tables": [3]}])
def test_progress_that_is_said_otherwise_does_not_decode(node: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        ImageBar.read(node)


class Nodes:
    """What a look asks ZooKeeper's client for."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}

    def get(self, path: str) -> tuple[bytes, None]:
        if path not in self.nodes:
            raise NoNodeError(path)
        return self.nodes[path], None


def test_a_look_at_the_bus_reads_what_the_owner_says_of_images() -> None:
    paths, upstream = ZkPaths("c"), UpstreamId("u")
    addresses = Addresses(kafka="127.0.0.1:1", zookeeper="127.0.0.1:1", schema_registry="http://127.0.0.1:1")
    server = Nodes()
    monitor = Monitor(addresses, paths, upstream, lambda: Ts(1), ("t",))
    monitor._zookeeper = cast(Any, server)
    assert monitor._images() == ()
    node = paths.upstream(upstream)
    server.nodes[node] = json.dumps({"images": images_status([FEED])}).encode()
    assert monitor._images() == bars(FEED)
    for odd in (b"", b"no json", b"[]", b'{"images": [{}]}'):
        server.nodes[node] = odd
        assert monitor._images() == ()
