"""The example by which TiKV's CDC module is explained: three transactions, three resolved ts, one commit too early.

    transaction  keys    start_ts  commit_ts
    first        k1, k2  1         2
    second       k1      3         6          its COMMIT comes before its PREWRITE
    third        k2      7         -          has only a PREWRITE; it is still under way

A COMMIT can come first while the incremental scan runs: here the region's leader has moved, the region is registered
again at store 2, the scan's snapshot holds the second transaction's lock, and the commit overtakes the scan.
"""

from schemas.ids import Ts
from schemas.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2
from schemas.tidb.keys import row_key
from tests.support.upstream.scripted_stores import SPAN, TABLE, FeedRig, Row, event, region_error, resolved

KEYS = {"k1": row_key(TABLE, 1), "k2": row_key(TABLE, 2)}
NAMES = {key: name for name, key in KEYS.items()}

FIRST_STORE = """
    INITIALIZED
    PREWRITE k1 start=1 value=a
    PREWRITE k2 start=1 value=b
    COMMIT   k1 start=1 commit=2
    COMMIT   k2 start=1 commit=2
    RESOLVED 2
"""
SECOND_STORE_BEFORE_THE_SCAN = """
    COMMIT   k1 start=3 commit=6
    PREWRITE k2 start=7 value=d old=b
    RESOLVED 4
"""
SECOND_STORE_SCAN = """
    PREWRITE k1 start=3 value=c old=a
    INITIALIZED
    RESOLVED 7
"""
FIRST_TRANSACTION = [(2, 1, "k1", "a", ""), (2, 1, "k2", "b", "")]
SECOND_TRANSACTION = [(6, 3, "k1", "c", "a")]


def test_feed_of_three_transactions_restores_each_one_when_a_resolved_ts_covers_it() -> None:
    rig = FeedRig(subscribe=False)
    rig.feed.subscribe(SPAN, Ts(0))
    rig.run()

    say(rig, FIRST_STORE)
    assert rig.sink.resolved_ts == 2
    assert restored(rig) == FIRST_TRANSACTION

    move_leader_to_store_2(rig)
    assert rig.streams[-1].registers[-1].checkpoint_ts == 2

    say(rig, SECOND_STORE_BEFORE_THE_SCAN)
    # 4 is below the second transaction's commit_ts. And it says nothing yet: its region's scan is not complete.
    assert rig.sink.resolved_ts == 2
    assert restored(rig) == FIRST_TRANSACTION

    say(rig, SECOND_STORE_SCAN)
    # 7 is the third transaction's start_ts: whatever its commit_ts will be, it will be greater.
    assert rig.sink.resolved_ts == 7
    assert restored(rig) == FIRST_TRANSACTION + SECOND_TRANSACTION
    assert not rig.fatal


def say(rig: FeedRig, script: str) -> None:
    """Let the store send the lines of a script, each in a message of its own."""
    request = rig.streams[-1].registers[-1]
    for line in script.strip().splitlines():
        kind, *words = line.split()
        if kind == "RESOLVED":
            rig.streams[-1].say(resolved(int(words[0]), request))
        else:
            rig.streams[-1].say(event(request, row(kind, words)))
        rig.run()


def row(kind: str, words: list[str]) -> Row:
    if kind == "INITIALIZED":
        return Row(type=cdcpb_pb2.Event.INITIALIZED)
    said = dict(word.split("=") for word in words[1:])
    return Row(
        type=cdcpb_pb2.Event.PREWRITE if kind == "PREWRITE" else cdcpb_pb2.Event.COMMIT,
        op_type=Row.PUT,
        key=KEYS[words[0]],
        start_ts=int(said["start"]),
        commit_ts=int(said.get("commit", 0)),
        value=said.get("value", "").encode(),
        old_value=said.get("old", "").encode(),
    )


def move_leader_to_store_2(rig: FeedRig) -> None:
    """The registration ends with an error that names the new leader; the client registers there."""
    leader = metapb_pb2.Peer(id=20, store_id=2)
    request = rig.streams[-1].registers[-1]
    error = cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=request.region_id, leader=leader))
    rig.pd.set((2, b"", b"", 5, 2))
    rig.streams[-1].say(region_error(request, error))
    rig.run(1.0)


def restored(rig: FeedRig) -> list[tuple[int, int, str, str, str]]:
    """Return the changes that the resolved ts covers, in commit order."""
    return sorted(
        (commit_ts, start_ts, NAMES[key], value.decode(), old_value.decode())
        for commit_ts, start_ts, _, key, value, old_value, _ in rig.sink.changes
        if commit_ts <= rig.sink.resolved_ts
    )
