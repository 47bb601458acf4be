"""The HTTP API's routes of changefeeds, as an app without a socket, before a bus that is held in memory."""

import json
from typing import Any

import pytest

from consumers.control.api.replica_config import from_api, to_api
from consumers.control.api.serving.app import BODY_BYTES_MAX
from consumers.control.changefeeds.processor_nodes import Share
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import ChangefeedError
from tests.support.control.api import Api
from tests.support.control.api_changefeeds import make, put
from tests.support.control.memory_bus import CHECKPOINT, ME, OTHER, PD, URI, Memory, Shares

RULE = b'{"changefeed_id": "cf", "sink_uri": "%s", "replica_config": {"filter": {"rules": ["%%s.*"]}}}' % URI.encode()
ERROR = ChangefeedError(code="sorter.dispatch_failed", message="no topic", time="2026-01-01T00:00:00Z")


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def api(bus: Memory) -> Api:
    return Api(bus)


def test_api_changefeed_created_is_shown_whole_without_secrets(api: Api) -> None:
    config = {"filter": {"rules": ["a.*"]}, "enable_sync_point": False, "sink": {"csv": {"null": "N"}}}
    made = make(api, replica_config={"filter": config["filter"]}, target_ts=CHECKPOINT + 9)
    assert made["config"]["filter"] == {"rules": ["a.*"]}
    assert (made["config"]["memory_quota"], made["config"]["sink"]["protocol"]) == (1 << 30, "canal-json")
    assert made["sink_uri"] == URI.replace("hidden", "xxxxx")
    assert (made["id"], made["namespace"], made["state"], made["error"]) == ("cf", "default", "normal", None)
    assert (made["start_ts"], made["target_ts"], made["checkpoint_ts"]) == (CHECKPOINT, CHECKPOINT + 9, CHECKPOINT)
    assert made["upstream_id"] == (1 << 63) + 1
    assert made["checkpoint_time"].endswith(".123")
    assert made.pop("notes") == []
    assert api.v2("GET", "/changefeeds/cf") == api.v2("GET", "/changefeeds/cf/meta_info") == (200, made)
    assert set(made) == {
        *(
            "upstream_id",
            "namespace",
            "keyspace",
            "id",
            "sink_uri",
            "create_time",
            "start_ts",
            "target_ts",
            "admin_job_type",
        ),
        *("config", "state", "error", "creator_version", "resolved_ts", "checkpoint_ts", "checkpoint_time"),
        *("task_status", "time_zone"),
    }


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sink_uri": ""}, 400, "CDC:ErrSinkURIInvalid"),
        ({"sink_uri": "kafka://h/t?protocol=pigeon"}, 400, "CDC:Err"),
        ({"sink_uri": URI, "start_ts": 5}, 400, "CDC:ErrStartTsBeforeGC"),
        ({"sink_uri": URI, "start_ts": "5"}, 400, "CDC:ErrAPIInvalidParam"),
        ({"sink_uri": URI, "start_ts": -1}, 400, "CDC:ErrAPIInvalidParam"),
        ({"sink_uri": URI, "start_ts": True}, 400, "CDC:ErrAPIInvalidParam"),
        ({"sink_uri": URI, "replica_config": []}, 400, "CDC:ErrAPIInvalidParam"),
        ({"sink_uri": URI, "replica_config": {"filter": {"rules": ["!!"]}}}, 400, "CDC:ErrFilterRuleInvalid"),
        ({"sink_uri": 7}, 400, "CDC:ErrAPIInvalidParam"),
        ({"sink_uri": URI, "changefeed_id": "taken"}, 500, "CDC:ErrChangeFeedAlreadyExists"),
    ],
)
def test_api_create_that_is_not_allowed_answers_with_its_code(
    api: Api, bus: Memory, body: dict[str, Any], status: int, code: str
) -> None:
    make(api, "taken")
    answered, shown = api.v2("POST", "/changefeeds", body)
    assert answered == status, shown
    assert shown["error_code"].startswith(code)
    assert set(shown) == {"error_msg", "error_code"}
    assert shown["error_msg"].startswith(f"[{shown['error_code']}] ")
    assert len(bus.kept) == 1


def test_api_list_hides_what_is_done_unless_asked(api: Api, bus: Memory) -> None:
    make(api)
    for state, default, shown in (("normal", 1, "normal"), ("pending", 1, "warning"), ("finished", 0, "finished")):
        put(bus, state=state)
        assert api.v2("GET", "/changefeeds")[1]["total"] == default
        (item,) = api.v2("GET", "/changefeeds?state=all")[1]["items"]
        assert item["state"] == shown
        assert api.v2("GET", f"/changefeeds?state={shown}")[1]["total"] == 1
        assert api.v2("GET", "/changefeeds?state=failed")[1] == {"total": 0, "items": []}
    assert set(item) == {
        "upstream_id",
        "namespace",
        "keyspace",
        "id",
        "state",
        "checkpoint_tso",
        "checkpoint_time",
        "error",
    }
    assert api.v2("GET", "/changefeeds?state=happy")[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_namespaces_are_apart(api: Api) -> None:
    make(api)
    make(api, namespace="other", sink_uri=URI)
    assert api.v2("GET", "/changefeeds?namespace=other&state=all")[1]["total"] == 1
    assert api.v2("GET", "/changefeeds/cf?namespace=third")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"
    assert api.v2("GET", "/changefeeds?namespace=..%2F..")[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_pause_resume_and_status(api: Api, bus: Memory) -> None:
    make(api)
    assert api.v2("POST", "/changefeeds/cf/pause") == (200, {})
    assert api.v2("GET", "/changefeeds/cf/status")[1]["state"] == "stopped"
    body = {"overwrite_checkpoint_ts": CHECKPOINT + 5}
    assert api.v2("POST", "/changefeeds/cf/resume", body) == (200, {})
    shown = api.v2("GET", "/changefeeds/cf/status")[1]
    assert (shown["state"], shown["checkpoint_ts"]) == ("normal", CHECKPOINT + 5)
    put(bus, state="failed", error=ERROR)
    shown = api.v2("GET", "/changefeeds/cf/status")[1]
    assert shown["last_error"] == {"time": ERROR.time, "addr": "", "code": ERROR.code, "message": ERROR.message}
    assert shown["last_warning"] is None
    put(bus, state="pending", error=ERROR)
    shown = api.v2("GET", "/changefeeds/cf/status")[1]
    assert (shown["state"], shown["last_error"], shown["last_warning"]["code"]) == ("warning", None, ERROR.code)


def test_api_keyspace_is_the_namespace(api: Api) -> None:
    status, made = api.v2("POST", "/changefeeds?keyspace=", {"changefeed_id": "cf", "sink_uri": URI, "keyspace": "k"})
    assert (status, made["namespace"], made["keyspace"]) == (200, "k", "k")
    assert api.v2("GET", "/changefeeds/cf?keyspace=k")[0] == api.v2("GET", "/changefeeds/cf?namespace=k")[0] == 200
    assert api.v2("GET", "/changefeeds?keyspace=k")[1]["total"] == 1
    assert api.v2("GET", "/changefeeds?keyspace=k&namespace=l")[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_settings_without_effect_are_noted(api: Api) -> None:
    made = make(api, replica_config={"scheduler": {"force_split": True}, "consistent": {"max_log_size": 9}})
    assert any("scheduler.force-split has no effect" in note for note in made["notes"])
    assert any("consistent has no effect" in note for note in made["notes"])


def test_api_version_1_creates_lists_updates_and_removes(api: Api, bus: Memory) -> None:
    bus.shares = Shares({ME.capture_id: [TableId(7)]})
    bus.table_ids = [TableId(7)]
    body = {"changefeed_id": "cf", "sink_uri": URI, "filter_rules": ["a.*"], "mounter_worker_num": 4}
    assert api.ask("POST", "/api/v1/changefeeds", body) == (202, {})
    (listed,) = api.ask("GET", "/api/v1/changefeeds")[1]
    assert listed == api.v2("GET", "/changefeeds")[1]["items"][0]
    shown = api.ask("GET", "/api/v1/changefeeds/cf")[1]
    assert (shown["config"]["filter"]["rules"], shown["checkpoint_tso"]) == (["a.*"], CHECKPOINT)
    assert api.ask("GET", "/api/v1/processors")[1] == api.v2("GET", "/processors")[1]["items"]
    assert api.ask("GET", "/api/v1/processors/cf/me") == (200, {"table_ids": [7]})
    assert api.ask("POST", "/api/v1/changefeeds/cf/pause") == (202, {})
    assert api.ask("PUT", "/api/v1/changefeeds/cf", {"ignore_txn_start_ts": [5]}) == (202, {})
    assert bus.kept["default", "cf"].info.config["filter"] == {"ignore-txn-start-ts": [5], "rules": ["a.*"]}
    assert bus.kept["default", "cf"].info.config["mounter"] == {"worker-num": 4}
    assert api.ask("POST", "/api/v1/changefeeds/cf/resume") == (202, {})
    assert api.v2("GET", "/changefeeds/cf/status")[1]["state"] == "normal"
    assert api.ask("DELETE", "/api/v1/changefeeds/cf") == (202, {})
    assert api.ask("DELETE", "/api/v1/changefeeds/cf")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"


def test_api_tables_of_a_changefeed_move_as_the_new_architecture_asks(api: Api, bus: Memory) -> None:
    make(api)
    bus.shares, bus.table_ids = Shares({ME.capture_id: [TableId(1), TableId(2)]}), [TableId(2)]
    assert api.v2("GET", "/changefeeds/cf/tables")[1]["items"] == [{"node_id": "me", "table_ids": [2]}]
    assert api.v2("GET", "/changefeeds/cf/get_dispatcher_count") == (200, {"count": 1})
    assert api.v2("POST", "/changefeeds/cf/move_table?tableID=2&targetNodeID=other&mode=0&wait=true") == (200, {})
    assert bus.shares.asked == [("move", 2, "other")]
    for query in ("tableID=1&targetNodeID=other", "tableID=2&targetNodeID=who", "tableID=x&targetNodeID=other"):
        assert api.v2("POST", f"/changefeeds/cf/move_table?{query}")[0] == 400
    assert api.v2("POST", "/changefeeds/cf/merge_table?tableID=2")[1]["error_code"] == "CDC:ErrSchedulerRequestFailed"


def test_api_delete_is_fine_twice(api: Api) -> None:
    make(api)
    assert api.v2("DELETE", "/changefeeds/cf") == api.v2("DELETE", "/changefeeds/cf") == (200, {})
    assert api.v2("GET", "/changefeeds/cf")[0] == 400


def test_api_verify_table_names_both_kinds(api: Api) -> None:
    status, shown = api.v2("POST", "/verify_table", {"sink_uri": URI})
    assert (status, set(shown)) == (200, {"ineligible_tables", "eligible_tables", "all_tables"})


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"\xff", b"[" * 100_000])
def test_api_body_that_is_no_object_is_a_bad_request(api: Api, body: bytes) -> None:
    status, shown = api.ask("POST", "/api/v2/changefeeds", raw=body)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


def test_api_text_that_no_answer_could_show_is_refused_and_not_stored(api: Api) -> None:
    sent = b'{"changefeed_id": "half", "sink_uri": "kafka://h:1/t?protocol=canal-json", "replica_config": {"x": "%s"}}'
    status, shown = api.ask("POST", "/api/v2/changefeeds", raw=sent % rb"\ud83d")
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert "half a character" in shown["error_msg"]
    assert "unknown key" in api.ask("POST", "/api/v2/changefeeds", raw=sent % rb"\ud83d\ude00")[1]["error_msg"]
    assert api.v2("GET", "/changefeeds")[1]["total"] == 0


@pytest.mark.parametrize(
    "raw",
    [RULE % b"\xed\xa0\x80", (RULE % rb"\ud83d").decode().encode("utf-16"), (RULE % b"a").decode().encode("utf-16-le")],
)
def test_api_body_in_another_encoding_is_refused_and_not_stored(api: Api, raw: bytes) -> None:
    status, shown = api.ask("POST", "/api/v2/changefeeds", raw=raw)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert api.v2("GET", "/changefeeds")[1]["total"] == 0
    assert api.ask("POST", "/api/v2/changefeeds", raw=b"\xef\xbb\xbf" + RULE % b"a")[0] == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("POST", "/api/v2/status"), ("PUT", "/api/v2/tso")])
def test_api_unknown_path_or_method_is_not_found(api: Api, method: str, path: str) -> None:
    assert api.ask(method, path)[0] == 404


def test_api_bug_is_an_answer_that_tells_no_secrets(api: Api, bus: Memory, caplog: pytest.LogCaptureFixture) -> None:
    bus.broken = RuntimeError("password is hidden")
    status, shown = api.v2("GET", "/changefeeds/cf")
    assert (status, shown["error_code"]) == (500, "CDC:ErrInternalServerError")
    assert "hidden" not in shown["error_msg"]
    assert "password is hidden" in caplog.text


def test_replica_config_names_and_durations_go_both_ways() -> None:
    table = {
        "case-sensitive": True,
        "sync-point-interval": "10m",
        "sink": {
            "file-index-digit": 4,
            "send-all-bootstrap-at-start": True,
            "dispatchers": [{"matcher": ["a.*"], "partition": "ts", "target-schema": "x", "target-table": "y"}],
            "kafka-config": {"sasl-password": "hidden", "dial-timeout": "1.5s"},
        },
    }
    shown = to_api(table)
    assert shown == {
        "case_sensitive": True,
        "sync_point_interval": 600_000_000_000,
        "sink": {
            "file_index_width": 4,
            "send-all-bootstrap-at-start": True,
            "dispatchers": [{"matcher": ["a.*"], "partition": "ts", "target-schema": "x", "target-table": "y"}],
            "kafka_config": {"sasl_password": "***", "dial_timeout": "1.5s"},
        },
    }
    back: dict[str, Any] = from_api({**shown, "mounter": None})
    assert back["sync-point-interval"] == "600000000000ns"
    assert back["sink"]["file-index-digit"] == 4
    assert "mounter" not in back
    assert from_api({"sync_point_interval": "10m"}) == {"sync-point-interval": "10m"}


def test_api_value_of_another_type_or_an_unknown_name_is_named(api: Api) -> None:
    status, shown = api.v2("POST", "/changefeeds", {"sink_uri": URI, "start_ts": 1.5, "sinkuri": "x"})
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert "start_ts" in shown["error_msg"] and "sinkuri" in shown["error_msg"]


def test_api_takes_a_body_whatever_its_content_type(api: Api) -> None:
    body = json.dumps({"changefeed_id": "cf", "sink_uri": URI}).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert api.ask("POST", "/api/v2/changefeeds/", raw=body, headers=kind)[0] == 200


def test_api_body_above_its_bound_is_refused(api: Api) -> None:
    body = b" " * (BODY_BYTES_MAX + 1)
    status, shown = api.ask("POST", "/api/v2/changefeeds", raw=body)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


def test_api_upstream_of_another_bus_is_refused(api: Api) -> None:
    make(api)
    for method, path in (("POST", "/tso"), ("POST", "/changefeeds/cf/resume"), ("PUT", "/changefeeds/cf")):
        assert api.v2(method, path, {"pd_addrs": ["elsewhere:2379"]})[1]["error_code"] == "CDC:ErrAPIInvalidParam"
    assert api.v2("POST", "/tso", {"pd_addrs": [PD], "ca_path": "ca.pem"})[0] == 200


@pytest.mark.parametrize(
    ("quiet_s", "behind_s", "pulled_behind_s", "synced", "said"),
    [
        (301, 14, 0, True, "all data is downstream"),
        (301, 16, 14, False, "if PD is offline"),
        (301, 60, 0, False, "on its way; wait"),
        (10, 1, 0, False, "on its way; wait"),
    ],
)
def test_api_synced_wants_quiet_and_a_near_checkpoint(
    api: Api, bus: Memory, quiet_s: int, behind_s: int, pulled_behind_s: int, synced: bool, said: str
) -> None:
    make(api, start_ts=CHECKPOINT)
    now = Ts(CHECKPOINT + (quiet_s * 1000 << 18))
    checkpoint_ts, pulled_ts = (Ts(now - (behind * 1000 << 18)) for behind in (behind_s, pulled_behind_s + behind_s))
    bus.now, bus.pulled_ts = now, Ts(pulled_ts if pulled_behind_s else now)
    put(bus, checkpoint_ts=checkpoint_ts, resolved_ts=checkpoint_ts, last_synced_ts=CHECKPOINT)
    shown = api.v2("GET", "/changefeeds/cf/synced")[1]
    assert (shown["synced"], said in shown["info"]) == (synced, True), shown
    assert set(shown) == {"synced", "sink_checkpoint_ts", "puller_resolved_ts", "last_synced_ts", "now_ts", "info"}


def test_api_processors_show_which_capture_pulls_a_changefeeds_tables(api: Api, bus: Memory) -> None:
    make(api)
    shares = {ME.capture_id: [TableId(1), TableId(2)], OTHER.capture_id: [TableId(3), TableId(9)]}
    bus.shares, bus.table_ids = Shares(shares), [TableId(2), TableId(3), TableId(1)]
    pairs = [("cf", "me"), ("cf", "other")]
    shown = api.v2("GET", "/processors")[1]
    assert [(processor["changefeed_id"], processor["capture_id"]) for processor in shown["items"]] == pairs
    assert api.v2("GET", "/processors/cf/me") == (200, {"table_ids": [1, 2]})
    assert api.v2("GET", "/processors/cf/who")[1]["error_code"] == "CDC:ErrCaptureNotExist"
    assert api.v2("GET", "/processors/no/me")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"
    tasks = api.v2("GET", "/changefeeds/cf")[1]["task_status"]
    assert [(task["capture_id"], task["table_ids"]) for task in tasks] == [("me", [1, 2]), ("other", [3])]
    bus.table_ids = [TableId(9)]
    assert [processor["capture_id"] for processor in api.v2("GET", "/processors")[1]["items"]] == ["other"]
    assert api.v2("GET", "/processors/cf/me") == (200, {"table_ids": []})
    api.v2("POST", "/changefeeds/cf/pause")
    assert api.v2("GET", "/processors")[1]["total"] == 0
    assert api.v2("GET", "/changefeeds/cf")[1]["task_status"] == []


def test_api_processors_show_which_capture_applies_which_partitions_to_a_database(api: Api, bus: Memory) -> None:
    make(api, sink_uri="mysql://root@127.0.0.1:3306/")
    bus.shares, bus.table_ids = Shares({OTHER.capture_id: [TableId(3)]}), [TableId(3)]
    bus.applying = [
        Share(processor=CaptureId("p1"), capture=ME.capture_id, partitions=(0, 2), is_leader=True),
        Share(processor=CaptureId("p2"), capture=OTHER.capture_id, partitions=()),
    ]
    assert [processor["capture_id"] for processor in api.v2("GET", "/processors")[1]["items"]] == ["me", "other"]
    assert api.v2("GET", "/processors/cf/me") == (200, {"table_ids": [], "partitions": [0, 2]})
    assert api.v2("GET", "/processors/cf/other") == (200, {"table_ids": [3], "partitions": []})
