"""The console in a real browser, before two real captures: each page, each verb, and a failed changefeed that is mended
by what its page advises. Nothing is expected that the page itself says: the API is asked what has come of it.

With ``TIDEBUS_SCREENSHOTS=1`` pictures of the pages are written into ``docs/console``.
"""

import http.client
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import Error as PlaywrightError

from compose.capture.options import CaptureOptions
from compose.capture.process import run_capture
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures
from consumers.control.fleets.settings import SorterSettings
from consumers.control.log.raw_log import frontier_window
from edges.zookeeper.session import Session
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics
from tests.support.browser import started_browser
from tests.support.firefox import started_firefox
from tests.support.raw_log import read_topic
from tests.support.recording import TIDB_DATA

REACH_S = 240.0
CAUGHT_UP_S = 5.0
SHOWN_WHOLE_BYTES = 2_000
"""Of a message; longer ones are cut where they are shown."""
PICTURES = Path(__file__).parents[2] / "docs" / "console" if os.environ.get("TIDEBUS_SCREENSHOTS") else None
WIDTHS = (1440, 800, 390)
SHOWN_IN_DOCS = {"overview", "changefeed", "draft", "captures", "upstream", "overview-dark"}
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
"""axe-core (Deque Systems, MPL-2.0), as its package brings it; it is run in the page and not shipped."""
RULES = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
REFUSED = "the server responded with a status of 50"
"""What a browser says of an answer such as that no owner has been elected yet: lawful, and shown by the page."""
NIGHTLY = pytest.mark.skipif(
    not os.environ.get("NIGHTLY_CONSOLE"),
    reason="takes half a minute each; make nightly presses every button, make test looks at each page",
)
PAGES = {
    "": "Overview",
    "create": "Create a changefeed",
    "captures": "Captures and tables",
    "upstream": "Upstream",
    "events": "Log and events",
    "checks": "Checks",
}


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


@pytest.fixture(scope="module")
def bus(stack: Addresses, tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Bus]:
    """Asks for the browser first: without one nothing is started."""
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

        folder = tmp_path_factory.mktemp("sorters")
        first = run(SorterSettings(data_dir=folder, run_cuts="driver", retry_first_s=1.0))
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
        window = reached(lambda: frontier_window(stack.kafka_access, topics), "the first frontier")
        body["start_ts"] = window.oldest_ts
        reached(lambda: bus.ask("POST", "/api/v2/changefeeds", body)[0] == 200, "a changefeed")
        if PICTURES is not None:
            reached(lambda: bus.lag_s("all") < CAUGHT_UP_S, "the changefeed has caught up")
        yield bus


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as opened:
        yield opened


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

    def check(self, name: str) -> None:
        """See that axe finds nothing, and take pictures if they are wanted."""
        self.page.evaluate(AXE)
        for violation in self.page.evaluate(f"{RULES}.then((said) => said.violations)"):
            nodes = [node["html"][:200] for node in violation["nodes"][:3]]
            self.complaints.append(f"{name}: {violation['id']} ({violation['impact']}): {nodes}")
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        if PICTURES is not None and name in SHOWN_IN_DOCS:
            before = self.page.viewport_size
            for width in WIDTHS:
                self.page.set_viewport_size({"width": width, "height": 1100})
                self.page.screenshot(path=PICTURES / f"{name}-{width}.png")
            if before is not None:
                self.page.set_viewport_size(before)

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


@pytest.fixture
def opened(bus: Bus, browser: Browser) -> Iterator[Callable[..., Shown]]:
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


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), pytest.param("dark", 390, marks=NIGHTLY)])
def test_each_page_is_shown_and_axe_finds_nothing(
    opened: Callable[..., Shown], bus: Bus, scheme: str, width: int
) -> None:
    shown = opened(color_scheme=scheme, reduced_motion="reduce")
    shown.page.set_viewport_size({"width": width, "height": 900})
    for target, heading in PAGES.items():
        shown.go(target, heading)
        expect(shown.page.locator("main section").first).to_be_visible()
        if target == "checks":
            expect(shown.page.get_by_text("raw log", exact=True).first).to_be_visible()
        if target == "create":
            shown.page.get_by_label("Sink URI").fill(f"kafka://{bus.kafka}/{bus.name}-none?protocol=canal-json")
            shown.page.get_by_role("button", name="First messages").click()
            expect(shown.page.locator("#first code.message").first).to_be_visible()
        if target == "events":
            expect(shown.page.locator("#no-lines, main table").first).to_be_visible()
        if target == "captures":
            expect(shown.page.get_by_role("button", name="Move ").first).to_be_visible()
        shown.check(f"{target or 'overview'}{'-dark' if scheme == 'dark' else ''}")


def test_log_page_shows_what_the_capture_has_logged_and_its_changefeeds_lines_alone_if_asked(
    opened: Callable[..., Shown], bus: Bus
) -> None:
    log = logging.getLogger("consumers.of_a_test")
    log.warning("planted for all", extra={"capture": "c"})
    log.error("planted for one", extra={"changefeed": "all", "namespace": "default"})
    shown = opened(reduced_motion="reduce")
    shown.go("events", "Log and events")
    of_log = shown.page.get_by_role("region", name="Log", exact=True)
    expect(of_log).to_contain_text("planted for all capture=c")
    expect(of_log).to_contain_text("planted for one")
    shown.page.get_by_label("Of changefeed").select_option("all")
    expect(of_log).not_to_contain_text("planted for all")
    expect(of_log).to_contain_text("planted for one changefeed=all, namespace=default")
    shown.check("log")


def test_page_of_a_changefeed_shows_its_newest_proofs(opened: Callable[..., Shown], bus: Bus) -> None:
    def proofs_given() -> Any:
        status, said = bus.ask("GET", "/api/tidebus/changefeeds/all/proofs")
        return said["proofs"] if status == 200 else []

    reached(proofs_given, "a proof")
    shown = opened(reduced_motion="reduce")
    shown.go("changefeed/default/all", "Changefeed all")
    of_proofs = shown.page.get_by_role("region", name="Proofs", exact=True)
    expect(of_proofs).to_contain_text("Windows proven")
    expect(of_proofs.get_by_role("cell").first).to_be_visible()
    link = of_proofs.get_by_role("link").get_attribute("href")
    assert link is not None
    assert bus.ask("GET", link)[1]["proofs"][0]["changefeed"] == "all"
    shown.check("proofs")


def test_first_messages_of_a_draft_are_those_that_a_changefeed_of_its_settings_has_written(bus: Bus) -> None:
    topic = f"{bus.name}-all"

    def rows(texts: Iterable[str]) -> set[str]:
        messages = [json.loads(text) for text in texts]
        named = ("database", "table", "type", "data", "old", "_tidb")
        return {json.dumps([each.get(name) for name in named]) for each in messages if not each["isDdl"]}

    draft = {"sink_uri": f"kafka://{bus.kafka}/{bus.name}-none?protocol=canal-json&enable-tidb-extension=true"}
    draft["toml"] = "force-replicate = true"
    shown = reached(lambda: _rows_of(bus, draft), "rows in the raw log")

    def written() -> set[str]:
        return rows((record.value or b"").decode() for record in read_topic(bus.kafka, topic) if record.value)

    whole = (item["value"] for item in shown if item["op"] != "ddl" and item["value"]["bytes"] < SHOWN_WHOLE_BYTES)
    expected = rows(value["text"] for value in whole)
    assert expected
    reached(lambda: expected <= written(), "the changefeed has written the same")


def _rows_of(bus: Bus, draft: dict[str, str]) -> Any:
    status, shown = bus.ask("POST", "/api/tidebus/console/first-messages", draft)
    assert status == 200, shown
    assert shown["refused"] == []
    return shown["messages"]


@NIGHTLY
def test_each_page_is_shown_in_firefox_and_axe_finds_nothing(bus: Bus, tmp_path: Path) -> None:
    with started_firefox(tmp_path) as firefox:
        for target, heading in PAGES.items():
            firefox.go(f"{bus.url}#/{target}")
            firefox.until(f"document.querySelector('h1')?.textContent === {json.dumps(heading)}")
            firefox.until("document.querySelector('#link').textContent === 'Live'")
            firefox.until("document.querySelector('main section') !== null")
            firefox.run(AXE)
            assert firefox.value(f"{RULES}.then((said) => said.violations.map((each) => each.id))") == [], target
            for width in WIDTHS:
                firefox.resize(width, 900)
                assert firefox.value("document.documentElement.scrollWidth <= innerWidth"), f"{target} at {width}"
        firefox.go(f"{bus.url}#/create")
        firefox.until("document.querySelector('#uri') !== null")
        uri = json.dumps(f"kafka://{bus.kafka}/{bus.name}-none?protocol=canal-json")
        firefox.run(f"uri.value = {uri}; uri.dispatchEvent(new Event('input', {{bubbles: true}}))")
        firefox.until("checked.textContent.includes('tables are replicated')")
        firefox.run("document.querySelector('#show-first').click()")
        firefox.until("document.querySelector('#first code.message') !== null")
        firefox.go(f"{bus.url}#/changefeed/default/all")
        firefox.until("document.querySelector('#verb-pause:not([aria-disabled])') !== null")
        firefox.run("document.querySelector('#verb-pause').click()")
        firefox.until("document.querySelector('#dialog-request')?.textContent.includes('/pause')")
        firefox.run("document.querySelector('[data-do=close-dialog]').click()")
        assert firefox.complaints == []
    assert bus.state("all") == "normal"


@NIGHTLY
def test_pages_are_reached_by_keyboard_and_a_dialog_gives_the_focus_back(
    opened: Callable[..., Shown], bus: Bus
) -> None:
    shown = opened()
    shown.go("changefeed/default/all", "Changefeed all")
    expect(shown.page.get_by_role("heading", level=1)).to_be_focused()
    shown.page.locator(".skip").focus()
    expect(shown.page.locator(".skip")).to_be_in_viewport()
    shown.page.keyboard.press("Enter")
    expect(shown.page.locator("#main")).to_be_focused()
    remove = shown.page.locator("#verb-remove")
    remove.focus()
    shown.page.keyboard.press("Enter")
    expect(shown.page.get_by_role("dialog")).to_contain_text("for good")
    shown.page.keyboard.press("Escape")
    expect(remove).to_be_focused()
    assert bus.state("all") == "normal"


@NIGHTLY
def test_failed_changefeed_is_made_mended_by_its_pages_advice_and_removed(
    opened: Callable[..., Shown], bus: Bus
) -> None:
    shown = opened()
    page = shown.page
    shown.go("create", "Create a changefeed")
    uri = f"kafka://{bus.kafka}/{bus.name}-lake?protocol=canal-json&auto-create-topic=false"
    page.get_by_label("Changefeed id").fill("lake")
    page.get_by_label("Sink URI").fill("kafka://nothing")
    expect(page.locator("#checked .problem")).to_be_visible()
    page.get_by_label("Sink URI").fill(uri)
    page.get_by_label("Filter rules").fill("test.*")
    expect(page.get_by_label("TiCDC's TOML")).to_have_value('[filter]\nrules = ["test.*"]\n')
    page.get_by_label("TiCDC's TOML").fill('# by hand\nforce-replicate = true\n[filter]\nrules = ["*.*"]\n')
    expect(page.get_by_label("Tables without a key, too")).to_be_checked()
    expect(page.get_by_label("Filter rules")).to_have_value("*.*")
    expect(page.locator("#checked")).to_contain_text("tables are replicated")
    shown.check("draft")
    shown.press(page.get_by_role("button", name="Create …"), "Create")

    expect(page.get_by_role("heading", level=1)).to_have_text("Changefeed lake")
    expect(page.locator("#error-code")).to_have_text("sorter.topic_missing")
    reached(lambda: bus.state("lake") == "failed", "lake has failed")
    expect(page.locator("#advice")).to_contain_text("auto-create-topic=true")
    shown.check("changefeed")
    page.locator("#advised-update").click()
    page.get_by_label("Sink URI").fill(uri.replace("=false", "=true"))
    expect(page.locator("#dialog-request")).to_contain_text("auto-create-topic=true")
    shown.confirm("Update")
    page.locator("#advised-resume").click()
    shown.confirm("Resume")
    reached(lambda: bus.state("lake") == "normal", "lake runs")
    expect(page.locator("#error-code")).to_have_count(0)

    shown.press(page.locator("#verb-pause"), "Pause")
    reached(lambda: bus.state("lake") == "stopped", "lake is paused")
    shown.press(page.locator("#verb-resume"), "Resume")
    reached(lambda: bus.state("lake") == "normal", "lake goes on")
    move = page.locator("#verb-move")
    expect(move).not_to_have_attribute("aria-disabled", "true")
    move.click()
    page.get_by_role("dialog").get_by_label("Capture").select_option(bus.with_sorters)
    shown.confirm("Move")
    reached(lambda: bus.ask("GET", "/api/tidebus/changefeeds/lake/sorter")[1].get("pinned"), "lake is pinned")
    expect(page.get_by_text("pinned").first).to_be_visible()
    shown.press(page.locator("#verb-remove"), "Remove")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert bus.ask("GET", "/api/v2/changefeeds/lake")[0] == 400


@NIGHTLY
def test_table_is_moved_owner_resigns_and_capture_is_drained(opened: Callable[..., Shown], bus: Bus) -> None:
    shown = opened()
    page = shown.page
    shown.go("captures", "Captures and tables")
    fro, to = bus.captures
    reached(lambda: all(bus.tables(capture) for capture in bus.captures), "both pull tables")
    table = bus.tables(fro)[0]
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=str(table), exact=True))
    row.get_by_role("button").click()
    page.get_by_role("dialog").get_by_label("To capture").select_option(to)
    shown.confirm("Move")
    reached(lambda: table in bus.tables(to) and table not in bus.tables(fro), "the table has moved")

    owner = bus.owner()
    shown.press(page.get_by_role("button", name="Resign"), "Resign")
    reached(lambda: bus.owner() not in ("", owner), "another owner")
    reached(lambda: bus.tables(owner), "the owner knows who pulls what")
    page.get_by_role("button", name=f"Drain {bus.captures[owner]}").click()
    shown.confirm("Drain")
    reached(lambda: bus.owner() and not bus.tables(owner) and bus.tables(bus.owner()), "the capture is drained")
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text("is the owner now").first).to_be_visible()


@NIGHTLY
def test_capture_that_is_killed_is_seen_to_go_and_its_table_is_pulled_by_another(
    opened: Callable[..., Shown], bus: Bus, tmp_path: Path
) -> None:
    shown = opened()
    page = shown.page
    shown.go("captures", "Captures and tables")
    flags = {"pd": bus.pd, "kafka": bus.kafka, "zookeeper": bus.stack.zookeeper, "cluster": bus.name}
    flags |= {"schema-registry": bus.stack.schema_registry, "upstream": bus.name, "addr": "127.0.0.1:0"}
    flags |= {"tz": "UTC", "data-dir": str(tmp_path / "capture")}
    command = [sys.executable, "-m", "compose.cli", "capture", "--sorter-master", "none"]
    with (tmp_path / "capture.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(part for name, value in flags.items() for part in (f"--{name}", value))],
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )
    try:
        new = reached(lambda: _others(bus), "a third capture")
        ((capture, address),) = new.items()
        expect(page.get_by_role("cell", name=address).first).to_be_visible()
        table = reached(lambda: [table for each in bus.captures for table in bus.tables(each)], "tables are pulled")[0]
        move = {"capture_id": capture, "table_id": table}
        reached(lambda: bus.ask("POST", "/api/v1/changefeeds/all/tables/move_table", move)[0] == 202, "it is moved")
        reached(lambda: table in bus.tables(capture), "it is pulled by the third")
    finally:
        process.kill()
        process.wait()

    expect(page.get_by_role("cell", name=address)).to_have_count(0)
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text(f"capture {address} has gone").first).to_be_visible()
    reached(lambda: any(table in bus.tables(each) for each in bus.captures), "another pulls its table")


def _others(bus: Bus) -> dict[str, str]:
    items = bus.ask("GET", "/api/v2/captures")[1].get("items", [])
    return {str(item["id"]): str(item["address"]) for item in items if str(item["id"]) not in bus.captures}
