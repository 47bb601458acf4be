"""Updates of changefeeds over the HTTP API, before a bus that is held in memory."""

import json
from dataclasses import replace

import pytest

from tests.support.control.api import Api
from tests.support.control.api_changefeeds import make
from tests.support.control.memory_bus import CHECKPOINT, URI, Memory


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def api(bus: Memory) -> Api:
    return Api(bus)


def test_api_update_changes_what_is_given_and_refuses_while_it_runs(api: Api) -> None:
    make(api)
    change = {"replica_config": {"filter": {"rules": ["b.*"]}}}
    status, shown = api.v2("PUT", "/changefeeds/cf", change)
    assert (status, shown["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
    api.v2("POST", "/changefeeds/cf/pause")
    assert api.v2("PUT", "/changefeeds/cf", change)[1]["config"]["filter"] == {"rules": ["b.*"]}
    assert api.v2("PUT", "/changefeeds/cf", change)[1]["error_code"] == "CDC:ErrChangefeedUpdateRefused"
    status, shown = api.v2("PUT", "/changefeeds/cf", {"target_ts": 1})
    assert (status, shown["error_code"]) == (400, "CDC:ErrTargetTsBeforeStartTs")
    assert api.v2("PUT", "/changefeeds/cf", {"start_ts": 99})[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_update_with_what_was_shown_keeps_secrets_and_our_own_table(api: Api, bus: Memory) -> None:
    table = {"sink": {"kafka_config": {"sasl_password": "hidden"}, "schema_registry": "http://u:hidden@r"}}
    uri = "kafka://h/t?protocol=avro&sasl-mechanism=plain&sasl-user=u"
    body = {"changefeed_id": "cf", "sink_uri": uri, "replica_config": {**table, "sorter": {"run_cuts": "driver"}}}
    assert api.v2("POST", "/changefeeds", body)[0] == 200
    api.v2("POST", "/changefeeds/cf/pause")
    shown = api.v2("GET", "/changefeeds/cf")[1]["config"]
    assert "hidden" not in json.dumps(shown)
    sent = {**{key: value for key, value in shown.items() if key != "sorter"}, "case_sensitive": True}
    status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": sent})
    assert status == 200, answer
    config = bus.kept["default", "cf"].info.config
    assert config["sink"]["kafka-config"]["sasl-password"] == "hidden"
    assert config["sink"]["schema-registry"] == "http://u:hidden@r"
    assert (config["case-sensitive"], config["sorter"]) == (True, {"run-cuts": "driver"})


def test_api_update_with_what_was_shown_keeps_question_marks_and_other_signs_of_uris(api: Api, bus: Memory) -> None:
    rule: dict[str, object] = {"matcher": ["shop.item?"], "ignore_sql": ["(?i)create table.*#tmp"]}
    rule["ignore_insert_value_expr"] = "url like 'https://%@%' and note <> '?'"
    config = {"filter": {"rules": ["shop.order_?"], "event_filters": [rule]}, "sink": {"csv": {"null": "?"}}}
    body = {"changefeed_id": "cf", "sink_uri": "file:///tmp/x?protocol=csv", "replica_config": config}
    assert api.v2("POST", "/changefeeds", body)[0] == 200
    api.v2("POST", "/changefeeds/cf/pause")
    shown = api.v2("GET", "/changefeeds/cf")[1]["config"]
    assert shown["filter"]["rules"] == ["shop.order_?"]
    assert shown["sink"]["csv"]["null"] == "?"
    assert api.v2("PUT", "/changefeeds/cf", {"replica_config": {**shown, "case_sensitive": True}})[0] == 200
    stored = bus.kept["default", "cf"].info.config
    (kept,) = stored["filter"]["event-filters"]
    assert stored["filter"]["rules"] == ["shop.order_?"] and stored["sink"]["csv"]["null"] == "?"
    assert (kept["matcher"], kept["ignore-sql"]) == (["shop.item?"], ["(?i)create table.*#tmp"])
    assert kept["ignore-insert-value-expr"] == "url like 'https://%@%' and note <> '?'"


def test_api_update_takes_stars_as_they_are_where_nothing_is_masked(api: Api, bus: Memory) -> None:
    body = {"changefeed_id": "cf", "sink_uri": "file:///tmp/x?protocol=csv", "replica_config": {"sink": {"csv": {}}}}
    assert api.v2("POST", "/changefeeds", body)[0] == 200
    api.v2("POST", "/changefeeds/cf/pause")
    for null in ("x", "***"):
        config = {"sink": {"csv": {"null": null}}}
        assert api.v2("PUT", "/changefeeds/cf", {"replica_config": config})[0] == 200
        assert bus.kept["default", "cf"].info.config["sink"]["csv"]["null"] == null


def test_api_update_takes_a_table_of_ours_away_where_null_is_sent_for_it(api: Api, bus: Memory) -> None:
    config = {"sorter": {"run_cuts": "driver"}, "initial": "snapshot", "case_sensitive": True}
    assert api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI, "replica_config": config})[0] == 200
    api.v2("POST", "/changefeeds/cf/pause", {})
    sent = {"case_sensitive": True, "sorter": None}
    assert api.v2("PUT", "/changefeeds/cf", {"replica_config": sent})[0] == 200
    assert bus.kept["default", "cf"].info.config == {"case-sensitive": True, "initial": "snapshot"}
    assert api.ask("GET", "/api/tidebus/console/changefeeds/cf")[1]["ours"] == ["initial"]


def test_api_update_leaves_what_a_changefeed_begins_with(api: Api, bus: Memory) -> None:
    rules = [{"matcher": ["a.*"], "initial": "none"}]
    make(api, replica_config={"initial": "snapshot", "initial_rules": rules})
    api.v2("POST", "/changefeeds/cf/pause")
    status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": {"filter": {"rules": ["b.*"]}}})
    assert status == 200, answer
    config = bus.kept["default", "cf"].info.config
    assert (config["initial"], config["initial-rules"], config["filter"]) == ("snapshot", rules, {"rules": ["b.*"]})
    others: list[dict[str, object]] = [{"initial": "none"}, {"initial_rules": []}, {"state_proofs": ["a.*"]}]
    for changed in others:
        status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": changed})
        assert (status, answer["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")


@pytest.mark.parametrize(
    "wrong",
    [
        {"table-images": {"tables-at-once": 99}},
        {"changefeed-error-stuck-duration": "1s"},
        {"sink": {"dispatchers": [{"matcher": ["a.*"], "partition": "columns"}]}},
        {"no-such-key": 1},
        {"filter": {"rules": ["a.*"], "event-filters": [{"matcher": ["a.*"], "ignore-insert-value-expr": "a >"}]}},
    ],
)
def test_api_update_replaces_stored_settings_that_are_not_allowed_any_more(
    api: Api, bus: Memory, wrong: dict[str, object]
) -> None:
    make(api, replica_config={"initial": "snapshot"})
    api.v2("POST", "/changefeeds/cf/pause")
    stored = bus.kept["default", "cf"]
    bus.kept["default", "cf"] = replace(stored, info=replace(stored.info, config={"initial": "snapshot", **wrong}))
    assert api.v2("GET", "/changefeeds/cf/meta_info")[0] == 200, "the command line asks it first"
    assert api.v2("PUT", "/changefeeds/cf", {"target_ts": CHECKPOINT + 9})[0] == 400, "what is wrong would stay"
    taken: dict[str, object] = {"filter": {"rules": ["b.*"]}, "table_images": {"tables_at_once": 2}}
    status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": {**taken, "initial": "none"}})
    assert (status, answer["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
    status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": taken})
    assert status == 200, answer
    config = bus.kept["default", "cf"].info.config
    assert (config["initial"], config["filter"]["rules"]) == ("snapshot", ["b.*"]) and not set(config) & {*wrong} - {
        *("filter", "table-images")
    }


def test_api_update_takes_out_an_initial_rule_that_matches_nothing_and_no_other(api: Api, bus: Memory) -> None:
    rules = [{"matcher": ["a.*"], "initial": "none"}]
    make(api, replica_config={"initial": "snapshot", "initial_rules": rules})
    api.v2("POST", "/changefeeds/cf/pause")
    stored = bus.kept["default", "cf"]
    config = {"initial": "snapshot", "initial-rules": [*rules, {"matcher": [], "initial": "none"}]}
    bus.kept["default", "cf"] = replace(stored, info=replace(stored.info, config=config))
    for changed, status in (([], 400), ([{"matcher": ["b.*"], "initial": "none"}], 400), (rules, 200)):
        assert api.v2("PUT", "/changefeeds/cf", {"replica_config": {"initial_rules": changed}})[0] == status, changed
    assert bus.kept["default", "cf"].info.config["initial-rules"] == rules
