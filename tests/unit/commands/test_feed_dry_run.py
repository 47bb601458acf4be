"""What counts as progress of a recorded feed, and what its server permits."""

from typing import Any

import grpc.aio
import pytest

from compose.foresight.feed_dry_run import FeedCollector
from producers.pull.core.match.change_columns import Change
from producers.region_server.core.replay.recording import read_feed
from producers.region_server.replay.player import FeedReplayServer
from schemas.changes import Op
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.unit.region_server.test_feed_replay import recorded_lines

SPAN = TableSpan(TableId(1), b"a", b"b")


def change(commit_ts: int) -> Change:
    return (Ts(commit_ts), Ts(commit_ts - 1), Op.PUT, b"a1", b"v", b"", 0)


def test_rows_that_a_reopened_stream_repeats_are_no_progress() -> None:
    collector = FeedCollector()
    collector.rows(SPAN, RegionId(2), [change(7), change(9)], may_repeat=False)
    collector.resolved(SPAN, Ts(9))
    moved = collector.moves
    for _ in range(3):
        collector.rows(SPAN, RegionId(2), [change(7), change(9)], may_repeat=True)
        collector.resolved(SPAN, Ts(9))
    assert (collector.moves, collector.repeats) == (moved, 6)
    collector.rows(SPAN, RegionId(2), [change(9), change(11)], may_repeat=True)
    assert collector.moves > moved
    moved = collector.moves
    collector.resolved(SPAN, Ts(11))
    assert collector.moves > moved


def test_replaying_servers_permit_pings_without_streams_as_tikv_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, int]] = []
    real = grpc.aio.server

    def server(*, options: Any) -> Any:
        made.append(dict(options))
        return real(options=options)

    monkeypatch.setattr(grpc.aio, "server", server)
    with FeedReplayServer(read_feed(recorded_lines())):
        assert len(made) == 3  # two stores and PD
    for options in made:
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.http2.max_ping_strikes"] == 0
        # A client of ours pings every 10 s; by default a server wants 5 minutes between two.
        assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 10_000
