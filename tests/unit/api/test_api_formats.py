"""What TiCDC's newer API has beside: TOML, tables of a filter, keyspaces, and redaction, which is refused."""

import tomllib

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.redaction import Redaction, set_redaction
from tests.support.control.api import Api
from tests.support.control.memory_bus import URI, Memory

TOML = {"Accept": "Application/TOML; charset=utf-8"}
TABLE = {"database_name": "shop", "table_name": "log", "table_id": 9, "is_partition": False}


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def api(bus: Memory) -> Api:
    return Api(bus)


def test_changefeed_is_shown_as_toml_whose_config_is_a_changefeed_file(api: Api) -> None:
    rules = {"filter": {"rules": ["a.*"]}, "changefeed_error_stuck_duration": "45m", "sink": {"csv": {"null": "N"}}}
    assert api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI, "replica_config": rules})[0] == 200
    answer = api.http.get("/api/v2/changefeeds/cf", headers=TOML)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "application/toml")
    shown = tomllib.loads(answer.text)
    assert (shown["id"], shown["keyspace"], shown["state"], shown["time-zone"]) == ("cf", "default", "normal", "UTC")
    assert "hidden" not in answer.text and "error" not in shown
    config = shown["config"]
    assert (config["filter"]["rules"], config["sink"]["csv"]["null"]) == (["a.*"], "N")
    assert float(load_changefeed(URI, config).error_stuck_duration_s) == 45 * 60.0
    json_answer = api.http.get("/api/v2/changefeeds/cf", headers={"Accept": "application/json"})
    assert json_answer.json()["id"] == "cf"


def test_changefeed_that_is_not_there_is_an_error_in_json_whatever_is_accepted(api: Api) -> None:
    answer = api.http.get("/api/v2/changefeeds/cf", headers=TOML)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "CDC:ErrChangeFeedNotExists")


def test_tables_of_a_filter_need_no_sink_and_hear_of_nothing_else(api: Api, bus: Memory) -> None:
    bus.ineligible = [TABLE]
    config = {"filter": {"rules": ["shop.*"]}, "case_sensitive": True, "sink": {"protocol": "pulsar-words"}}
    status, shown = api.v2("POST", "/get_all_tables?keyspace=default", {"replica_config": config, "start_ts": 7})
    assert (status, shown["ineligible_tables"], len(shown["all_tables"])) == (200, [TABLE], 2)
    assert bus.asked_tables is not None
    assert bus.asked_tables.config == {"filter": {"rules": ["shop.*"]}, "case-sensitive": True}
    assert bus.asked_tables.start_ts == 7
    assert api.v2("POST", "/get_all_tables")[0] == 200


@pytest.mark.parametrize("word", ["off", " OFF ", "false", "disabled"])
def test_redaction_that_is_off_stays_off(api: Api, word: str) -> None:
    answer = api.v2("POST", "/log/redact", {"redact_info_log": word})
    assert answer == (200, {"previous_mode": "OFF", "current_mode": "OFF"})


def test_redaction_that_a_capture_began_with_is_told(api: Api) -> None:
    set_redaction(Redaction.MARKER)
    try:
        answer = api.v2("POST", "/log/redact", {"redact_info_log": "MARK"})
        assert answer == (200, {"previous_mode": "MARKER", "current_mode": "MARKER"})
        assert api.v2("POST", "/log/redact", {"redact_info_log": "off"})[0] == 400
    finally:
        set_redaction(Redaction.OFF)


@pytest.mark.parametrize(
    ("word", "said"), [("on", "start it with"), ("Marker", "start it with"), ("x", "no such mode"), ("", "no such")]
)
def test_redaction_is_not_changed_while_a_capture_runs(api: Api, word: str, said: str) -> None:
    status, shown = api.v2("POST", "/log/redact", {"redact_info_log": word})
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert said in shown["error_msg"]


def test_changefeed_of_two_namespaces_at_once_is_refused(api: Api) -> None:
    body = {"changefeed_id": "cf", "sink_uri": URI, "keyspace": "one"}
    status, shown = api.v2("POST", "/changefeeds?keyspace=two", body)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam") and "two namespaces" in shown["error_msg"]
    for path in ("/changefeeds?keyspace=one", "/changefeeds?keyspace="):
        assert api.v2("POST", path, body)[1]["keyspace"] == "one"
        assert api.v2("DELETE", "/changefeeds/cf?keyspace=one")[0] == 200
