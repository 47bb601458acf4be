"""Drafts of changefeeds: laid into the file, checked, tried."""

from typing import Any

import pytest

from tests.support.control.api import Api
from tests.support.control.console_api import BASE
from tests.support.control.memory_bus import URI, Memory


def draft(api: Api, **body: Any) -> Any:
    status, shown = api.ask("POST", f"{BASE}/draft", {"sink_uri": URI, **body})
    assert status == 200, shown
    return shown


def test_draft_lays_the_form_into_the_file_and_reads_it_back(api: Api) -> None:
    shown = draft(api, toml="# mine\n[filter]\nrules = ['x.*']\n", form={"rules": ["y.*"], "case_sensitive": True})
    assert shown["toml"].startswith("# mine\n") and shown["problems"] == []
    assert shown["replica_config"] == {"case_sensitive": True, "filter": {"rules": ["y.*"]}}
    assert draft(api, toml=shown["toml"])["form"]["rules"] == ["y.*"]
    assert [table["table_name"] for table in shown["tables"]["eligible_tables"]] == ["b"]
    assert shown["explanation"]["tables"][0]["topic"] == "t"


@pytest.mark.parametrize(
    ("body", "said", "line"),
    [
        ({"toml": "a = [filter"}, "no TOML", 1),
        ({"toml": "\nnothing = 1"}, "unknown key `nothing`", 2),
        ({"toml": "x = " + "[" * 3000 + "]" * 3000}, "nests too deep", None),
        ({"toml": "\nx = " + "9" * 5000}, "no TOML", 2),
        ({"sink_uri": ""}, "sink_uri is empty", None),
        ({"sink_uri": "kafka://h:1/t?protocol=pigeon"}, "pigeon", None),
        ({"sink_uri": "kafka://u:xxxxx@h:1/t?protocol=canal-json"}, "masked", None),
        ({"changefeed_id": "cf"}, "the id is taken", None),
        ({"form": {"rules": "not a list"}}, "another type", None),
    ],
)
def test_draft_that_is_not_allowed_says_where(api: Api, body: dict[str, Any], said: str, line: int | None) -> None:
    (problem,) = draft(api, **body)["problems"]
    assert said in problem["message"] and problem.get("line") == line
    assert "hidden" not in problem["message"]


def test_first_messages_of_a_draft_are_the_buss_with_every_digit(api: Api) -> None:
    status, shown = api.ask("POST", f"{BASE}/first-messages", {"sink_uri": URI, "start_ts": 2**60 + 3})
    assert status == 200, shown
    (message,) = shown["messages"]
    assert message["commit_ts"] == str(2**60 + 3)
    status, refused = api.ask("POST", f"{BASE}/first-messages", {"sink_uri": ""})
    assert status == 400
    assert "sink_uri is empty" in refused["error_msg"]


def test_draft_that_is_only_read_is_what_the_api_takes_and_asks_for_no_tables(api: Api, bus: Memory) -> None:
    masked = "kafka://u:xxxxx@h:1/t?protocol=canal-json"
    shown = draft(api, sink_uri=masked, toml="[filter]\nrules = ['x.*']\n", is_only_read=True)
    assert (shown["replica_config"], shown["problems"]) == ({"filter": {"rules": ["x.*"]}}, [])
    assert (shown["tables"], shown["explanation"], bus.asked_tables) == (None, None, None)
    (problem,) = draft(api, toml="a = [filter", is_only_read=True)["problems"]
    assert "no TOML" in problem["message"]
