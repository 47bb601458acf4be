"""What the console's scripts do while something is typed or under way, in a real browser. The bus is held in memory."""

import json
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from consumers.control.api.access.errors import ApiError
from consumers.control.api.bodies import FeedRequest
from consumers.control.api.serving.server import ApiServer
from consumers.control.console.routes import ROUTERS
from consumers.control.core.changefeeds.state import Pause
from schemas.flow.flow_sum import FlowSum
from schemas.flow.proof import Proof, ProofWindow, encode_proof
from schemas.ids import TableId, Ts
from tests.support.browsers.browser import started_browser
from tests.support.control.memory_bus import ME, Memory, Shares

ANSWER_MS = 60_000
PLAIN = "kafka://127.0.0.1:9092/t?protocol=canal-json"
AT_ONCE = """(changes) => {
  for (const [id, value] of Object.entries(changes)) {
    const element = document.getElementById(id);
    if (element.type === "checkbox") element.checked = value; else element.value = value;
    element.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
"""Types into fields, by their ids, in one turn of the script: no delay of a slow machine comes between."""


class HeldBus(Memory):
    """Answers of tables, and whatever it is asked to do, wait while a gate is closed; it counts who asks for tables."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked = threading.Event(), 0
        self.gate.set()
        self.leader, self.shares = ME.capture_id, Shares()

    def pause(self, changefeed_id: str, namespace: str) -> None:
        assert self.gate.wait(ANSWER_MS / 1000)
        raise ApiError("the changefeed has a cold")

    def tables(self, request: FeedRequest) -> dict[str, Any]:
        self.asked += 1
        assert self.gate.wait(ANSWER_MS / 1000)
        return super().tables(request)


@dataclass
class Console:
    """Pages before a bus, and what they have complained of."""

    url: str
    bus: HeldBus
    open_page: Callable[[], Page] = field(repr=False)

    def make(self, changefeed_id: str = "cf") -> None:
        request = FeedRequest(
            namespace=None,
            changefeed_id=changefeed_id,
            start_ts=None,
            target_ts=None,
            sink_uri=PLAIN,
            config={},
            pd_addresses=(),
        )
        self.bus.create(request, "default")

    def opened(self, target: str) -> Page:
        page = self.open_page()
        page.goto(f"{self.url}#/{target}")
        expect(page.locator("#link")).to_have_text("Live")
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as opened:
        yield opened


@pytest.fixture
def console(browser: Browser) -> Iterator[Console]:
    bus, complaints = HeldBus(), list[str]()
    with ExitStack() as exits:
        server = exits.enter_context(closing(ApiServer("127.0.0.1:0", routers=ROUTERS)))
        exits.enter_context(server.serving(bus))
        exits.callback(bus.gate.set)

        def open_page() -> Page:
            context = browser.new_context()
            exits.callback(context.close)
            context.set_default_timeout(ANSWER_MS)
            expect.set_options(timeout=ANSWER_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            return page

        yield Console(f"http://{server.address}/console", bus, open_page)
    assert complaints == []


def press_at_once(page: Page, button: str, changes: Mapping[str, object]) -> None:
    """Type, and press a button in the same turn."""
    page.evaluate(f"(changes) => {{ ({AT_ONCE})(changes); document.getElementById('{button}').click(); }}", changes)


def create_now(page: Page, changes: Mapping[str, object]) -> Any:
    """Type, press Create at once, and return the body that the dialog would send."""
    press_at_once(page, "create", changes)
    expect(page.locator("#dialog-request")).to_contain_text("replica_config")
    return json.loads(str(page.locator("#dialog-request").text_content()).partition("\n")[2])


def test_create_pressed_at_once_sends_what_was_typed_last_into_form_and_file(console: Console) -> None:
    page = console.opened("create")
    typed = {"id": "cf", "uri": PLAIN, "rules": "shop.*\n!shop.secret"}
    sent = create_now(page, typed)
    assert sent["replica_config"] == {"filter": {"rules": ["shop.*", "!shop.secret"]}}
    expect(page.locator("#rules")).to_have_value("shop.*\n!shop.secret")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    by_hand = '# by hand\nmemory-quota = 5\n[filter]\nrules = ["shop.*"]\n'
    sent = create_now(page, {"force_replicate": True, "toml": by_hand})
    assert sent["replica_config"] == {"force_replicate": True, "memory_quota": 5, "filter": {"rules": ["shop.*"]}}
    expect(page.locator("#rules")).to_have_value("shop.*")
    file = page.locator("#toml").input_value()
    assert file.startswith("# by hand\n")
    assert tomllib.loads(file) == {"force-replicate": True, "memory-quota": 5, "filter": {"rules": ["shop.*"]}}
    page.locator("#dialog-confirm").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Changefeed cf")
    assert console.bus.kept["default", "cf"].info.config["filter"] == {"rules": ["shop.*"]}


def test_what_is_changed_on_both_sides_during_a_check_is_kept(console: Console) -> None:
    page = console.opened("create")
    console.bus.gate.clear()
    page.evaluate(AT_ONCE, {"uri": PLAIN, "rules": "shop.*"})
    while not console.bus.asked:
        page.wait_for_timeout(20)
    page.evaluate(AT_ONCE, {"case_sensitive": True, "toml": "memory-quota = 5\n"})
    console.bus.gate.set()
    expect(page.locator("#toml")).to_have_value(
        'memory-quota = 5\ncase-sensitive = true\n\n[filter]\nrules = ["shop.*"]\n'
    )
    expect(page.locator("#rules")).to_have_value("shop.*")
    expect(page.locator("#case_sensitive")).to_be_checked()


def test_first_messages_pressed_at_once_are_of_what_was_typed_last(console: Console) -> None:
    page = console.opened("create")
    with page.expect_request("**/first-messages") as asked:
        press_at_once(page, "show-first", {"uri": PLAIN, "rules": "shop.*"})
    body = asked.value.post_data_json
    assert body is not None and tomllib.loads(body["toml"]) == {"filter": {"rules": ["shop.*"]}}
    expect(page.locator("#first code.message").first).to_be_visible()


def test_create_of_a_file_that_does_not_read_says_so_and_asks_nothing(console: Console) -> None:
    page = console.opened("create")
    page.evaluate(AT_ONCE, {"uri": PLAIN, "toml": "rules = ["})
    page.locator("#create").click()
    expect(page.locator("#checked .problem")).to_contain_text("no TOML")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_create_page_that_was_left_during_a_check_works_when_it_is_opened_again(console: Console) -> None:
    page = console.opened("create")
    console.bus.gate.clear()
    page.evaluate(AT_ONCE, {"uri": PLAIN})
    while not console.bus.asked:
        page.wait_for_timeout(20)
    page.evaluate(AT_ONCE, {"rules": "shop.*"})
    page.locator("#create").click()  # its check waits for the first
    page.evaluate("location.hash = '#/captures'")
    expect(page.get_by_role("heading", level=1)).to_have_text("Captures and tables")
    page.evaluate("location.hash = '#/create'")
    expect(page.locator("#uri")).to_have_value("")
    console.bus.gate.set()
    page.evaluate(AT_ONCE, {"uri": PLAIN})
    expect(page.locator("#checked")).to_contain_text("1 tables are replicated")
    expect(page.locator("#toml")).to_have_value("")
    page.locator("#create").click()
    expect(page.locator("#dialog-request")).to_contain_text("replica_config")


def test_dialog_whose_request_is_under_way_stays_and_shows_the_refusal(console: Console) -> None:
    console.make()
    page = console.opened("changefeed/default/cf")
    page.locator("#verb-pause").click()
    console.bus.gate.clear()
    with page.expect_request("**/pause*"):
        page.locator("#dialog-confirm").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_disabled()
    for _ in range(3):
        page.keyboard.press("Escape")
    expect(page.locator("#dialog-title")).to_have_text("Pause cf")
    console.bus.gate.set()
    expect(page.locator("#dialog-refusal")).to_contain_text("has a cold")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_late_refusal_is_shown_on_the_page_and_leaves_another_dialog_alone(console: Console) -> None:
    console.make()
    page = console.opened("changefeed/default/cf")
    page.locator("#verb-pause").click()
    console.bus.gate.clear()
    with page.expect_request("**/pause*"):
        page.locator("#dialog-confirm").click()
    page.evaluate("document.getElementById('dialog').close()")  # as a phone's gesture may
    page.locator("#verb-remove").click()
    console.bus.gate.set()
    expect(page.locator("#late")).to_contain_text("Pause cf: [CDC:ErrAPIInvalidParam]")
    expect(page.locator("#late")).to_contain_text("has a cold")
    expect(page.locator("#dialog-title")).to_have_text("Remove cf")
    expect(page.locator("#dialog-refusal")).to_be_empty()
    page.locator("#dialog-confirm").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator("#late")).to_be_empty()
    assert console.bus.kept == {}


def test_file_typed_into_update_is_read_once_the_typing_rests_and_asks_for_no_tables(console: Console) -> None:
    console.make()
    console.bus.desire("cf", "default", Pause())
    page = console.opened("changefeed/default/cf")
    page.locator("#verb-update").click()
    drafts: list[Any] = []
    page.on("request", lambda sent: drafts.append(sent.post_data_json) if sent.url.endswith("/draft") else None)
    page.evaluate(
        """() => {
      const toml = document.querySelector("#dialog #toml");
      for (const letter of "memory-quota = 512") {
        toml.value += letter;
        toml.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }"""
    )
    expect(page.locator("#dialog-command")).to_contain_text("--config FILE")
    expect(page.locator("#dialog-request")).to_contain_text('"memory_quota":512')
    assert [draft["toml"] for draft in drafts] == ["memory-quota = 512"]
    assert console.bus.asked == 0
    page.locator("#dialog-confirm").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert console.bus.kept["default", "cf"].info.config == {"memory-quota": 512}


@pytest.mark.parametrize(
    ("target", "choice", "asked"),
    [("events", "log-of", "**/console/log?changefeed={}&*"), ("captures", "of-feed", "**/changefeeds/{}/tables?*")],
)
def test_choice_shows_what_was_chosen_when_another_changefeed_goes(
    console: Console, target: str, choice: str, asked: str
) -> None:
    for name in "abc":
        console.make(name)
    page = console.opened(target)
    select = page.locator(f"#{choice}")
    for name in "ab":
        with page.expect_request(asked.format(name)):
            select.select_option(name)
    console.bus.remove("a", "default")
    expect(select.locator("option[value=a]")).to_have_count(0)
    expect(select).to_have_value("b")


def test_page_in_a_hidden_tab_listens_once_it_is_seen(console: Console) -> None:
    page = console.open_page()
    streams: list[str] = []
    page.on("request", lambda sent: streams.append(sent.url) if sent.url.endswith("/live") else None)
    page.add_init_script("window.hides = true; Object.defineProperty(document, 'hidden', { get: () => window.hides })")
    with page.expect_response("**/console/log*"):  # what a page asks for first comes after it began to listen
        page.goto(f"{console.url}#/events")
    assert streams == []
    page.evaluate("window.hides = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#link")).to_have_text("Live")
    assert len(streams) == 1


def test_page_that_was_refused_live_data_does_not_ask_again_once_it_is_hidden(console: Console) -> None:
    page = console.open_page()
    streams: list[str] = []
    page.on("request", lambda sent: streams.append(sent.url) if sent.url.endswith("/live") else None)
    page.add_init_script("window.hides = false; Object.defineProperty(document, 'hidden', { get: () => window.hides })")
    page.route("**/live", lambda route: route.fulfill(status=503))
    page.clock.install()
    page.goto(f"{console.url}#/create")
    expect(page.locator("#link")).to_have_text("the server does not answer; trying again")
    page.evaluate("window.hides = true; document.dispatchEvent(new Event('visibilitychange'))")
    asked = len(streams)
    page.clock.run_for(60_000)
    with page.expect_response("**/console/icon.svg"):  # one that was asked for before would have been seen by then
        page.evaluate("fetch('/console/icon.svg')")
    assert len(streams) == asked


def test_busiest_tables_have_names_of_partitions_and_say_which_names_were_not_asked_for(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.make()
    window = ProofWindow(
        after_ts=Ts(1),
        upto_ts=Ts(2),
        landed=FlowSum(6, 7),
        written=FlowSum(6, 7),
        tables={TableId(7): FlowSum(1, 1), TableId(51): FlowSum(3, 2), TableId(99): FlowSum(2, 4)},
        tables_total=3,
    )
    proof = Proof(namespace="default", changefeed_id="cf", number=0, previous="", begins="", window=window)
    console.bus.proved = [json.loads(encode_proof(proof)[0])]
    console.bus.named = [
        {"id": 7, "name": "shop.orders", "partition": ""},
        {"id": 51, "name": "shop.parted", "partition": "p1"},
    ]
    page = console.opened("changefeed/default/cf")
    cells = page.get_by_role("table", name="Busiest tables").locator("td:first-child")
    expect(cells).to_have_text(["shop.parted (p1)", "not known any more", "shop.orders"])
    monkeypatch.setattr("consumers.control.console.routes.TABLES_MAX", 1)
    page = console.opened("changefeed/default/cf")
    cells = page.get_by_role("table", name="Busiest tables").locator("td:first-child")
    expect(cells).to_have_text(["no name among the first 1", "no name among the first 1", "shop.orders"])
