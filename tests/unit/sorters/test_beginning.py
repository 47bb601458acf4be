"""Where a sorter's run begins: an epoch that was begun runs again as it was, as long as the checkpoint is within it."""

import json

import pytest

from schemas.ids import Ts
from sorters.core.cut.beginning import Beginning, BegunEpoch, decode_begun, encode_begun, left_off

TS_AT = {10: Ts(100), 20: Ts(200)}
"""Resolved ts of a reader who has read up to each frontier offset."""
EPOCH = BegunEpoch("f", Ts(100), 10, 20)


def begin(begun: BegunEpoch | None, checkpoint_ts: int) -> Beginning | None:
    return left_off(begun, "f", Ts(checkpoint_ts), TS_AT.__getitem__)


@pytest.mark.parametrize("checkpoint_ts", [100, 150, 200])
def test_run_whose_checkpoint_is_within_the_begun_epoch_repeats_that(checkpoint_ts: int) -> None:
    assert begin(EPOCH, checkpoint_ts) == Beginning(Ts(100), 10, 20)


@pytest.mark.parametrize("checkpoint_ts", [99, 201])
def test_run_whose_checkpoint_was_set_elsewhere_begins_anew(checkpoint_ts: int) -> None:
    assert begin(EPOCH, checkpoint_ts) is None


def test_run_whose_first_epoch_began_above_its_first_record_fits_from_there_on() -> None:
    first = BegunEpoch("f", Ts(150), 10, 20)
    assert begin(first, 150) == Beginning(Ts(150), 10, 20)
    assert begin(first, 149) is None


def test_run_whose_epoch_began_while_a_table_was_held_repeats_that() -> None:
    # The upstream is resolved up to 100 where the epoch starts, and the changefeed, one of whose tables lags, up to 40.
    held = BegunEpoch("f", Ts(40), 10, 20)
    assert begin(held, 40) == Beginning(Ts(40), 10, 20)
    assert begin(held, 39) is None


def test_run_that_follows_none_or_one_of_another_upstream_begins_anew() -> None:
    assert begin(None, 150) is None
    assert begin(BegunEpoch("other", Ts(100), 10, 20), 150) is None


def test_begun_epoch_that_is_written_down_reads_back() -> None:
    assert decode_begun(encode_begun(EPOCH)) == EPOCH


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"null",
        encode_begun(EPOCH)[:-5],
        json.dumps({"frontier_topic": "f", "origin_ts": 100, "frontier_offset": 10, "frontier_end": None}).encode(),
    ],
    ids=["none", "empty", "half", "list", "null", "cut", "a query of an older version"],
)
def test_begun_epoch_that_does_not_read_is_none(content: bytes | None) -> None:
    assert decode_begun(content) is None
