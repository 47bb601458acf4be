"""Who may ask for the console, and whose page may press its buttons."""

import pytest

from consumers.control.api.access.credentials import Credentials
from tests.support.control.api import Api
from tests.support.control.console_api import BASE
from tests.support.control.memory_bus import Memory

PATHS = (
    "/console",
    "/console/main.js",
    f"{BASE}/live",
    f"{BASE}/changefeeds/cf",
    f"{BASE}/checks",
    f"{BASE}/tables",
    f"{BASE}/log",
)


@pytest.mark.parametrize("path", PATHS)
def test_stranger_gets_nothing_of_the_console(bus: Memory, path: str) -> None:
    answer = Api(bus, Credentials({"ana": "se:cret"})).http.get(path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")


def test_user_gets_the_console(bus: Memory) -> None:
    http = Api(bus, Credentials({"ana": "se:cret"})).http
    assert http.get("/console", auth=("ana", "se:cret")).status_code == 200
    assert http.get(f"{BASE}/checks", auth=("ana", "se:cret")).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Content-Type": "text/plain"}]
)
def test_page_of_another_server_has_no_draft_checked_and_presses_no_button(api: Api, headers: dict[str, str]) -> None:
    sent = {"Content-Type": "application/json", **headers}
    for method, path in (
        ("POST", f"{BASE}/draft"),
        ("POST", "/api/v2/changefeeds/cf/pause"),
        ("DELETE", "/api/v2/changefeeds/cf"),
        ("POST", "/api/tidebus/changefeeds/cf/move"),
    ):
        assert api.ask(method, path, raw=b"{}", headers=sent)[0] in (403, 415)
    assert api.v2("GET", "/changefeeds/cf")[1]["state"] == "normal"
