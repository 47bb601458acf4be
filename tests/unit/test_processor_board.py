"""What users see of a changefeed whose destination processors write, and when a processor runs."""

from dataclasses import replace

import pytest

from consumers.control.changefeeds.processor_nodes import AppliedNode, decode_applied, encode_applied, with_applied
from consumers.processors.board import Wanted
from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState, ChangefeedStatus, SorterFailure
from schemas.sink.topic import life_of

INFO = ChangefeedInfo(
    changefeed_id="a", upstream=UpstreamId("u"), sink_uri="mysql://h/", start_ts=Ts(10), create_time="now"
)
STATUS = ChangefeedStatus(state="normal", checkpoint_ts=Ts(50), resolved_ts=Ts(60))
APPLIED = AppliedNode(life=life_of(INFO), checkpoint_ts=Ts(40), rows_total=7, ddl_total=1)


def test_applied_node_comes_back_as_it_was() -> None:
    assert decode_applied(encode_applied(APPLIED)) == APPLIED
    with pytest.raises(CorruptDataError):
        decode_applied(b"{}")


def test_status_shows_what_is_applied_as_checkpoint_and_what_is_sorted_as_resolved() -> None:
    shown = with_applied(INFO, STATUS, APPLIED)
    assert (shown.checkpoint_ts, shown.resolved_ts, shown.rows_total) == (40, 50, 7)


def test_status_of_another_life_begins_at_the_start_ts() -> None:
    resumed = replace(INFO, start_ts=Ts(20))
    assert with_applied(resumed, STATUS, APPLIED).checkpoint_ts == 20
    assert with_applied(INFO, STATUS, None).checkpoint_ts == 10


def test_status_is_finished_only_when_all_is_applied() -> None:
    info, status = replace(INFO, target_ts=Ts(50)), replace(STATUS, state="finished")
    assert with_applied(info, status, APPLIED).state == "normal"
    assert with_applied(info, status, replace(APPLIED, checkpoint_ts=Ts(50))).state == "finished"


@pytest.mark.parametrize(
    ("state", "applied_ts", "runs"),
    [
        ("normal", 40, True),
        ("warning", 40, True),
        ("failed", 40, False),
        ("finished", 40, True),
        ("finished", 50, False),
    ],
)
def test_processor_runs_while_a_sorter_does_and_until_all_is_applied(
    state: ChangefeedState, applied_ts: int, runs: bool
) -> None:
    info = replace(INFO, target_ts=Ts(50))
    status, applied = replace(STATUS, state=state), replace(APPLIED, checkpoint_ts=Ts(applied_ts))
    assert Wanted(info, (1, 1), status, applied).runs is runs


def test_processor_does_not_run_while_a_failure_is_unjudged() -> None:
    failure = SorterFailure(epoch=INFO.epoch, code="apply.row_refused", message="", time="", may_heal=False)
    assert not Wanted(INFO, (1, 1), replace(STATUS, failure=failure), APPLIED).runs
    assert Wanted(replace(INFO, epoch=1), (1, 1), replace(STATUS, failure=failure), APPLIED).runs
    assert not Wanted(replace(INFO, desired_state="stopped"), (1, 1), STATUS, APPLIED).runs
