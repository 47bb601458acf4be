"""Reading a recording, and the ceiling that keeps resolved ts honest while it is replayed."""

import json
import time
from pathlib import Path

import psutil
import pytest

from producers.region_server.core.replay.recorded import SplitRegions, parse_recording
from producers.region_server.core.store.commands import Prewrite
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer, wall_clock_ms
from schemas.errors import ConfigError, CorruptDataError, InvariantBrokenError
from schemas.ids import compose_ts, physical_ms


def line(seq: int, kind: str, **fields: object) -> str:
    return json.dumps({"seq": seq, "kind": kind, **fields})


def prewrite(seq: int, start_ts: int, **fields: object) -> str:
    muts = [{"op": "Insert", "key": "6b", "value": "76"}, {"op": "CheckNotExists", "key": "6c"}]
    return line(seq, "prewrite", start_ts=start_ts, primary="6b", muts=muts, **fields)


def test_ceiling_stays_below_every_commit_that_is_not_locked_yet() -> None:
    recording = parse_recording(
        [
            line(1, "sql_begin"),
            prewrite(2, 10),
            prewrite(3, 15, one_pc_commit_ts=20),
            line(5, "split_region", split_keys=["61", "62"]),
            prewrite(6, 12),
            line(7, "commit", start_ts=10, commit_ts=14, keys=["6b"]),
            line(8, "commit", start_ts=12, commit_ts=30, keys=["6b"]),
            prewrite(9, 40),
            line(10, "rollback", start_ts=40, keys=["6b"]),
            line(11, "end", commit_ts=50),
        ]
    )
    # Before the first prewrite its commit at 14 bounds; then 1PC's 20; then 30; what is rolled back bounds nothing.
    assert [step.ceiling for step in recording.steps] == [13, 19, 29, 29, 51, 51, 51, 51]
    assert (recording.bootstrap, recording.bootstrap_ts, recording.end_ts, recording.records) == (0, 13, 51, 10)
    assert recording.steps[2].work == SplitRegions((b"a", b"b"))
    first = recording.steps[0].work
    assert isinstance(first, Prewrite)
    assert [mutation.op for mutation in first.mutations] == ["put"]


def test_refused_requests_and_markers_have_no_effect() -> None:
    lines = [
        prewrite(1, 5),
        line(2, "prewrite_failed", start_ts=6),
        line(3, "sql_end", commit_ts=7),
        line(4, "heartbeat"),
    ]
    assert len(parse_recording(lines).steps) == 1


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        line(2, "prewrite", start_ts=1),
        line(2, "teleport", start_ts=1),
        line(1, "sql_begin"),
        line(2, "commit"),
    ],
)
def test_record_that_does_not_parse_is_an_error_with_its_line(bad: str) -> None:
    with pytest.raises(CorruptDataError, match="line=2"):
        parse_recording([line(1, "sql_begin"), bad])


def test_recording_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recording not found"):
        read_recording(tmp_path)


def test_region_server_that_never_starts_opens_nothing() -> None:
    this = psutil.Process()
    before = this.num_fds()
    server = RegionServer()
    assert this.num_fds() == before
    server.stop()


def test_replay_made_after_a_later_ts_was_given_out_is_refused() -> None:
    recording = parse_recording([prewrite(1, 10), line(2, "commit", start_ts=10, commit_ts=14, keys=["6b"])])
    server = RegionServer()
    replay = Replay(server, recording)
    assert replay.progress.replayed == 2  # all of it is bootstrap, and it is there before the server starts
    assert server.oracle.tso() == recording.bootstrap_ts == 15
    with RegionServer() as late:
        late.tso()
        with pytest.raises(InvariantBrokenError, match="before the replay"):
            late.call(Replay(late, recording).load())


def test_replay_that_ends_with_open_locks_resolves_them_by_their_primary() -> None:
    second = [{"op": "Put", "key": "6c", "value": "77"}]
    orphan = [{"op": "Put", "key": "6d", "value": "78"}]
    recording = parse_recording(
        [
            line(1, "sql_begin"),
            prewrite(2, 10),
            line(3, "prewrite", start_ts=10, primary="6b", muts=second),
            line(4, "prewrite", start_ts=11, primary="6d", muts=orphan),
            line(5, "commit", start_ts=10, commit_ts=14, keys=["6b"]),
        ]
    )
    server = RegionServer()
    replay = Replay(server, recording)
    with server:
        server.call(replay.run())
        assert server.tso() > recording.end_ts
    (region,) = server.store.regions
    assert not region.data.locks
    assert {key: write.commit_ts for key, write in region.data.writes.items()} == {b"k": 14, b"l": 14}


def test_replay_until_a_part_stands_there_until_it_is_run_again() -> None:
    lines = [line(1, "sql_begin")]
    for ts in range(10, 60, 10):
        lines += [prewrite(ts, ts), line(ts + 5, "commit", start_ts=ts, commit_ts=ts + 5, keys=["6b"])]
    server = RegionServer()
    replay = Replay(server, parse_recording(lines))
    with server:
        server.call(replay.run(until=0.5))
        assert (replay.progress.replayed, replay.progress.total) == (5, 10)
        assert 25 <= server.tso() < 45, "below what is committed later and has no lock yet"
        server.call(replay.run())
        assert replay.progress.finished
        assert server.tso() > 55


def test_clock_after_a_recording_from_later_than_now_runs_on_from_its_end() -> None:
    ten_years_ms = 10 * 365 * 86_400_000
    start_ts = compose_ts(wall_clock_ms() + ten_years_ms)
    lines = [line(1, "sql_begin"), prewrite(2, start_ts), line(3, "rollback", start_ts=start_ts, keys=["6b"])]
    server = RegionServer()
    replay = Replay(server, parse_recording(lines))
    with server:
        server.call(replay.run())
        before = physical_ms(server.tso())
        time.sleep(0.05)
        assert before >= physical_ms(start_ts)
        assert 50 <= physical_ms(server.tso()) - before < 5_000
