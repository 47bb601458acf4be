"""Each verb of the console, pressed in a real browser before two real captures, and a failed changefeed that is mended
by what its page advises. Nothing is expected that the page itself says: the API is asked what has come of it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from compose.stack.local import Addresses
from tests.support.browser import started_browser
from tests.support.console import NIGHTLY, Bus, Shown, console_bus, opened_pages, reached


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
