"""Each verb of the console, pressed in a real browser before two real captures, and a failed changefeed that is mended
by what its page advises. Nothing is expected that the page itself says: the API is asked what has come of it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from compose.stack.local import Addresses
from tests.support.browsers.browser import started_browser
from tests.support.browsers.console import CAUGHT_UP_S, NIGHTLY, Bus, Shown, console_bus, opened_pages, reached
from tests.support.rawlog.raw_log import read_topic


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
            cwd=Path(__file__).parents[3],
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


@NIGHTLY
def test_images_of_a_table_are_asked_for_paused_and_let_go_on(opened: Callable[..., Shown], bus: Bus) -> None:
    reached(lambda: bus.state("all") == "normal" and bus.lag_s("all") < CAUGHT_UP_S, "all has caught up")
    name = "bank.acct_a"
    shown = opened()
    page = shown.page
    shown.go("changefeed/default/all", "Changefeed all")
    expect(page.locator("#no-images")).to_be_visible()
    shown.press(page.locator("#images-pause"), "Pause images")
    page.locator("#images-backfill").click()
    dialog = page.get_by_role("dialog")
    expect(page.locator("#dialog-request")).to_contain_text("name a table at least")
    dialog.get_by_label("Tables").fill("no.such_table")
    dialog.get_by_role("button", name="Backfill", exact=True).click()
    expect(page.locator("#dialog-refusal")).to_contain_text("no such table")
    shown.complaints[:] = [said for said in shown.complaints if "status of 400" not in said]  # it was asked for
    dialog.get_by_label("Tables").fill(name)
    expect(page.locator("#dialog-command")).to_have_text(f"tidebus table backfill -c all -t {name}")
    shown.confirm("Backfill")
    of_images = page.get_by_role("region", name="Table images", exact=True)
    expect(of_images).to_contain_text("paused")
    asked = reached(lambda: bus.ask("GET", "/api/tidebus/changefeeds/all/images")[1], "an image is asked for")
    assert int(asked["tables_left"]) > 0
    shown.check("images", of_images)
    topic, before = f"{bus.name}-all", _rows_of(bus, name)
    shown.press(page.locator("#images-resume"), "Resume images")
    reached(lambda: bus.ask("GET", "/api/tidebus/changefeeds/all/images")[1] == {}, f"the image of {name} is whole")
    expect(page.locator("#no-images")).to_be_visible()
    reached(lambda: _rows_of(bus, name) > before, f"rows of {name} are in {topic} once more")
    page.locator("#images-resync").click()
    expect(dialog).to_contain_text("TRUNCATE TABLE")
    dialog.get_by_label("Tables").fill(name)
    expect(page.locator("#dialog-request")).to_contain_text("/tables/resync")
    shown.confirm("Resync")
    reached(lambda: "TRUNCATE TABLE" in _ddl_of(bus), "the topic has a TRUNCATE")


@NIGHTLY
@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1440)])
def test_every_dialog_is_legible_and_cancel_changes_nothing(
    opened: Callable[..., Shown], bus: Bus, scheme: str, width: int
) -> None:
    body = {
        "changefeed_id": f"still-{scheme}",
        "sink_uri": f"kafka://{bus.kafka}/{bus.name}-still?protocol=canal-json",
        "replica_config": {"ignore_ineligible_table": True, "sorter": {"run_cuts": "driver"}},
    }
    reached(lambda: bus.ask("POST", "/api/v2/changefeeds", body)[0] == 200, "another changefeed")
    still = str(body["changefeed_id"])
    reached(lambda: bus.ask("POST", f"/api/v2/changefeeds/{still}/pause", {})[0] == 200, "it is to pause")
    reached(lambda: bus.state(still) == "stopped", "it is paused")
    shown = opened(color_scheme=scheme, reduced_motion="reduce")
    page = shown.page
    page.set_viewport_size({"width": width, "height": 900})
    dialogs = [("default/all", f"verb-{verb}") for verb in ("pause", "move", "remove")]
    dialogs += [("default/all", f"images-{verb}") for verb in ("backfill", "resync", "pause", "resume")]
    dialogs += [(f"default/{still}", f"verb-{verb}") for verb in ("resume", "update")]
    for feed, button in dialogs:
        shown.go(f"changefeed/{feed}", f"Changefeed {feed.partition('/')[2]}")
        _open_and_cancel(shown, page.locator(f"#{button}"), f"{scheme} {button}")
    shown.go("captures", "Captures and tables")
    for label in ("Resign", "Drain ", "Move "):
        _open_and_cancel(shown, page.get_by_role("button", name=label).first, f"{scheme} {label.strip().lower()}")
    shown.go("create", "Create a changefeed")
    page.get_by_label("Sink URI").fill(f"kafka://{bus.kafka}/{bus.name}-none?protocol=canal-json")
    expect(page.locator("#checked")).to_contain_text("tables are replicated")
    page.get_by_label("Leave out tables without a key").check()
    page.get_by_role("button", name="Create …").click()
    expect(page.locator("#dialog-request")).to_contain_text('"ignore_ineligible_table":true')
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    _open_and_cancel(shown, page.get_by_role("button", name="Create …"), f"{scheme} create")
    assert (bus.state("all"), bus.state(still)) == ("normal", "stopped")
    assert bus.ask("DELETE", f"/api/v2/changefeeds/{still}")[0] == 200


@NIGHTLY
def test_buttons_that_look_again_and_verbs_with_something_typed(opened: Callable[..., Shown], bus: Bus) -> None:
    shown = opened()
    page = shown.page
    shown.go("changefeed/default/all", "Changefeed all")
    page.get_by_role("button", name="All settings").click()
    expect(page.get_by_role("region", name="Settings", exact=True)).to_contain_text("memory-quota")
    page.get_by_role("button", name="Only differences").click()
    expect(page.get_by_role("region", name="Settings", exact=True)).not_to_contain_text("memory-quota")
    for card, path in (("Proofs", "/proofs"), ("Topics and tables", "/topics")):
        with page.expect_response(lambda answer, path=path: path in answer.url and answer.status == 200):  # type: ignore[misc]
            page.get_by_role("region", name=card, exact=True).get_by_role("button", name="Look again").click()
    shown.go("checks", "Checks")
    expect(page.get_by_text("raw log", exact=True).first).to_be_visible()
    with page.expect_response(lambda answer: "/checks" in answer.url):
        page.get_by_role("button", name="Check again").click()

    shown.go("changefeed/default/all", "Changefeed all")
    shown.press(page.locator("#verb-move"), "Move")  # to any
    expect(page.locator("#dialog-command")).to_have_count(0)
    shown.press(page.locator("#verb-pause"), "Pause")
    reached(lambda: bus.state("all") == "stopped", "it is paused")
    of_history = page.get_by_role("region", name="History", exact=True)
    expect(of_history).to_contain_text("changefeed all is stopped")
    checkpoint = int(bus.ask("GET", "/api/v2/changefeeds/all/status")[1]["checkpoint_ts"])
    resume = page.locator("#verb-resume")
    expect(resume).not_to_have_attribute("aria-disabled", "true")
    resume.click()
    page.get_by_role("dialog").get_by_label("Another checkpoint ts").fill(str(checkpoint - 1))
    expect(page.locator("#dialog-command")).to_have_text(
        f"tidebus changefeed resume -c all --overwrite-checkpoint-ts {checkpoint - 1}"
    )
    shown.confirm("Resume")
    reached(lambda: bus.state("all") == "normal", "it goes on")
    expect(of_history).to_contain_text("changefeed all is normal")
    shown.check("history", of_history)


def _open_and_cancel(shown: Shown, button: Locator, name: str) -> None:
    expect(button).not_to_have_attribute("aria-disabled", "true")
    button.click()
    dialog = shown.page.get_by_role("dialog")
    expect(shown.page.locator("#dialog-request")).to_contain_text("/api/" if "images-" not in name else "")
    dialog.get_by_text("What is sent").click()
    shown.check(f"dialog {name}")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)


def _rows_of(bus: Bus, table: str) -> int:
    schema, _, name = table.partition(".")
    return sum(message["database"] == schema and message["table"] == name for message in _messages(bus))


def _ddl_of(bus: Bus) -> str:
    return "\n".join(message["sql"] for message in _messages(bus) if message["isDdl"])


def _messages(bus: Bus) -> list[Any]:
    values = (record.value for record in read_topic(bus.kafka, f"{bus.name}-all"))
    return [json.loads(value) for value in values if value]
