"""The pages of the console in a real browser, before two real captures. Nothing is expected that the page itself says:
the API is asked what has come of it.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from compose.stack.local import Addresses
from tests.support.browsers.browser import started_browser
from tests.support.browsers.console import (
    AXE,
    CAUGHT_UP_S,
    NIGHTLY,
    RULES,
    WIDTHS,
    Bus,
    Shown,
    console_bus,
    opened_pages,
    reached,
)
from tests.support.browsers.firefox import started_firefox
from tests.support.rawlog.raw_log import read_topic

SHOWN_WHOLE_BYTES = 2_000
"""Of a message; longer ones are cut where they are shown."""
PAGES = {
    "": "Overview",
    "create": "Create a changefeed",
    "captures": "Captures and tables",
    "upstream": "Upstream",
    "events": "Log and events",
    "checks": "Checks",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def bus(stack: Addresses, tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Bus]:
    """Asks for the browser first: without one nothing is started."""
    with console_bus(stack, tmp_path_factory.mktemp("sorters")) as started:
        yield started


@pytest.fixture
def opened(bus: Bus, browser: Browser) -> Iterator[Callable[..., Shown]]:
    with opened_pages(bus, browser) as open_page:
        yield open_page


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1440),
        *(pytest.param(*each, marks=NIGHTLY) for each in (("dark", 390), ("light", 390), ("dark", 1440))),
    ],
)
def test_each_page_is_shown_and_axe_finds_nothing(
    opened: Callable[..., Shown], bus: Bus, scheme: str, width: int
) -> None:
    shown = opened(color_scheme=scheme, reduced_motion="reduce")
    shown.page.set_viewport_size({"width": width, "height": 900})
    for target, heading in PAGES.items():
        shown.go(target, heading)
        expect(shown.page.locator("main section").first).to_be_visible()
        expect(shown.page.locator("nav a[aria-current]")).to_be_in_viewport(ratio=0.9)
        if target == "checks":
            expect(shown.page.get_by_text("raw log", exact=True).first).to_be_visible()
        if target == "create":
            shown.page.get_by_label("Sink URI").fill(f"kafka://{bus.kafka}/{bus.name}-none?protocol=canal-json")
            shown.page.get_by_role("button", name="First messages").click()
            expect(shown.page.locator("#first code.message").first).to_be_visible()
            shown.page.get_by_label("Sink URI").fill("iceberg://?warehouse=file:///w&mode=upsert")
            shown.page.get_by_label("Leave out tables without a key").check()
            expect(shown.page.locator("#checked")).to_contain_text("so that they are left out")
            expect(shown.page.get_by_text("bank.acct_a", exact=True).first).to_be_visible()
            shown.page.get_by_role("button", name="First messages").click()
            expect(shown.page.get_by_role("heading", name="First rows")).to_be_visible()
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
    shown.check("log")
    shown.page.get_by_label("Of changefeed").select_option("all")
    expect(of_log).not_to_contain_text("planted for all")
    expect(of_log).to_contain_text("planted for one changefeed=all, namespace=default")
    shown.check("log of one")


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
    reached(lambda: bus.lag_s("all") < CAUGHT_UP_S, "all has caught up")
    of_proofs.get_by_role("button", name="Look again").click()
    expect(of_proofs.get_by_role("cell", name="bank.acct_a", exact=True)).to_be_visible()
    shown.check("proofs", of_proofs)


def test_page_of_a_changefeed_lists_refused_lake_tables_with_what_to_do(opened: Callable[..., Shown]) -> None:
    """As of a lake, which this bus has none of: the answer is put in its place."""
    ddl = {"query": "alter table <b>t</b>", "start_ts": "445644800032243716", "commit_ts": "445644800032243717"}
    item = {"table": "shop.<i>odd</i>", "code": "lake.schema_refused", "reason": "it has no primary key"}
    stopped = {"table": "shop.t", "code": item["code"], "reason": "no", "what_helps": "leave it out", "ddl": ddl}
    code = {"meaning": "cannot be a lake table", "steps": ["Leave it out by the filter", "Resume"]}
    shown = opened(reduced_motion="reduce")
    shown.page.route(
        "**/changefeeds/all/refused*",
        lambda route: route.fulfill(json={"items": [stopped, item], "codes": {item["code"]: code}}),
    )
    shown.go("changefeed/default/all", "Changefeed all")
    refused = shown.page.get_by_role("region", name="Refused lake tables", exact=True)
    expect(refused.get_by_role("cell", name=item["table"], exact=True)).to_be_visible()
    expect(refused).to_contain_text("it has no primary key")
    for said in (ddl["query"], f"Stopped by a DDL {ddl['commit_ts']} (2023-11-1", "What helps: leave it out"):
        expect(refused).to_contain_text(said)
    steps = refused.get_by_text("Leave it out by the filter")
    expect(steps.first).to_be_hidden()
    refused.get_by_text(item["code"]).first.click()
    expect(steps.first).to_be_visible()
    shown.check("refused", refused)


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
