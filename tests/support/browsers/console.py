"""The console in a real browser, before two real captures: what tests of its pages and of its verbs share.

With ``TIDEBUS_SCREENSHOTS=1`` pictures of the pages are written into ``docs/console``.
"""

import http.client
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import Error as PlaywrightError

from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures
from consumers.control.fleets.settings import SorterSettings
from consumers.control.log.raw_log import retained_frontier
from edges.zookeeper.session import Session
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics
from tests.support.recorded.recording import TIDB_DATA

REACH_S = 240.0
CAUGHT_UP_S = 5.0
PICTURES = Path(__file__).parents[3] / "docs" / "console" if os.environ.get("TIDEBUS_SCREENSHOTS") else None
WIDTHS = (1440, 800, 390)
SHOWN_IN_DOCS = {
    *("overview", "changefeed", "draft", "captures", "upstream", "log", "proofs", "images", "history"),
    *("overview-dark", "create", "dialog light images-resync", "dialog dark verb-update"),
}
PICTURE_HEIGHT_MAX = 2600
"""Of a page, in pixels: a phone's page of a changefeed is far longer."""
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
"""axe-core (Deque Systems, MPL-2.0), as its package brings it; it is run in the page and not shipped."""
RULES = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
REFUSED = "the server responded with a status of 50"
"""What a browser says of an answer such as that no owner has been elected yet: lawful, and shown by the page."""
NIGHTLY = pytest.mark.skipif(
    not os.environ.get("NIGHTLY_CONSOLE"),
    reason="takes half a minute each; make nightly presses every button, make test looks at each page",
)


@dataclass
class Bus:
    """Two captures' APIs; the first has a sorter service."""

    captures: dict[str, str]
    """Addresses by id."""
    stack: Addresses
    name: str
    with_sorters: str
    """Id of the capture that has a sorter service."""
    pd: str

    @property
    def kafka(self) -> str:
        return self.stack.kafka

    @property
    def url(self) -> str:
        """The console of the capture without sorters: it stores a changefeed without a look at its sink."""
        return f"http://{next(self.captures[each] for each in self.captures if each != self.with_sorters)}/console"

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.captures[self.with_sorters], timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def state(self, feed: str) -> str:
        return str(self.ask("GET", f"/api/v2/changefeeds/{feed}/status")[1].get("state", ""))

    def lag_s(self, feed: str) -> float:
        status, shown = self.ask("GET", f"/api/v2/changefeeds/{feed}/status")
        return time.time() - physical_ms(Ts(int(shown["checkpoint_ts"]))) / 1000 if status == 200 else math.inf

    def tables(self, capture: str) -> list[int]:
        status, shown = self.ask("GET", f"/api/v2/processors/all/{capture}")
        return list(shown.get("table_ids", [])) if status == 200 else []

    def owner(self) -> str:
        items = self.ask("GET", "/api/v2/captures")[1].get("items", [])
        return next((str(item["id"]) for item in items if item["is_owner"]), "")


def reached(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + REACH_S
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"not reached: {what}")


@contextmanager
def console_bus(stack: Addresses, folder: Path) -> Iterator[Bus]:
    """Start two captures over a recording of a real TiDB, and a changefeed ``all`` from its first row on."""
    name, stopping = f"shop{time.time_ns() % 10**10}", threading.Event()
    with ExitStack() as exits:
        server = exits.enter_context(RegionServer(min_ts_interval_ms=100))
        session = exits.enter_context(Session(stack.zookeeper_access))
        replay = Replay(server, read_recording(TIDB_DATA))
        server.call(replay.load())

        async def write() -> None:
            await replay.run(0.0, wait_for_subscriber=True)
            if PICTURES is not None:  # of a bus that is at work
                await Generator(server, GeneratorOptions(schema="shop", rows_per_s=300)).run()

        server.spawn(write())

        def run(sorters: SorterSettings) -> Any:
            options = CaptureOptions(
                pd=server.pd_address,
                kafka=stack.kafka_access,
                zookeeper=stack.zookeeper_access,
                schema_registry=stack.registry_access,
                cluster=name,
                upstream=UpstreamId(name),
                addr="127.0.0.1:0",
                session_timeout_s=30.0,  # a slow machine must not lose the ids that are asked for
                sorters=sorters,
                graceful_stop_timeout_s=1.0,
            )
            before = {capture.capture_id for capture in list_captures(session, ZkPaths(name))}
            thread = threading.Thread(target=run_capture, args=(options, stopping))
            thread.start()
            exits.callback(thread.join, 60)
            exits.callback(stopping.set)

            def fresh() -> list[CaptureInfo]:
                return [each for each in list_captures(session, ZkPaths(name)) if each.capture_id not in before]

            return reached(fresh, "a capture")[0]

        first = run(SorterSettings(data_dir=folder, run_cuts="driver", spark_on_demand=True, retry_first_s=1.0))
        second = run(SorterSettings(master="none"))
        captures = {str(capture.capture_id): capture.address for capture in (first, second)}
        bus = Bus(captures, stack, name, str(first.capture_id), server.pd_address)
        reached(lambda: bus.ask("GET", "/api/v2/health")[0] == 200, "health")
        body = {
            "changefeed_id": "all",
            "sink_uri": f"kafka://{stack.kafka}/{name}-all?protocol=canal-json&enable-tidb-extension=true",
        }
        body["replica_config"] = {"force_replicate": True}  # type: ignore[assignment]
        topics = raw_topics(UpstreamId(name))  # from the first row on, however long all this takes
        window = reached(lambda: retained_frontier(stack.kafka_access, topics), "the first frontier")
        body["start_ts"] = window.oldest_ts
        reached(lambda: bus.ask("POST", "/api/v2/changefeeds", body)[0] == 200, "a changefeed")
        if PICTURES is not None:
            reached(lambda: bus.lag_s("all") < CAUGHT_UP_S, "the changefeed has caught up")
        yield bus


@dataclass
class Shown:
    """A page of the browser; what its console says is kept."""

    page: Page
    bus: Bus
    complaints: list[str] = field(default_factory=list)

    def go(self, target: str, heading: str) -> None:
        self.page.goto(f"{self.bus.url}#/{target}")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(self.page.locator("#link")).to_have_text("Live")

    def check(self, name: str, card: Locator | None = None) -> None:
        """See that axe finds nothing, and take pictures if they are wanted: of the page, or of one card alone."""
        self.page.evaluate(AXE)
        for violation in self.page.evaluate(f"{RULES}.then((said) => said.violations)"):
            nodes = [node["html"][:200] for node in violation["nodes"][:3]]
            self.complaints.append(f"{name}: {violation['id']} ({violation['impact']}): {nodes}")
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        if PICTURES is not None and name in SHOWN_IN_DOCS:
            before = self.page.viewport_size
            for width in WIDTHS if card is None else WIDTHS[:1]:
                self.page.set_viewport_size({"width": width, "height": 1100})
                self._take(PICTURES / f"{name.replace(' ', '-')}-{width}.png", width, card)
            if before is not None:
                self.page.set_viewport_size(before)

    def _take(self, path: Path, width: int, card: Locator | None) -> None:
        if card is not None:
            card.screenshot(path=path)
        elif self.page.get_by_role("dialog").count():  # what is behind it does not scroll
            self.page.screenshot(path=path)
        else:
            height = min(PICTURE_HEIGHT_MAX, int(self.page.evaluate("document.documentElement.scrollHeight")))
            self.page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})

    def press(self, button: Locator, confirm: str) -> None:
        """Press a button once it may be, and confirm what its dialog says."""
        expect(button).not_to_have_attribute("aria-disabled", "true")
        button.click()
        expect(self.page.locator("#dialog-request")).to_contain_text("/api/")
        self.confirm(confirm)

    def confirm(self, name: str) -> None:
        """Confirm a dialog; again where it is refused, for an owner may just be beginning."""
        dialog = self.page.get_by_role("dialog")
        button = dialog.get_by_role("button", name=name, exact=True)

        def is_done() -> bool:
            with suppress(PlaywrightError):  # it has just been closed
                if button.is_enabled(timeout=1000):
                    button.click(timeout=1000)
            return dialog.count() == 0

        reached(is_done, f"{name} is done")


@contextmanager
def opened_pages(bus: Bus, browser: Browser) -> Iterator[Callable[..., Shown]]:
    """Give what opens a page; nothing may have complained in any of them at the end."""
    with ExitStack() as exits:
        shown: list[Shown] = []

        def open_page(**settings: Any) -> Shown:
            context = browser.new_context(viewport={"width": 1440, "height": 900}, **settings)
            exits.callback(context.close)
            context.set_default_timeout(REACH_S * 1000)
            expect.set_options(timeout=REACH_S * 1000)
            shown.append(Shown(context.new_page(), bus))
            page, complaints = shown[-1].page, shown[-1].complaints
            page.on("console", lambda said: None if REFUSED in said.text else complaints.append(said.text))
            page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
            return shown[-1]

        yield open_page
        assert [complaint for each in shown for complaint in each.complaints] == []
