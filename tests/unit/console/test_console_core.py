"""What the console's pages show, from what the bus says: advice, waits and lags, verbs, settings."""

from typing import Any, get_args

import pytest

from consumers.control.console.core.advice import ErrorCode, advice_for, read_codes
from consumers.control.console.core.exact import EXACT_MAX, exact
from consumers.control.console.core.settings import readable, setting_rows
from consumers.control.console.core.table_verbs import table_verbs_of
from consumers.control.console.core.verbs import verbs_of
from consumers.control.console.core.waits import lags_of, waits_of
from consumers.control.console.files import error_codes_text
from consumers.control.core.changefeeds.state import Feed, Pause, Resume, step
from schemas.config.parse.duration import parse_duration
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedState

STATES: tuple[ChangefeedState, ...] = get_args(ChangefeedState)
CODES = read_codes(error_codes_text())


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_steps_and_verbs_that_there_are(code: str) -> None:
    advice = advice_for(code, CODES)
    assert advice.steps and advice.meaning
    assert set(advice.verbs) <= {"update", "resume", "remove", "move"}
    assert all("http" not in step for step in advice.steps)


@pytest.mark.parametrize(
    ("code", "follows", "verbs"),
    [
        ("sorter.topic_missing", "needs you", ("update", "resume")),
        ("sorter.history_lost", "needs you", ("resume", "remove")),
        ("sorter.kafka_unreachable", "retried", ("resume",)),
        ("bus.invariant_broken", "a bug", ("resume",)),
        ("CDC:ErrNobodyKnows", "needs you", ("update", "resume")),
    ],
)
def test_advice_goes_by_what_follows(code: str, follows: str, verbs: tuple[str, ...]) -> None:
    advice = advice_for(code, CODES)
    assert (advice.follows, advice.verbs) == (follows, verbs)


def test_advice_of_a_code_is_that_of_its_own_before_its_familys() -> None:
    codes = {code: ErrorCode(code, "needs you", "m") for code in ("apply.ddl_refused", "apply.row_refused")}
    assert advice_for("apply.ddl_refused", codes).steps != advice_for("apply.row_refused", codes).steps


@pytest.mark.parametrize("code", [code for code in sorted(CODES) if code.startswith("lake.")])
def test_codes_of_lake_tables_have_steps_of_their_own(code: str) -> None:
    nobodys = ErrorCode("nobodys.code", CODES[code].follows, "m")
    is_retried = CODES[code].follows == "retried"
    assert (advice_for(code, CODES).steps == advice_for("nobodys.code", {"nobodys.code": nobodys}).steps) == is_retried


def test_lake_whose_history_is_lost_is_not_told_to_resume_elsewhere() -> None:
    assert advice_for("sorter.history_lost", CODES, "iceberg").verbs == ("remove",)
    assert advice_for("sorter.history_lost", CODES, "kafka").verbs == ("resume", "remove")


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("kafka", "TRUNCATE TABLE"),
        ("tidb", "goes with the chunk"),
        ("iceberg", "mode upsert alone"),
        ("s3", "Files have no place"),
    ],
)
def test_resync_says_what_it_does_at_the_sink(sink: str, said: str) -> None:
    resync = next(verb for verb in table_verbs_of("normal", sink) if verb.verb == "resync")
    assert said in resync.effect
    assert resync.allowed == (sink != "s3")


@pytest.mark.parametrize("state", STATES)
def test_images_are_asked_for_where_the_changefeed_runs(state: ChangefeedState) -> None:
    verbs = table_verbs_of(state, "kafka")
    assert {verb.allowed for verb in verbs} == {state in ("normal", "warning", "pending")}
    assert all(verb.effect for verb in verbs)


@pytest.mark.parametrize("state", STATES)
def test_verbs_are_allowed_as_the_state_machine_takes_them(state: ChangefeedState) -> None:
    if state == "removed":
        return
    feed = Feed(
        state=state, checkpoint_ts=Ts(5), resolved_ts=Ts(6), start_ts=Ts(1), target_ts=None, epoch=1, error=None
    )
    allowed = {verb.verb: verb.allowed for verb in verbs_of(state)}
    assert allowed["pause"] == (step(feed, Pause()) != feed)
    assert allowed["resume"] == (step(feed, Resume(None)) != feed)
    assert all(verb.effect for verb in verbs_of(state))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(EXACT_MAX, EXACT_MAX), (EXACT_MAX + 1, str(EXACT_MAX + 1)), (-EXACT_MAX - 1, str(-EXACT_MAX - 1)), (True, True)],
)
def test_integers_that_a_browser_would_round_are_texts(value: int, shown: object) -> None:
    assert exact({"a": [value]}) == {"a": [shown]}


def feed(**more: Any) -> dict[str, Any]:
    whole = {
        "namespace": "default",
        "id": "cf",
        "upstream": "u",
        "state": "normal",
        "error": None,
        "sorter": {"pid": 1},
    }
    return {**whole, "checkpoint_lag_s": 3.0, "sorter_lag_s": None, **more}


def overview(*feeds: dict[str, Any], **upstream: Any) -> dict[str, Any]:
    upstreams = [{"upstream": "u", "lag_s": 1.0, **upstream}]
    return {"upstreams": upstreams, "captures": [{"is_owner": True}], "changefeeds": list(feeds)}


def test_lag_is_split_by_stage() -> None:
    upstream = {"lag_s": 1.0}
    assert lags_of(feed(), upstream) == {"raw_log": 1.0, "sorter": 2.0, "destination": None, "whole": 3.0}
    applied = lags_of(feed(checkpoint_lag_s=9.0, sorter_lag_s=3.5), upstream)
    assert applied == {"raw_log": 1.0, "sorter": 2.5, "destination": 5.5, "whole": 9.0}
    assert lags_of(feed(), None) == {"raw_log": None, "sorter": None, "destination": None, "whole": 3.0}
    assert lags_of(feed(checkpoint_lag_s=0.5), upstream)["sorter"] == 0.0


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (feed(state="failed", error={"code": "a.b", "message": ""}), "you: it has failed with a.b"),
        (feed(state="stopped"), "you: it is paused"),
        (
            feed(state="warning", error={"code": "changefeed.table_held", "message": ""}),
            "its upstream: changefeed.table_held",
        ),
        (
            feed(state="warning", error={"code": "sorter.spark_job", "message": ""}),
            "sorter.spark_job, and is tried again",
        ),
        (feed(sorter=None), "a sorter service that runs it"),
        (feed(checkpoint_lag_s=31.0), "its sorter, which is behind the raw log: 30 s"),
        (feed(checkpoint_lag_s=31.0, sorter_lag_s=2.0), "its destination, which is behind the topic: 29 s"),
        (
            feed(checkpoint_lag_s=900.0, prologue={"attempt": 2, "is_complete": False}),
            "its prologue: what was before the raw log is read from TiKV, attempt 2",
        ),
    ],
)
def test_changefeed_waits_for_the_first_thing_in_its_way(shown: dict[str, Any], reason: str) -> None:
    (wait,) = waits_of(overview(shown))
    assert (wait["id"], wait["waits_for"]) == ("cf", reason)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (feed(sink="iceberg", pause_s=60.0, checkpoint_lag_s=46.0), ""),
        (feed(sink="iceberg", pause_s=60.0, checkpoint_lag_s=81.0), "its sorter, which is behind the raw log: 80 s"),
        (feed(sink="s3", pause_s=60.0, checkpoint_lag_s=46.0, sorter_lag_s=2.0), ""),
        (
            feed(sink="s3", pause_s=60.0, checkpoint_lag_s=46.0, sorter_lag_s=44.0),
            "its sorter, which is behind the raw log: 43 s",
        ),
        (
            feed(sink="s3", pause_s=60.0, checkpoint_lag_s=99.0, sorter_lag_s=2.0),
            "its destination, which is behind the topic: 97 s",
        ),
    ],
)
def test_sink_that_writes_by_an_interval_waits_for_nobody_within_it(shown: dict[str, Any], reason: str) -> None:
    assert [wait["waits_for"] for wait in waits_of(overview(shown))] == ([reason] if reason else [])


def test_changefeed_in_time_and_one_that_has_finished_wait_for_nobody() -> None:
    assert waits_of(overview(feed(), feed(state="finished", checkpoint_lag_s=900.0))) == []


def test_upstream_that_stands_waits_for_what_it_says() -> None:
    held = [{"tables": [7, 8], "names": ["shop.audit", ""], "ts": 5}]
    waits = waits_of(overview(held=held, stalls=["table 7: no leader"], error={"code": "c", "message": "m"}))
    assert [(wait["who"], wait["waits_for"]) for wait in waits] == [
        ("upstream u", "c m"),
        ("table shop.audit", "its upstream: it is held at a ts of its own"),
        ("table 8", "its upstream: it is held at a ts of its own"),
        ("upstream u", "table 7: no leader"),
    ]


def test_bus_without_an_owner_or_a_capture_waits_for_it() -> None:
    seen = overview(feed(), silent_s=9.9)
    no_owner = {**seen, "captures": [{"is_owner": False}, {"is_owner": False}]}
    assert waits_of(no_owner) == [{"who": "the bus", "waits_for": "an owner: no capture is one"}]
    assert waits_of({**seen, "captures": []}) == [{"who": "the bus", "waits_for": "a capture: none lives"}]


def test_upstream_whose_owner_is_silent_waits_for_it() -> None:
    (wait,) = waits_of(overview(feed(), silent_s=599.6))
    assert wait == {"who": "upstream u", "waits_for": "its owner, which has said nothing for 600 s"}


CONFIG: dict[str, Any] = {
    "sync-point-interval": "20m",
    "filter": {"event-filters": [{"matcher": ["a.*"], "ignore-event": ["insert"]}]},
    "sink": {"kafka-config": {"sasl-password": "hidden"}},
}


def test_settings_are_rows_with_their_defaults_and_no_secret() -> None:
    rows = {row["key"]: row for row in setting_rows(CONFIG, "kafka://h:1/t?protocol=canal-json&password=hidden")}
    assert "hidden" not in str(rows)
    assert (rows["sync-point-interval"]["value"], rows["sync-point-interval"]["default"]) == ("20m", "10m")
    assert rows["filter.event-filters[0].matcher"]["value"] == "a.*"
    assert (rows["?protocol"]["origin"], rows["?password"]["value"]) == ("URI", "***")
    assert not rows["case-sensitive"]["differs"]


def test_settings_in_the_file_that_are_the_default_do_not_differ() -> None:
    rows = {row["key"]: row for row in setting_rows({"sync-point-interval": "600s"}, "kafka://h:1/t")}
    assert (rows["sync-point-interval"]["differs"], rows["sync-point-interval"]["origin"]) == (False, "file")


def test_readable_file_has_masks_and_durations_that_the_api_takes_back() -> None:
    shown: dict[str, Any] = readable(CONFIG)
    assert shown["sync-point-interval"] == "20m"
    assert shown["sink"]["kafka-config"]["sasl-password"] == "***"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("277h46m41s", "1000001s"),
        ("1234567ms", "1234567ms"),
        ("1500ms", "1500ms"),
        ("1m0.000001s", "60000001us"),
        ("1h0.000000001s", "3600000000001ns"),
        ("48h", "48h"),
        ("90s", "90s"),
        ("0s", "0s"),
    ],
)
def test_duration_is_shown_with_every_digit_as_the_file_takes_it(written: str, shown: str) -> None:
    assert readable({"sync-point-retention": written}) == {"sync-point-retention": shown}
    assert round(parse_duration(shown) * 1e9) == round(parse_duration(written) * 1e9)
