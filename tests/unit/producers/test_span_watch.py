"""The words under which spans that stand still are counted."""

import grpc

from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.support.upstream.scripted_stores import FeedRig, initialized, resolved

OTHER = TableSpan.of_table(TableId(46))


def kinds(rig: FeedRig) -> list[str]:
    spans = rig.feed.status()
    assert all(bool(span.kind) == bool(span.reason) for span in spans)
    return [span.kind for span in spans]


def test_span_status_from_the_scan_to_a_store_that_is_away_has_its_word() -> None:
    rig = FeedRig(silence_s=600.0)
    assert kinds(rig) == ["scanning"]
    rig.stream.say(initialized(rig.stream.registers[0]))
    rig.stream.say(resolved(200, rig.stream.registers[0]))
    rig.run(1.0)
    assert kinds(rig) == [""]
    rig.run(25.0)
    assert kinds(rig) == ["still"]
    with rig.feed.lock:
        rig.feed.subscriptions()[0].lock_notes[RegionId(2)] = (Ts(201), "a lock of a transaction that lives")
    assert kinds(rig) == ["lock"]
    rig.stream.say(resolved(201, rig.stream.registers[0]))
    rig.run(0.5)
    assert kinds(rig) == [""], "what the lock watch had found is over"
    rig.stream.end(grpc.StatusCode.UNAVAILABLE, "away")
    rig.run()
    assert kinds(rig) == ["unregistered"]


def test_span_status_when_the_store_runs_enough_scans_says_that_it_waits() -> None:
    rig = FeedRig(scans_per_store_max=1)
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run(0.5)
    assert kinds(rig) == ["scanning", "scan_waiting"]
