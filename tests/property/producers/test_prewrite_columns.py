"""A transaction that waits as columns, or no longer, comes out as if each row had come in an event of its own."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.match.change_columns import Change, ChangeColumns
from producers.pull.core.match.log_rows import COLUMNS_MIN, LogRows
from producers.pull.core.match.matcher import COMMIT, INITIALIZED, PREWRITE, ROLLBACK, Matcher
from producers.pull.core.regions.feed_message import FeedMessage
from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2
from tests.support.upstream.log_rows import DELETE, PUT, Row

SEEDS = st.integers(0, 2**32)
START_TS, COMMIT_TS = 100, 110


def new_matcher() -> Matcher:
    matcher = Matcher(RegionId(1), b"k", b"l", start_ts=Ts(20), checkpoint_ts=Ts(20))
    assert matcher.feed([Row(INITIALIZED, op_type=0)]) == []
    return matcher


def by_wire(rows: list[Row]) -> LogRows:
    entries = cdcpb_pb2.Event.Entries(entries=[cdcpb_pb2.Event.Row(**row._asdict()) for row in rows])
    message = FeedMessage(cdcpb_pb2.ChangeDataEvent(events=[cdcpb_pb2.Event(entries=entries)]).SerializeToString())
    return message.rows(0, message.parsed.events[0])


def transaction(random: Random) -> list[list[Row]]:
    """Events of one transaction, none of which is refused: most often one that brings it and one that commits it."""
    keys = [b"k%03d" % at for at in random.sample(range(200), random.choice((8, COLUMNS_MIN - 1, COLUMNS_MIN, 60)))]
    ops = dict.fromkeys(keys, PUT)
    if random.random() < 0.3:
        ops[random.choice(keys)] = DELETE
    has_value, has_old, has_source = (random.random() < 0.7 for _ in range(3))

    def prewrite(key: bytes, value: bytes, generation: int = 0) -> Row:
        old = b"old of " + key if has_old else b""
        return Row(PREWRITE, START_TS, 0, key, value, old, ops[key], generation=generation)

    events = [[prewrite(key, b"value of " + key if has_value and ops[key] == PUT else b"") for key in keys]]
    happens = random.choice(("nothing", "nothing", "more", "again", "rollback"))
    if happens == "more":
        more = [b"km%03d" % at for at in range(random.choice((1, 30)))]
        ops.update(dict.fromkeys(more, PUT))
        events.append([prewrite(key, b"more") for key in more])
        keys = keys + more
    elif happens == "again":
        events.append([prewrite(random.choice(keys), b"", random.choice((0, 7)))])
    elif happens == "rollback":
        events.append([Row(ROLLBACK, START_TS, 0, keys.pop(random.randrange(len(keys))), op_type=0)])
    if random.random() < 0.3:
        random.shuffle(keys)
    half = random.choice((0, 0, 0, len(keys) // 2))
    sources = {key: random.choice((0, 3)) if has_source else 0 for key in keys}
    stamps = {key: COMMIT_TS + random.choice((0, 0, 1)) if random.random() < 0.1 else COMMIT_TS for key in keys}
    commits = [Row(COMMIT, START_TS, stamps[key], key, b"", b"", ops[key], sources[key]) for key in keys]
    events += [commits[:half], commits[half:]]
    return [event for event in events if event]


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_transaction_in_large_events_then_its_changes_are_those_of_its_rows_one_by_one(seed: int) -> None:
    by_event, by_row = new_matcher(), new_matcher()
    for event in transaction(Random(seed)):
        wanted: list[Change] = [change for row in event for change in by_row.feed([row])]
        assert [change for part in by_event.parts(by_wire(event)) for change in part] == wanted
        assert by_event.open_prewrites == by_row.open_prewrites
        assert by_event.held_bytes() == by_row.held_bytes()
    assert by_event.open_prewrites == by_event.held_bytes() == 0


def test_transaction_when_one_event_brings_it_and_one_commits_it_then_it_is_never_taken_apart() -> None:
    matcher = new_matcher()
    keys = [b"k%03d" % at for at in range(COLUMNS_MIN)]
    list(matcher.parts(by_wire([Row(PREWRITE, START_TS, 0, key, b"v" + key) for key in keys])))
    txn = matcher._open.by_start_ts[START_TS]
    (part,) = matcher.parts(by_wire([Row(COMMIT, START_TS, COMMIT_TS, key) for key in keys]))
    assert isinstance(part, ChangeColumns)
    assert list(part) == [(COMMIT_TS, START_TS, PUT, key, b"v" + key, b"", 0) for key in keys]
    assert txn._rows == {}
