"""What an owner's page of metrics says of stages and sinks of changefeeds, by TiCDC's names."""

from collections.abc import Sequence

import pytest
from prometheus_client.core import Metric

from consumers.control.changefeeds.stored_feed import StoredFeed
from consumers.control.owner.figures.owner_figures import Rule, SchedulerFigures, rule_metrics
from schemas.ids import CaptureId, Ts, UpstreamId, compose_ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState, ChangefeedStatus
from schemas.nodes.prologue import Prologue, PrologueFailure

NOW_S = 1_700_000_100.0
PUBLISHED, SORTED, RESOLVED, APPLIED = (compose_ts(1_700_000_000_000 + 1000 * s, 0) for s in (99, 97, 95, 90))
RULE = Rule(
    upstream=UpstreamId("u"),
    owner_s=1.0,
    resolved_ts=PUBLISHED,
    held_ddl=0,
    held_tables=0,
    scheduling=SchedulerFigures(tables=7, capture_spans={CaptureId("a"): 8}, states={}, tasks={}, running=0),
)


def info(sink_uri: str, *, stopped: bool = False) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="cf",
        namespace="default",
        upstream=UpstreamId("u"),
        sink_uri=sink_uri,
        config={},
        start_ts=Ts(1),
        target_ts=None,
        create_time="",
        creator_version="",
        desired_state="stopped" if stopped else "normal",
    )


def status(checkpoint_ts: Ts, state: ChangefeedState = "normal") -> ChangefeedStatus:
    return ChangefeedStatus(state=state, checkpoint_ts=checkpoint_ts, resolved_ts=RESOLVED)


def samples(feeds: Sequence[StoredFeed], name: str, label: str) -> dict[str, float]:
    """Return the values of a metric by one of its labels."""
    families: list[Metric] = list(rule_metrics(RULE, feeds, NOW_S))
    mine = [sample for family in families for sample in family.samples if sample.name == name]
    assert len({sample.labels[label] for sample in mine}) == len(mine)
    return {sample.labels[label]: sample.value for sample in mine}


def test_stages_of_a_database_are_apart_from_raw_log_to_sink() -> None:
    feeds = [StoredFeed(info("mysql://u:p@h/"), status(APPLIED), sorter_status=status(SORTED))]
    name = "ticdc_scheduler_slow_table_stage_checkpoint_ts"
    assert samples(feeds, f"{name}_lag", "stage") == {"puller-egress": 1.0, "sorter-egress": 3.0, "sink": 10.0}
    at_ms = {"puller-egress": 1_700_000_099_000, "sorter-egress": 1_700_000_097_000}
    assert samples(feeds, name, "stage") == at_ms | {"sink": 1_700_000_090_000}
    resolved = samples(feeds, "ticdc_scheduler_slow_table_stage_resolved_ts_lag", "stage")
    assert resolved == {"puller-egress": 1.0, "sorter-egress": 3.0, "sink": 5.0}


def test_stage_of_the_sorter_is_not_said_before_it_has_begun_and_no_lag_of_one_that_was_stopped() -> None:
    name = "ticdc_scheduler_slow_table_stage_checkpoint_ts"
    assert set(samples([StoredFeed(info("kafka://h/t"), None)], name, "stage")) == {"puller-egress", "sink"}
    stopped = [StoredFeed(info("kafka://h/t", stopped=True), status(APPLIED, "stopped"))]
    assert samples(stopped, f"{name}_lag", "stage") == {}


@pytest.mark.parametrize(
    ("sink_uri", "kind"),
    [
        ("kafka+ssl://h/t", "kafka"),
        ("MySQL+ssl://u:secret@h/", "mysql/tidb"),
        ("tidb://u@h/", "tidb"),
        ("gs://b/p", "gcs"),
        ("azure://c/p", "azblob"),
        ("iceberg:///?warehouse=file:///w", "iceberg"),
        ("u:secret@h", "unknown"),
        ("u:secret://h", "unknown"),
    ],
)
def test_downstream_type_is_ticdcs_word_and_nothing_else_of_the_uri(sink_uri: str, kind: str) -> None:
    feeds = [StoredFeed(info(sink_uri), None)]
    assert samples(feeds, "ticdc_owner_changefeed_downstream_info", "downstream_type") == {kind: 1}


def test_tables_have_the_newer_name_too() -> None:
    assert samples([], "ticdc_scheduler_table_count", "upstream") == {"u": 7}


@pytest.mark.parametrize(
    ("attempt", "is_complete", "is_failed", "state"),
    [(0, False, False, 0), (2, False, False, 1), (2, True, False, 2), (2, False, True, 3)],
)
def test_prologue_is_shown_until_the_sorter_is_past_it(
    attempt: int, is_complete: bool, is_failed: bool, state: int
) -> None:
    prologue = Prologue(
        life="c.00f0e1d2c3b4a596",
        start_ts=APPLIED,
        end_ts=RESOLVED,
        attempt=attempt,
        is_complete=is_complete,
        failure=PrologueFailure(epoch=1, code="producer.history_gone", message="gone") if is_failed else None,
    )
    shown = {"state": state, "attempt": attempt, "seconds": 5.0}
    feeds = [StoredFeed(info("kafka://h:1/t"), status(APPLIED), prologue=prologue)]
    for name, value in shown.items():
        assert samples(feeds, f"tidebus_prologue_{name}", "changefeed") == {"cf": value}
    past = [StoredFeed(info("mysql://u:p@h/"), status(APPLIED), sorter_status=status(SORTED), prologue=prologue)]
    for name in shown:
        assert samples(past, f"tidebus_prologue_{name}", "changefeed") == {}
