"""A prologue's node: its steps, which log a changefeed runs, and what is no such node."""

from dataclasses import replace

import pytest

from schemas.errors import CorruptDataError, InvariantBrokenError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.prologue import (
    Prologue,
    PrologueFailure,
    begun,
    completed,
    decode_prologue,
    encode_prologue,
    is_over,
    log_at,
    log_of_topic,
)
from schemas.rawlog.topics import raw_topics

LIFE = "c-1.00f0e1d2c3b4a596"
WANTED = Prologue(life=LIFE, start_ts=Ts(10), end_ts=Ts(50))
FAILED = replace(
    WANTED,
    attempt=2,
    failure=PrologueFailure(epoch=3, code="producer.history_gone", message="gone", failed_at_s=1_700_000_000),
)
UPSTREAM = UpstreamId("u")


@pytest.mark.parametrize("prologue", [WANTED, begun(WANTED), completed(begun(WANTED), 1), FAILED])
def test_a_node_says_what_was_written(prologue: Prologue) -> None:
    assert decode_prologue(encode_prologue(prologue)) == prologue


def test_a_failure_of_a_version_that_notes_no_time_is_read() -> None:
    node = encode_prologue(FAILED)
    old = node.replace(b', "failed_at_s": 1700000000', b"")
    assert old != node
    read = decode_prologue(old).failure
    assert read == PrologueFailure(epoch=3, code="producer.history_gone", message="gone")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"start_ts": 10', b'"start_ts": 50'),
        (b'"start_ts": 10', b'"start_ts": -1'),
        (b'"end_ts": 50', b'"end_ts": "50"'),
        (b'"is_complete": false', b'"is_complete": true'),
        (b'"is_complete": false', b'"is_complete": 0'),
        (b'"failure": null', b'"failure": 1'),
        (b'"failure": null', b'"failure": {"epoch": 1}'),
        (b'"attempt": 0', b'"attempt": 4294967296'),
        (LIFE.encode(), b"u.region-events"),
        (LIFE.encode(), b"../c.00f0e1d2c3b4a596"),
    ],
)
def test_what_cannot_be_a_prologue_is_refused(old: bytes, new: bytes) -> None:
    node = encode_prologue(WANTED)
    assert old in node
    with pytest.raises(CorruptDataError):
        decode_prologue(node.replace(old, new))


def test_each_attempt_has_topics_of_its_own_and_one_hold_on_history() -> None:
    first, second = begun(WANTED), begun(begun(WANTED))
    topics = {topic for prologue in (first, second) for topic in (raw_topics(prologue.log).ddl,)}
    assert topics == {f"tidebus.prologue.{LIFE}.1.ddl", f"tidebus.prologue.{LIFE}.2.ddl"}
    assert first.holder == second.holder == f"prologue.{LIFE}"


def test_a_late_attempt_completes_nothing_and_a_complete_prologue_is_not_begun_again() -> None:
    with pytest.raises(InvariantBrokenError):
        completed(begun(begun(WANTED)), 1)
    with pytest.raises(InvariantBrokenError):
        begun(completed(begun(WANTED), 1))
    assert begun(FAILED).failure is None


@pytest.mark.parametrize(
    ("prologue", "checkpoint_ts", "log"),
    [
        (None, 10, "u"),
        (WANTED, 10, None),
        (begun(WANTED), 49, None),
        (completed(begun(WANTED), 1), 10, f"prologue.{LIFE}.1"),
        (completed(begun(WANTED), 1), 49, f"prologue.{LIFE}.1"),
        (completed(begun(WANTED), 1), 50, "u"),
        (begun(WANTED), 50, "u"),
    ],
)
def test_the_prologue_runs_below_its_end_and_the_upstreams_log_from_there(
    prologue: Prologue | None, checkpoint_ts: int, log: str | None
) -> None:
    assert log_at(prologue, UPSTREAM, Ts(checkpoint_ts)) == log


def test_a_prologue_is_over_when_the_upstreams_log_has_brought_something() -> None:
    assert [is_over(WANTED, Ts(ts)) for ts in (10, 50, 51)] == [False, False, True]


@pytest.mark.parametrize(
    ("topic", "log"),
    [
        (f"tidebus.prologue.{LIFE}.12.region-events", f"prologue.{LIFE}.12"),
        (f"tidebus.prologue.{LIFE}.1.frontier", f"prologue.{LIFE}.1"),
        ("tidebus.prologue.c-2.00f0e1d2c3b4a596.1.ddl", None),
        ("tidebus.prologue.c-1.u.1.ddl", None),
        ("tidebus.prologue.region-events", None),
        (f"tidebus.prologue.{LIFE}.1.ddl.mine", None),
        (f"mine.tidebus.prologue.{LIFE}.1.ddl", None),
    ],
)
def test_only_topics_of_this_clusters_prologues_are_known_as_such(topic: str, log: str | None) -> None:
    assert log_of_topic(topic, "c-1") == log
