"""The HTTP API over a socket, before a bus that is held in memory."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from consumers.api.bodies import FeedRequest, StoredFeed
from consumers.api.metrics import Snapshot
from consumers.api.replica_config import from_api, to_api
from consumers.api.server import ApiAddressError, ApiServer
from consumers.capture_registry import CaptureInfo
from consumers.changefeed_control import ConfigChange, configured, feed_of
from consumers.changefeed_store import ChangefeedExistsError, ChangefeedNotFoundError, StartTsError
from consumers.core.changefeed_state import Pause, Resume, step
from schemas.changefeed import ChangefeedError, ChangefeedInfo, ChangefeedStatus
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import CaptureId, Ts, UpstreamId, compose_ts

CHECKPOINT = compose_ts(1_700_000_000_123, 5)
URI = "kafka://127.0.0.1:9092/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=u&sasl-password=hidden"
ERROR = ChangefeedError(code="sorter.dispatch_failed", message="no topic", time="2026-01-01T00:00:00Z")
ME, OTHER = (
    CaptureInfo(capture_id=CaptureId(name), address=f"127.0.0.1:{port}", version="1.2.3", started_at_s=1)
    for name, port in (("me", 1), ("other", 2))
)


class Memory:
    """A bus of changefeeds in a dict."""

    def __init__(self) -> None:
        self.capture, self.cluster = ME, "default"
        self.kept: dict[tuple[str, str], StoredFeed] = {}
        self.leader: CaptureId | None = OTHER.capture_id
        self.broken: Exception | None = None
        self.snapshot = Snapshot(at_s=0.0, pull=None, feeds=None)

    def is_stopping(self) -> bool:
        return False

    def owner(self) -> CaptureId | None:
        return self.leader

    def captures(self) -> list[CaptureInfo]:
        return [ME, OTHER]

    def upstream_id(self, upstream: UpstreamId) -> int:
        return (1 << 63) + 1

    def now_ts(self) -> Ts:
        return CHECKPOINT

    def feeds(self, namespace: str) -> list[StoredFeed]:
        return [feed for (space, _), feed in sorted(self.kept.items()) if space == namespace]

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed:
        if self.broken:
            raise self.broken
        try:
            return self.kept[namespace, changefeed_id]
        except KeyError:
            raise ChangefeedNotFoundError("there is no such changefeed", changefeed=changefeed_id) from None

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        changefeed_id = request.changefeed_id or "made-up"
        if (namespace, changefeed_id) in self.kept:
            raise ChangefeedExistsError("changefeed exists", changefeed=changefeed_id)
        if request.start_ts is not None and request.start_ts < 10:
            raise StartTsError("start-ts is older than the raw log", oldest_ts=10)
        assert request.sink_uri is not None
        load_changefeed(request.sink_uri, request.config)
        info = ChangefeedInfo(
            changefeed_id=changefeed_id,
            namespace=namespace,
            upstream=UpstreamId("u"),
            sink_uri=request.sink_uri,
            config=request.config or {},
            start_ts=request.start_ts or CHECKPOINT,
            target_ts=request.target_ts,
            create_time="2026-01-01T00:00:00.000+00:00",
            creator_version="1.2.3",
        )
        self.kept[namespace, changefeed_id] = StoredFeed(info, None)
        return info

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo:
        feed = self.feed(changefeed_id, namespace)
        info = configured(feed.info, feed.state, change)
        self.kept[namespace, changefeed_id] = StoredFeed(info, feed.status)
        return info

    def pause(self, changefeed_id: str, namespace: str) -> None:
        self.desire(changefeed_id, namespace, Pause())

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None:
        self.desire(changefeed_id, namespace, Resume(overwrite_checkpoint_ts))

    def desire(self, changefeed_id: str, namespace: str, message: Pause | Resume) -> None:
        feed = self.feed(changefeed_id, namespace)
        known, _ = step(feed_of(feed.info, feed.status), message)
        info = replace(feed.info, desired_state="stopped" if known.state == "stopped" else "normal")
        status = ChangefeedStatus(state=known.state, checkpoint_ts=known.checkpoint_ts, resolved_ts=known.resolved_ts)
        self.kept[namespace, changefeed_id] = StoredFeed(replace(info, start_ts=known.start_ts), status)

    def remove(self, changefeed_id: str, namespace: str) -> None:
        self.feed(changefeed_id, namespace)
        del self.kept[namespace, changefeed_id]

    def tables(self, request: FeedRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return [], [{"database_name": "a", "table_name": "b", "table_id": 1, "is_partition": False}]

    def metrics(self) -> Snapshot:
        return self.snapshot

    def check_health(self) -> None:
        if self.broken:
            raise self.broken


class Api:
    """A client of the server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        with closing(connection):
            content = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(method, path, content)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def v2(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self.ask(method, f"/api/v2{path}", body)


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def api(bus: Memory) -> Iterator[Api]:
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        yield Api(server.address)


def make(api: Api, changefeed_id: str = "cf", **more: Any) -> Any:
    status, made = api.v2("POST", "/changefeeds", {"changefeed_id": changefeed_id, "sink_uri": URI, **more})
    assert status == 200, made
    return made


def put(bus: Memory, **changes: Any) -> None:
    status = ChangefeedStatus(state="normal", checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT)
    bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=replace(status, **changes))


def test_api_status_names_the_capture_and_whether_it_owns(api: Api, bus: Memory) -> None:
    status, shown = api.v2("GET", "/status")
    assert (status, shown["id"], shown["version"], shown["is_owner"], shown["liveness"]) == (
        200,
        "me",
        "1.2.3",
        False,
        0,
    )
    assert set(shown) == {"version", "git_hash", "id", "cluster_id", "pid", "is_owner", "liveness"}
    bus.leader = ME.capture_id
    assert api.v2("GET", "/status")[1]["is_owner"] is True


def test_api_captures_lists_all_with_the_owner(api: Api) -> None:
    assert api.v2("GET", "/captures") == (
        200,
        {
            "total": 2,
            "items": [
                {"id": "me", "is_owner": False, "address": "127.0.0.1:1", "cluster_id": "default"},
                {"id": "other", "is_owner": True, "address": "127.0.0.1:2", "cluster_id": "default"},
            ],
        },
    )


def test_api_tso_is_split_into_clock_and_counter(api: Api) -> None:
    assert api.v2("POST", "/tso", {}) == (200, {"timestamp": 1_700_000_000_123, "logic_time": 5})


def test_api_changefeed_created_is_shown_whole_without_secrets(api: Api) -> None:
    config = {"filter": {"rules": ["a.*"]}, "enable_sync_point": False, "sink": {"csv": {"null": "N"}}}
    made = make(api, replica_config={"filter": config["filter"]}, target_ts=CHECKPOINT + 9)
    assert made["config"] == {"filter": {"rules": ["a.*"]}}
    assert "hidden" not in json.dumps(made)
    assert (made["id"], made["namespace"], made["state"], made["error"]) == ("cf", "default", "normal", None)
    assert (made["start_ts"], made["target_ts"], made["checkpoint_ts"]) == (CHECKPOINT, CHECKPOINT + 9, CHECKPOINT)
    assert made["upstream_id"] == (1 << 63) + 1
    assert made["checkpoint_time"].endswith(".123")
    assert api.v2("GET", "/changefeeds/cf") == api.v2("GET", "/changefeeds/cf/meta_info") == (200, made)
    assert set(made) == {
        *("upstream_id", "namespace", "id", "sink_uri", "create_time", "start_ts", "target_ts", "admin_job_type"),
        *("config", "state", "error", "creator_version", "resolved_ts", "checkpoint_ts", "checkpoint_time"),
        "task_status",
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
    assert set(item) == {"upstream_id", "namespace", "id", "state", "checkpoint_tso", "checkpoint_time", "error"}
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


def test_api_update_changes_what_is_given_and_refuses_while_it_runs(api: Api) -> None:
    make(api)
    change = {"replica_config": {"filter": {"rules": ["b.*"]}}}
    status, shown = api.v2("PUT", "/changefeeds/cf", change)
    assert (status, shown["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
    api.v2("POST", "/changefeeds/cf/pause")
    assert api.v2("PUT", "/changefeeds/cf", change)[1]["config"] == {"filter": {"rules": ["b.*"]}}
    assert api.v2("PUT", "/changefeeds/cf", change)[1]["error_code"] == "CDC:ErrChangefeedUpdateRefused"
    status, shown = api.v2("PUT", "/changefeeds/cf", {"target_ts": 1})
    assert (status, shown["error_code"]) == (400, "CDC:ErrTargetTsBeforeStartTs")
    assert api.v2("PUT", "/changefeeds/cf", {"start_ts": 99})[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_delete_is_fine_twice(api: Api) -> None:
    make(api)
    assert api.v2("DELETE", "/changefeeds/cf") == api.v2("DELETE", "/changefeeds/cf") == (200, {})
    assert api.v2("GET", "/changefeeds/cf")[0] == 400


def test_api_processors_are_none_and_an_unknown_one_says_what_is_missing(api: Api) -> None:
    make(api)
    assert api.v2("GET", "/processors") == (200, {"total": 0, "items": []})
    assert api.v2("GET", "/processors/cf/me") == (200, {"table_ids": []})
    assert api.v2("GET", "/processors/cf/who")[1]["error_code"] == "CDC:ErrCaptureNotExist"
    assert api.v2("GET", "/processors/no/me")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"


def test_api_verify_table_names_both_kinds(api: Api) -> None:
    status, shown = api.v2("POST", "/verify_table", {"sink_uri": URI})
    assert (status, set(shown)) == (200, {"ineligible_tables", "eligible_tables"})


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"\xff", b"[" * 100_000])
def test_api_body_that_is_no_object_is_a_bad_request(api: Api, body: bytes) -> None:
    status, shown = api.ask("POST", "/api/v2/changefeeds", raw=body)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


def test_api_body_above_its_bound_is_refused_unread(api: Api) -> None:
    with closing(http.client.HTTPConnection(api.address, timeout=20)) as connection:
        connection.putrequest("POST", "/api/v2/changefeeds")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("POST", "/api/v2/status"), ("PUT", "/api/v2/tso")])
def test_api_unknown_path_or_method_is_not_found(api: Api, method: str, path: str) -> None:
    assert api.ask(method, path)[0] == 404


def test_api_health_is_empty_or_the_error(api: Api, bus: Memory) -> None:
    assert api.v2("GET", "/health") == (200, {})
    bus.broken = ConfigError("no good", key="x")
    assert api.v2("GET", "/health")[0] == 400


def test_api_bug_is_an_answer_that_tells_no_secrets(api: Api, bus: Memory, caplog: pytest.LogCaptureFixture) -> None:
    bus.broken = RuntimeError("password is hidden")
    status, shown = api.v2("GET", "/changefeeds/cf")
    assert (status, shown["error_code"]) == (500, "CDC:ErrInternalServerError")
    assert "hidden" not in shown["error_msg"]
    assert "password is hidden" in caplog.text


def test_api_without_a_session_is_not_ready() -> None:
    with closing(ApiServer("127.0.0.1:0")) as server:
        assert Api(server.address).v2("GET", "/changefeeds")[0] == 503
        assert Api(server.address).v2("GET", "/nothing")[0] == 404


def test_api_address_that_is_taken_or_none_is_a_clear_error() -> None:
    with closing(ApiServer("127.0.0.1:0")) as server, pytest.raises(ApiAddressError, match="another capture"):
        ApiServer(server.address)
    for address in ("8300", "h:port", "h:70000", ":8300"):
        with pytest.raises(ConfigError, match="host:port"):
            ApiServer(address)


def test_replica_config_names_and_durations_go_both_ways() -> None:
    table = {
        "case-sensitive": True,
        "sync-point-interval": "10m",
        "sink": {
            "file-index-digit": 4,
            "send-all-bootstrap-at-start": True,
            "dispatchers": [{"matcher": ["a.*"], "partition": "ts"}],
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
            "dispatchers": [{"matcher": ["a.*"], "partition": "ts"}],
            "kafka_config": {"sasl_password": "***", "dial_timeout": 1_500_000_000},
        },
    }
    back = from_api({**shown, "mounter": None})
    assert back["sync-point-interval"] == "600000000000ns"
    assert back["sink"]["file-index-digit"] == 4
    assert "mounter" not in back
    assert from_api({"sync_point_interval": "10m"}) == {"sync-point-interval": "10m"}
