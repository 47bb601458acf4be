"""The console's routes: files by a fixed table, who may ask, what is masked, live data for few, and drafts."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import consumers.control.console as console
from compose.operator.error_codes import as_data, catalogue
from consumers.control.api import overview
from consumers.control.api.access.credentials import Credentials
from consumers.control.api.backend import Backend
from consumers.control.api.client import ApiClient
from consumers.control.api.context import ApiContext
from consumers.control.api.serving.server import ApiServer
from consumers.control.console import live, watch
from consumers.control.console.core.history import History, SeenBus
from consumers.control.console.files import NAMES, error_codes_text
from consumers.control.console.routes import ROUTERS
from schemas.flow.flow_sum import FlowSum
from schemas.flow.proof import Proof, ProofWindow, encode_proof
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import ChangefeedError, ChangefeedState, ChangefeedStatus
from tests.support.control.api import Api
from tests.support.control.memory_bus import CHECKPOINT, ME, URI, Memory, Shares
from tests.support.upstream.feed_sink import wait_until

STATIC = Path(str(console.__file__)).parent / "static"
BASE = "/api/tidebus/console"
LIVE = f"GET {BASE}/live HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.fixture
def bus() -> Memory:
    bus = Memory()
    bus.leader, bus.shares = ME.capture_id, Shares()
    return bus


@pytest.fixture
def api(bus: Memory) -> Api:
    api = Api(bus)
    config = {"filter": {"rules": ["a.*"]}, "sink": {"kafka_config": {"sasl_password": "hidden"}}}
    status, made = api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI, "replica_config": config})
    assert status == 200, made
    return api


@pytest.fixture
def server(bus: Memory) -> Iterator[ApiServer]:
    with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as opened, opened.serving(bus):
        yield opened


# -- files


def test_files_are_those_of_the_table_alone() -> None:
    assert sorted(NAMES) == sorted(path.name for path in STATIC.iterdir())


@pytest.mark.parametrize("path", ["/console", "/console/", *(f"/console/{name}" for name in NAMES)])
def test_each_file_is_served_with_a_policy_that_lets_nothing_else_in(api: Api, path: str) -> None:
    answer = api.http.get(path)
    name = path.removeprefix("/console").strip("/") or "index.html"
    assert (answer.status_code, answer.content) == (200, (STATIC / name).read_bytes())
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy and answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "routes.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "../app.py",
        "static/main.js",
        "%2fetc%2fpasswd",
        "main.js%00",
        "MAIN.JS",
    ],
)
def test_no_path_leads_out_of_the_table(api: Api, name: str) -> None:
    assert api.http.get(f"/console/{name}").status_code == 404


def test_page_has_no_script_or_style_in_itself_and_names_only_our_files() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", page) == []
    assert re.findall(r"<script[^>]*>(?!</script>)", page) == []
    named = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {name for name in named if not name.startswith(("/console/", "#"))} == set()


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_make_no_markup_of_data_and_load_only_each_other(name: str) -> None:
    text = (STATIC / name).read_text()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b", text)
        == []
    )
    assert {path for path in re.findall(r'from "([^"]*)"', text) if path.removeprefix("./") not in NAMES} == set()
    shown = r"https\?:\\/\\/|(kafka|mysql|file|s3|iceberg)://"
    assert "http://www.w3.org/2000/svg" in text or "://" not in re.sub(shown, "", text)


def test_error_codes_are_those_of_the_code() -> None:
    assert error_codes_text() == as_data(catalogue()), (
        "make it anew: python -m compose.operator.error_codes --json > consumers/control/console/error_codes.json"
    )


# -- who may ask


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


# -- what is shown


def test_page_of_a_changefeed_masks_secrets_and_keeps_every_digit(api: Api) -> None:
    status, shown = api.ask("GET", f"{BASE}/changefeeds/cf")
    assert status == 200
    assert "hidden" not in json.dumps(shown)
    assert shown["changefeed"]["checkpoint_ts"] == str(CHECKPOINT)
    assert 'sasl-password = "***"' in shown["toml"]
    rules = next(row for row in shown["settings"] if row["key"] == "filter.rules")
    assert (rules["value"], rules["default"], rules["differs"]) == ("a.*", "*.*", True)
    assert {verb["verb"]: verb["allowed"] for verb in shown["verbs"]} == {
        "pause": True, "resume": False, "update": False, "move": True, "remove": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "meaning", "step"),
    [
        ("sorter.topic_missing", "The topic is not there", "auto-create-topic"),
        ("rawlog.record_damaged", "A record of the raw log is not the one", "skip-damaged-records"),
    ],
)
def test_page_of_a_failed_changefeed_says_what_to_do(api: Api, bus: Memory, code: str, meaning: str, step: str) -> None:
    error = ChangefeedError(code=code, message="no topic", time="")
    status = ChangefeedStatus(state="failed", checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT, error=error)
    bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=status)
    advice = api.ask("GET", f"{BASE}/changefeeds/cf")[1]["advice"]
    assert (advice["follows"], advice["verbs"]) == ("needs you", ["update", "resume"])
    assert advice["meaning"].startswith(meaning)
    assert step in " ".join(advice["steps"])


def test_log_is_of_all_or_of_one_changefeed_newest_first(api: Api, bus: Memory) -> None:
    bus.logged = [
        {"message": "1", "changefeed": "cf", "namespace": "default"},
        {"message": "2", "changefeed": "cf", "namespace": "other"},
        {"message": "3", "changefeed": "default/cf"},
        {"message": "4", "changefeed": "cf"},
        {"message": "5", "capture": "cf"},
    ]

    def messages(query: str = "") -> str:
        answer = api.http.get(f"{BASE}/log{query}").json()
        assert answer["capture"] == ME.capture_id
        return "".join(item["message"] for item in answer["items"])

    assert messages() == "54321"
    assert messages("?changefeed=cf") == "431"
    assert messages("?changefeed=cf&namespace=other") == "42"
    assert messages("?changefeed=none") == ""


def test_proofs_of_a_changefeed_are_counted_by_what_they_come_to(api: Api, bus: Memory) -> None:
    # One is even, one is altered behind its hash, and before the last nobody told of 30 to 40.
    three = FlowSum(3, 7)
    windows = [(10, 20, ""), (20, 30, ""), (40, 50, "run")]
    previous = ""
    for number, (after_ts, upto_ts, begins) in enumerate(windows):
        tables = {TableId(8 if number else 7): three}
        window = ProofWindow(
            after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), landed=three, written=three, tables=tables, tables_total=1
        )
        proof = Proof(
            namespace="default", changefeed_id="cf", number=number, previous=previous, begins=begins, window=window
        )
        content, previous = encode_proof(proof)
        bus.proved.append(json.loads(content))
    bus.proved[1]["cuts"] = 9
    shown = api.http.get(f"{BASE}/changefeeds/cf/proofs").json()
    counted = {name: shown[name] for name in ("windows", "proven", "differing", "unproven")}
    assert counted == {"windows": 3, "proven": 2, "differing": 1, "unproven": 1}
    assert shown["stretches"] == [{"after_ts": 30, "upto_ts": 40}]
    assert [window["upto_ts"] for window in shown["newest"]] == [50, 30, 20]
    assert shown["newest"][1]["faults"] == ["altered"]
    assert shown["newest"][0] == {"after_ts": 40, "upto_ts": 50, "landed": 3, "left_out": 0, "written": 3, "faults": []}
    assert "hash" in shown["findings"][0]
    assert shown["busiest"] == [{"table_id": 8, "rows": 6}, {"table_id": 7, "rows": 3}]
    bus.proved.append({"changefeed": "cf"})
    assert api.http.get(f"{BASE}/changefeeds/cf/proofs").json()["differing"] == 2


def put_in(bus: Memory, sink_uri: str, state: ChangefeedState = "normal", code: str = "") -> None:
    """Give the changefeed another sink and state."""
    error = ChangefeedError(code=code, message="", time="") if code else None
    status = ChangefeedStatus(state=state, checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT, error=error)
    kept = bus.kept["default", "cf"]
    bus.kept["default", "cf"] = replace(kept, info=replace(kept.info, sink_uri=sink_uri, config={}), status=status)


LAKE = "iceberg://?warehouse=file:///w&commit-interval=90s"


@pytest.mark.parametrize(
    ("uri", "sink", "pause_s"),
    [
        (URI, "kafka", 0.0),
        ("mysql://root@127.0.0.1:3306/", "mysql", 0.0),
        (LAKE, "iceberg", 90.0),
        ("iceberg://?warehouse=file:///w", "iceberg", 60.0),
        ("file:///w?protocol=csv&flush-interval=20s", "file", 20.0),
        ("iceberg://?commit-interval=soon", "iceberg", 0.0),
    ],
)
def test_overview_says_how_long_a_sink_lets_rows_wait(
    api: Api, bus: Memory, uri: str, sink: str, pause_s: float
) -> None:
    put_in(bus, uri)
    (shown,) = overview.overview_body(bus, None)["changefeeds"]
    assert (shown["sink"], shown["pause_s"]) == (sink, pause_s)


def test_page_of_a_lake_says_what_its_buttons_do_to_lake_tables(api: Api, bus: Memory) -> None:
    put_in(bus, LAKE, "failed", "sorter.history_lost")
    shown = api.ask("GET", f"{BASE}/changefeeds/cf")[1]
    resume = next(verb for verb in shown["verbs"] if verb["verb"] == "resume")
    assert "lake.table_taken" in resume["effect"]
    assert shown["advice"]["verbs"] == ["remove"]
    assert {verb["verb"]: verb["allowed"] for verb in shown["table_verbs"]} == dict.fromkeys(TABLE_VERBS, False)
    put_in(bus, LAKE)
    shown = api.ask("GET", f"{BASE}/changefeeds/cf")[1]
    assert {verb["verb"]: verb["allowed"] for verb in shown["table_verbs"]} == dict.fromkeys(TABLE_VERBS, True)


TABLE_VERBS = ("backfill", "resync", "pause", "resume")


def test_page_of_no_changefeed_is_refused(api: Api) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/none")[0] == 400
    assert api.ask("GET", f"{BASE}/changefeeds/..%2f..")[0] in (400, 404)


def test_topics_names_and_checks_are_the_buss(api: Api) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/cf/topics")[1] == {"tables": [{"table": "a.b", "topic": "t"}]}
    assert api.ask("GET", f"{BASE}/tables")[1] == {"total": 1, "items": [{"id": 1, "name": "a.b"}]}
    (finding,) = api.ask("GET", f"{BASE}/checks")[1]["items"]
    assert finding["said"] == "PD does not answer"


# -- history


def test_history_of_the_bus_is_kept_whether_or_not_somebody_looks(
    bus: Memory, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = [], watch.seen_bus

    def counted(bus: Backend | None) -> SeenBus:
        looked.append(bus)
        return look(bus)

    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "seen_bus", counted)
    context = ApiContext()
    context.backend = bus
    with closing(watch.HistoryWatch(context)) as kept:
        wait_until(lambda: len(looked) > 1, lambda: None)
        bus.live = [ME]
        wait_until(lambda: bool(kept.events()), lambda: None)
        put_in(bus, URI, "failed", "sorter.topic_missing")
        wait_until(lambda: bool(kept.events(("default", "cf"))), lambda: None)
        context.backend = None
        wait_until(lambda: "cannot look" in kept.events()[0]["text"], lambda: None)
    api.context.history = kept
    said = api.ask("GET", f"{BASE}/events")[1]
    assert said["capture"] == ME.capture_id
    assert [item["text"] for item in said["items"]][::-1][:2] == [
        "capture 127.0.0.1:2 has gone",
        "changefeed cf is failed: sorter.topic_missing",
    ]
    (of_feed,) = api.ask("GET", f"{BASE}/events?changefeed=cf")[1]["items"]
    assert of_feed["changefeed"] == "cf"
    shown = api.ask("GET", f"{BASE}/changefeeds/cf")[1]["history"]
    assert [event["text"] for event in shown["events"]] == [of_feed["text"]]


def test_batches_of_a_changefeed_say_where_they_ran(bus: Memory, api: Api) -> None:
    history = History()
    for checkpoint_ts, rows, spark in ((5, 0, 0), (9, 7, 3)):
        status = ChangefeedStatus(
            state="normal",
            checkpoint_ts=Ts(checkpoint_ts),
            resolved_ts=Ts(9),
            rows_total=rows,
            spark_rows_total=spark,
            batch_rows=rows,
            batch_s=0.5,
        )
        bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=status)
        history.take(watch.seen_bus(bus), float(checkpoint_ts))
    (batch,) = history.batches(("default", "cf"))
    assert {"rows": 7, "seconds": 0.5, "rows_since": 7, "spark_rows_since": 3, "checkpoint_ts": 9}.items() <= (
        batch.items()
    )


# -- drafts


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


def test_page_of_a_changefeed_shows_how_far_its_images_are(api: Api, bus: Memory) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/cf")[1]["images"] is None
    images = {"namespace": "default", "id": "cf", "state": "running", "tables_left": 2, "tables": []}
    bus.images = [{**images, "id": "other"}, images]
    assert api.ask("GET", f"{BASE}/changefeeds/cf")[1]["images"] == images


# -- live data


def events(connection: socket.socket, count: int) -> list[tuple[str, Any]]:
    """Read so many events of a stream whose headers come first."""
    text = b""
    while text.count(b"\ndata: ") < count or not text.endswith((b"\n\n", b"\n\n\r\n")):
        if not (more := connection.recv(65536)):
            break
        text += more
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text.decode())]


def opened(stack: ExitStack, server: ApiServer) -> socket.socket:
    host, port = server.address.split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), 30))
    connection.sendall(LIVE)
    return connection


def test_live_data_is_the_overview_with_what_waits(server: ApiServer) -> None:
    with ExitStack() as stack:
        (name, shown), *_ = events(opened(stack, server), 1)
    assert name == "overview"
    assert shown["answered_by"] == "me" and shown["upstreams"][0]["resolved_ts"] == str(CHECKPOINT)
    assert shown["waits"] == []


def test_live_data_without_a_session_says_what_is_wrong(server: ApiServer) -> None:
    server.context.backend = None
    with ExitStack() as stack:
        ((name, shown),) = events(opened(stack, server), 1)
    assert (name, shown["code"]) == ("trouble", "api.not_ready")


def test_live_data_is_for_so_many_and_those_who_go_make_room(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.control.console.routes.CLIENTS_MAX", 2)
    with ExitStack() as stack:
        first = [opened(stack, server) for _ in range(2)]
        for connection in first:
            assert events(connection, 1)[0][0] == "overview"
        refused = ApiClient(url=server.address).ask("GET", f"{BASE}/live")
        assert refused.status == 503 and "api.busy" in refused.json()["error_msg"]
        first[0].close()

        def has_room() -> bool:
            with ExitStack() as inner:
                return opened(inner, server).recv(12) == b"HTTP/1.1 200"

        wait_until(has_room, lambda: None)


def test_live_data_is_made_once_for_all_who_listen(bus: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = overview.overview_body

    def counted(*given: Any) -> dict[str, Any]:
        made.append(threading.get_ident())
        return whole(*given)

    monkeypatch.setattr(live, "overview_body", counted)
    monkeypatch.setattr(live, "PERIOD_S", 3600.0)
    with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as server, server.serving(bus), ExitStack() as stack:
        for connection in [opened(stack, server) for _ in range(5)]:
            assert events(connection, 1)[0][0] == "overview"
    assert len(made) == 1


def test_server_that_ends_ends_streams(bus: Memory) -> None:
    with ExitStack() as stack:
        with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as server, server.serving(bus):
            connection = opened(stack, server)
            assert events(connection, 1)[0][0] == "overview"
        connection.settimeout(30)
        rest = b""
        while more := connection.recv(65536):
            rest += more
    assert rest.endswith(b"0\r\n\r\n"), "the stream has an end of its own, and is not cut off"


def test_stream_that_has_had_its_time_asks_its_listener_to_come_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAM_S", 0.0)
    with ExitStack() as stack:
        assert events(opened(stack, server), 2) == [("again", {})]
