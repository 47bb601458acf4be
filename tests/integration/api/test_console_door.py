"""The console behind its door, in a real browser: TLS and users. The bus is held in memory, the door is real."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from compose.stack.secure.certificates import Authority
from consumers.control.api.access.credentials import CredentialsFile, write_credentials
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.bodies import FeedRequest
from consumers.control.api.serving.server import ApiServer
from consumers.control.console import live
from consumers.control.console.routes import ROUTERS
from consumers.control.console.watch import HistoryWatch
from tests.support.browsers.browser import started_browser
from tests.support.control.memory_bus import ME, URI, Memory, Shares

ANSWER_MS = 60_000
STREAM_S = 3.0
"""In place of ten minutes: then a user who was taken away is out."""
ANA = {"username": "ana", "password": "se:crêt"}


@dataclass
class Door:
    """A console with users, and what its pages have complained of."""

    url: str
    bus: Memory
    users: Path
    open_page: Callable[[dict[str, str] | None], Page] = field(repr=False)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as opened:
        yield opened


@pytest.fixture
def door(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(live, "STREAM_S", STREAM_S)
    authority, users, bus = Authority(tmp_path), tmp_path / "users.toml", Memory()
    pair = authority.issue("capture")
    write_credentials(users, ANA["username"], ANA["password"], for_server=True)
    write_credentials(users, "ben", "b", for_server=True)
    bus.leader, bus.shares = ME.capture_id, Shares()
    bus.create(
        FeedRequest(
            namespace=None,
            changefeed_id="cf",
            start_ts=None,
            target_ts=None,
            sink_uri=URI,
            config={},
            pd_addresses=(),
        ),
        "default",
    )
    tls = ApiTls(ca_path=authority.path, cert_path=pair.cert, key_path=pair.key)
    with ExitStack() as exits:
        server = ApiServer("127.0.0.1:0", tls=tls, credentials=CredentialsFile(users), routers=ROUTERS)
        exits.enter_context(closing(server))
        exits.enter_context(server.serving(bus))
        exits.enter_context(closing(HistoryWatch(server.context)))
        complaints: list[str] = []

        def open_page(login: dict[str, str] | None) -> Page:
            # The browser knows no authority of ours, as one that an operator has told of it would.
            context = browser.new_context(ignore_https_errors=True, http_credentials=login)  # type: ignore[arg-type]
            exits.callback(context.close)
            context.set_default_timeout(ANSWER_MS)
            expect.set_options(timeout=ANSWER_MS)
            page = context.new_page()
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
            return page

        yield Door(f"https://{server.address}/console", bus, users, open_page, complaints)


def test_user_sees_pages_over_tls_hears_live_data_again_and_presses_a_button(door: Door) -> None:
    page = door.open_page(ANA)
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if request.url.endswith("/live") else None)
    page.goto(f"{door.url}#/changefeed/default/cf")
    expect(page.locator("#link")).to_have_text("Live")
    page.locator("#verb-pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#verb-resume")).not_to_have_attribute("aria-disabled", "true")
    assert door.bus.feed("cf", "default").state == "stopped"
    for target, heading in (("", "Overview"), ("captures", "Captures and tables"), ("events", "Log and events")):
        page.goto(f"{door.url}#/{target}")
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(page.locator("#link")).to_have_text("Live")
    expect(page.get_by_role("region", name="Events").get_by_text("changefeed cf is stopped")).to_be_visible()
    while len(streams) < 2:  # a stream that has had its time is opened anew, with the same login
        page.wait_for_timeout(100)
    expect(page.locator("#link")).to_have_text("Live")
    assert door.complaints == []


@pytest.mark.parametrize("login", [None, {**ANA, "password": "guessed"}])
def test_stranger_is_told_so_and_gets_no_page(door: Door, login: dict[str, str] | None) -> None:
    page = door.open_page(login)
    if login is None:  # the browser would ask, and nobody answers
        answer = page.request.get(door.url)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Basic realm="TideBus"')
        said = answer.text()
    else:
        shown = page.goto(door.url)
        assert shown is not None and shown.status == 401
        said = page.inner_text("body")
        assert "unknown user or wrong password" in said
    assert "api.unauthorized" in said and "Overview" not in said


def test_user_who_is_taken_away_is_out_once_the_stream_ends_and_the_page_says_so(door: Door) -> None:
    page = door.open_page(ANA)
    page.goto(f"{door.url}#/changefeed/default/cf")
    expect(page.locator("#link")).to_have_text("Live")
    door.users.unlink()
    write_credentials(door.users, "ben", "b", for_server=True)
    expect(page.locator("#link")).to_have_text("the server does not answer; trying again")
    expect(page.locator("#refusal")).to_contain_text("unknown user or wrong password")
    page.locator("#verb-remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator("#dialog-refusal")).to_contain_text("unknown user or wrong password")
    assert door.bus.feed("cf", "default").state == "normal"
    assert all("status of 401" in complaint or "status of 429" in complaint for complaint in door.complaints)
