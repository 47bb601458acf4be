"""As what a sorter runs a changefeed that starts before the raw log began."""

from dataclasses import dataclass, replace

import pytest

from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.nodes.prologue import Prologue, PrologueFailure
from sorters.run.first_log import PrologueFailedError, runnable

WANTED = Prologue(life="c.00f0e1d2c3b4a596", start_ts=Ts(10), end_ts=Ts(50), attempt=2)
COMPLETE = replace(WANTED, is_complete=True)
INFO = ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri="kafka://h:1/t", start_ts=Ts(10), epoch=4)


@dataclass
class Board:
    node: Prologue | None

    def prologue(self) -> Prologue | None:
        return self.node


def test_without_a_prologue_it_runs_as_it_is() -> None:
    assert runnable(Board(None), INFO, Ts(10)) is INFO


def test_it_waits_until_the_prologue_is_complete() -> None:
    assert runnable(Board(WANTED), INFO, Ts(10)) is None


@pytest.mark.parametrize(("target_ts", "ends"), [(None, 50), (99, 50), (50, 50), (30, 30)])
def test_it_runs_the_prologue_up_to_its_end_or_its_own(target_ts: int | None, ends: int) -> None:
    info = replace(INFO, target_ts=None if target_ts is None else Ts(target_ts))
    runs_as = runnable(Board(COMPLETE), info, Ts(20))
    assert runs_as == replace(info, upstream=UpstreamId("prologue.c.00f0e1d2c3b4a596.2"), target_ts=Ts(ends))


def test_from_the_end_on_it_runs_the_upstreams_log() -> None:
    assert runnable(Board(COMPLETE), INFO, Ts(50)) is INFO


def test_it_fails_with_what_the_owner_says_under_its_epoch_and_waits_under_a_later_one() -> None:
    failure = PrologueFailure(epoch=4, code="producer.history_gone", message="collected")
    board = Board(replace(WANTED, failure=failure))
    with pytest.raises(PrologueFailedError, match="collected") as caught:
        runnable(board, INFO, Ts(10))
    assert caught.value.fields == {"reason": "producer.history_gone", "start_ts": 10, "end_ts": 50}
    assert runnable(board, replace(INFO, epoch=5), Ts(10)) is None
