"""What the console's pages get of the bus: nothing secret, every digit, what to do next."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compose.cli import run_cli
from consumers.control.api import overview
from consumers.control.api.bodies import local_time
from consumers.control.api.serving.server import ApiServer
from consumers.control.console.core.waits import lags_of, waits_of
from schemas.flow.flow_sum import FlowSum
from schemas.flow.proof import Proof, ProofWindow, encode_proof
from schemas.ids import TableId, Ts, compose_ts
from schemas.nodes.changefeed import ChangefeedError, ChangefeedStatus
from schemas.nodes.failures import StoppingDdl
from tests.support.control.api import Api
from tests.support.control.console_api import BASE, put_in
from tests.support.control.memory_bus import CHECKPOINT, ME, URI, Memory

LAKE = "iceberg://?warehouse=file:///w&commit-interval=90s"
TABLE_VERBS = ("backfill", "resync", "pause", "resume")


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
    ("code", "meaning", "step", "verbs"),
    [
        ("sorter.topic_missing", "The topic is not there", "auto-create-topic", ["update", "resume"]),
        (
            "rawlog.record_damaged",
            "A record of the raw log is not the one",
            "skip-damaged-records",
            ["update", "resume"],
        ),
        ("rawlog.image_chunk_broken", "The records of a chunk are not", "create it anew", ["remove"]),
    ],
)
def test_page_of_a_failed_changefeed_says_what_to_do(
    api: Api, bus: Memory, code: str, meaning: str, step: str, verbs: list[str]
) -> None:
    error = ChangefeedError(code=code, message="no topic", time="")
    status = ChangefeedStatus(state="failed", checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT, error=error)
    bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=status)
    advice = api.ask("GET", f"{BASE}/changefeeds/cf")[1]["advice"]
    assert (advice["follows"], advice["verbs"]) == ("needs you", verbs)
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


def test_lake_tables_that_are_refused_are_listed_with_what_their_codes_mean_and_what_to_do(
    api: Api, bus: Memory, server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in(bus, LAKE)
    bus.refused = [{"table": "a.b", "code": "lake.schema_refused", "reason": "it is <b>odd</b>", "what_helps": "this"}]
    items = [{**bus.refused[0], "ddl": None}]
    assert api.ask("GET", "/api/tidebus/changefeeds/cf/tables/refused")[1] == {"total": 1, "items": items}
    shown = api.ask("GET", f"{BASE}/changefeeds/cf/refused")[1]
    assert shown["items"] == items
    (advice,) = shown["codes"].values()
    assert advice["code"] == "lake.schema_refused" and advice["meaning"] and "filter" in " ".join(advice["steps"])

    def query() -> dict[str, Any]:
        assert run_cli(["changefeed", "query", "--changefeed-id", "cf", "--server", f"http://{server.address}"]) == 0
        queried: dict[str, Any] = json.loads(capsys.readouterr().out)
        return queried

    assert query()["refused_tables"] == items
    kept, bus.refused = bus.refused, None
    assert query()["refused_tables"] is None, "the rest of a query does not hang on the raw log"
    bus.refused = kept
    put_in(bus, URI)
    assert "refused_tables" not in query()


def test_ddl_that_stops_a_lake_is_listed_first_among_refused_tables_with_what_helps(
    api: Api, bus: Memory, server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in(bus, LAKE, "failed", "lake.schema_refused")
    bus.refused = [{"table": "a.c", "code": "changefeed.table_ineligible", "reason": "no key", "what_helps": "a key"}]
    kept = bus.kept["default", "cf"]
    assert kept.status is not None and kept.status.error is not None
    commit_ts = compose_ts(1_700_000_000_123, 5)
    ddl = StoppingDdl(
        table="a.b", query="alter …", start_ts=Ts(7), commit_ts=commit_ts, reason="no such type", what_helps="a rule"
    )
    error = replace(kept.status.error, ddl=ddl)
    bus.kept["default", "cf"] = replace(kept, status=replace(kept.status, error=error))
    first, second = api.ask("GET", "/api/tidebus/changefeeds/cf/tables/refused")[1]["items"]
    said = {"query": "alter …", "start_ts": 7, "commit_ts": commit_ts, "commit_time": local_time(commit_ts)}
    named = {"table": "a.b", "code": "lake.schema_refused", "reason": "no such type", "what_helps": "a rule"}
    assert (first, second) == ({**named, "ddl": said}, {**bus.refused[0], "ddl": None})
    assert run_cli(["changefeed", "query", "--changefeed-id", "cf", "--server", f"http://{server.address}"]) == 0
    assert json.loads(capsys.readouterr().out)["refused_tables"] == [first, second]
    page = api.ask("GET", f"{BASE}/changefeeds/cf/refused")[1]
    assert page["items"][0]["ddl"]["commit_ts"] == str(commit_ts), "no number of JavaScript holds it"
    assert set(page["codes"]) == {"changefeed.table_ineligible", "lake.schema_refused"}
    put_in(bus, URI, "failed", "lake.schema_refused")
    kept = bus.kept["default", "cf"]
    assert kept.status is not None
    bus.kept["default", "cf"] = replace(kept, status=replace(kept.status, error=error))
    bus.refused = []
    assert api.ask("GET", "/api/tidebus/changefeeds/cf/tables/refused")[1]["items"] == [], "only a lake refuses tables"


def test_page_of_no_changefeed_is_refused(api: Api) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/none")[0] == 400
    assert api.ask("GET", f"{BASE}/changefeeds/..%2f..")[0] in (400, 404)


def test_topics_names_and_checks_are_the_buss(api: Api) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/cf/topics")[1] == {"tables": [{"table": "a.b", "topic": "t"}]}
    item = {"id": 1, "name": "a.b", "partition": ""}
    assert api.ask("GET", f"{BASE}/tables")[1] == {"total": 1, "items": [item]}
    (finding,) = api.ask("GET", f"{BASE}/checks")[1]["items"]
    assert finding["said"] == "PD does not answer"


def test_page_of_a_changefeed_shows_how_far_its_images_are(api: Api, bus: Memory) -> None:
    assert api.ask("GET", f"{BASE}/changefeeds/cf")[1]["images"] is None
    images = {"namespace": "default", "id": "cf", "state": "running", "tables_left": 2, "tables": []}
    bus.images = [{**images, "id": "other"}, images]
    assert api.ask("GET", f"{BASE}/changefeeds/cf")[1]["images"] == images


def test_overview_reckons_an_upstreams_lag_as_of_now_when_its_owner_says_nothing_any_more(
    api: Api, bus: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_700_000_600.123  # CHECKPOINT is ten minutes before
    monkeypatch.setattr(overview, "time", SimpleNamespace(time=lambda: now_s))
    said = {"resolved_ts": CHECKPOINT, "lag_s": 0.4, "at_s": now_s - 599.6, "state": "normal"}
    monkeypatch.setattr(bus, "status", lambda: said)
    put_in(bus, URI)
    bus.leader = None
    shown = overview.overview_body(bus, None)
    (upstream,) = shown["upstreams"]
    assert (upstream["lag_s"], upstream["silent_s"], upstream["state"]) == (600.0, 599.6, "normal")
    assert lags_of(shown["changefeeds"][0], upstream) == {
        "raw_log": 600.0, "sorter": 0.0, "destination": None, "whole": 600.0,
    }  # fmt: skip
    assert [(wait["who"], wait["waits_for"]) for wait in waits_of(shown)] == [
        ("the bus", "an owner: no capture is one"),
        ("upstream u", "its owner, which has said nothing for 600 s"),
        ("changefeed cf", "the upstream, whose frontier is behind: 600 s"),
    ]
    for odd in ({"epoch": 3}, {"resolved_ts": "5", "at_s": None}, {"resolved_ts": 10**400, "at_s": 10**400}):
        monkeypatch.setattr(bus, "status", lambda odd=odd: odd)
        (upstream,) = overview.overview_body(bus, None)["upstreams"]
        assert (upstream.get("lag_s"), upstream["silent_s"]) == (None, None)
