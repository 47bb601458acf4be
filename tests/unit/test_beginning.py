"""Where a sorter's run begins: an epoch that was begun runs again as it was, as long as the checkpoint is within it."""

import pytest

from schemas.ids import Ts
from sorters.core.beginning import Beginning, BegunEpoch, Origin, left_off

TS_AT = {10: Ts(100), 20: Ts(200), 30: Ts(300)}
"""Resolved ts of a reader who has read up to each frontier offset."""


def begin(origin: Origin, epoch: BegunEpoch | None, checkpoint_ts: int) -> Beginning | None:
    return left_off(origin, epoch, Ts(checkpoint_ts), TS_AT.__getitem__)


@pytest.mark.parametrize("checkpoint_ts", [100, 150, 200])
def test_run_after_an_epoch_of_the_driver_repeats_it(checkpoint_ts: int) -> None:
    origin = Origin("f", Ts(100), 10, 20)
    assert begin(origin, BegunEpoch(10, 20, False), checkpoint_ts) == Beginning(Ts(100), 10, 20)


@pytest.mark.parametrize("checkpoint_ts", [99, 201])
def test_run_whose_checkpoint_was_set_elsewhere_begins_anew(checkpoint_ts: int) -> None:
    assert begin(Origin("f", Ts(100), 10, 20), BegunEpoch(10, 20, False), checkpoint_ts) is None


def test_run_whose_first_epoch_began_above_its_first_record_fits_from_there_on() -> None:
    origin = Origin("f", Ts(150), 10, 20)
    assert begin(origin, BegunEpoch(10, 20, False), 150) == Beginning(Ts(150), 10, 20)
    assert begin(origin, BegunEpoch(10, 20, False), 149) is None


def test_run_after_a_query_repeats_its_last_epoch_unless_that_was_committed() -> None:
    origin = Origin("f", Ts(100), 10)
    assert begin(origin, BegunEpoch(20, 30, False), 250) == Beginning(Ts(100), 20, 30)
    assert begin(origin, BegunEpoch(20, 30, True), 300) == Beginning(Ts(100), 30)
    assert begin(origin, BegunEpoch(20, 30, True), 250) is None, "rows above it would never be written"


def test_run_after_a_query_that_has_begun_nothing_begins_where_that_did() -> None:
    assert begin(Origin("f", Ts(100), 10), None, 100) == Beginning(Ts(100), 10)
    assert begin(Origin("f", Ts(100), 10), None, 90) is None
