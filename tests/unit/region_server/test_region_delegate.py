"""Which applied writes a subscriber sees, and as which rows."""

from producers.region_server.core.cdc.delegate import Delegate, Downstream
from producers.region_server.core.cdc.incremental_scan import scan, take_snapshot
from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.mvcc import RegionData
from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2

REGION = RegionId(2)
Row = tuple[str, bytes, int, int, bytes, bytes]
"""(type, key, start_ts, commit_ts, value, old value)"""


def downstream(
    checkpoint_ts: int = 0, start: bytes = b"", end: bytes = b"", *, filter_loop: bool = False
) -> Downstream:
    return Downstream(
        region_id=REGION, request_id=9, start=start, end=end, checkpoint_ts=Ts(checkpoint_ts), filter_loop=filter_loop
    )


def rows(*events: cdcpb_pb2.Event) -> list[Row]:
    return [
        (cdcpb_pb2.Event.LogType.Name(row.type), row.key, row.start_ts, row.commit_ts, row.value, row.old_value)
        for event in events
        for row in event.entries.entries
    ]


class Watched:
    """A region with one subscriber; ``sent`` gathers the live rows."""

    def __init__(self, subscriber: Downstream | None = None) -> None:
        self.data = RegionData()
        self.delegate = Delegate(REGION)
        self.subscriber = subscriber or downstream()
        self.sent: list[Row] = []
        self.delegate.subscribe(self.subscriber, self.data.locked_between(b"", b""))

    def prewrite(self, start_ts: int, *mutations: Mutation, **fields: int) -> None:
        txn = Txn(start_ts=Ts(start_ts), primary=mutations[0].key, **fields)  # type: ignore[arg-type]
        self._observe(self.data.prewrite(txn, mutations))

    def commit(self, start_ts: int, commit_ts: int, *keys: bytes) -> None:
        self._observe(self.data.commit(Ts(start_ts), Ts(commit_ts), keys))

    def rollback(self, start_ts: int, *keys: bytes) -> None:
        self._observe(self.data.rollback(Ts(start_ts), keys))

    def one_pc(self, start_ts: int, commit_ts: int, *mutations: Mutation, **fields: int) -> None:
        txn = Txn(start_ts=Ts(start_ts), primary=mutations[0].key, **fields)  # type: ignore[arg-type]
        self._observe(self.data.commit_at_once(txn, mutations, Ts(commit_ts)))

    def resolve(self, min_ts: int) -> list[int]:
        return [ts for _, ts in self.delegate.resolve(Ts(min_ts))]

    def _observe(self, changes: list) -> None:  # type: ignore[type-arg]
        self.sent += rows(*(event for _, event in self.delegate.observe(changes)))


def put(key: bytes, value: bytes = b"v") -> Mutation:
    return Mutation("put", key, value)


def test_example_of_the_source_reading_commit_before_prewrite() -> None:
    """T1 (k1, k2) 1 -> 2; T2 (k1) 3 -> 6, whose commit comes before its prewrite; T3 (k2) stays open.

    The subscription is made while T2's lock is open, so its prewrite comes by the scan and its commit live, earlier.
    """
    store = Watched(downstream())  # writes only; the real subscriber comes later
    store.prewrite(1, put(b"k1", b"one"), put(b"k2", b"one"))
    store.commit(1, 2, b"k1", b"k2")
    store.prewrite(3, put(b"k1", b"two"))

    late = downstream(checkpoint_ts=0)
    store.delegate.unsubscribe(store.subscriber)
    store.delegate.subscribe(late, store.data.locked_between(b"", b""))
    snapshot = take_snapshot(store.data, b"", b"", Ts(0))
    store.sent.clear()
    store.commit(3, 6, b"k1")
    stream = store.sent + rows(*scan(snapshot, late))
    late.initialized = True
    assert stream == [
        ("COMMIT", b"k1", 3, 6, b"two", b""),
        ("PREWRITE", b"k1", 3, 0, b"two", b"one"),
        ("COMMITTED", b"k1", 1, 2, b"one", b""),
        ("COMMITTED", b"k2", 1, 2, b"one", b""),
        ("INITIALIZED", b"", 0, 0, b"", b""),
    ]
    # resolved ts 2: T1 is complete; 4: T2's commit_ts 6 is above it, so nobody may restore T2 yet.
    assert store.resolve(2) == [2]
    assert store.resolve(4) == [4]
    store.prewrite(7, put(b"k2", b"three"))
    # PD is at 9, but T3 is open since 7: that is what is promised, and it is enough for T2.
    assert store.resolve(9) == [7]


def test_commit_row_carries_the_value_up_to_255_bytes_and_never_an_old_value() -> None:
    watched = Watched()
    for start_ts, size in ((1, 255), (3, 256)):
        watched.prewrite(start_ts, put(b"k", b"x" * size))
        watched.commit(start_ts, start_ts + 1, b"k")
    commits = [row for row in watched.sent if row[0] == "COMMIT"]
    assert [len(row[4]) for row in commits] == [255, 0]
    assert [row[5] for row in commits] == [b"", b""]
    assert [len(row[5]) for row in watched.sent if row[0] == "PREWRITE"] == [0, 255]


def test_one_pc_shows_as_one_committed_row_with_the_old_value() -> None:
    watched = Watched()
    watched.one_pc(1, 2, put(b"k", b"a"))
    watched.one_pc(3, 4, Mutation("delete", b"k"))
    assert watched.sent == [("COMMITTED", b"k", 1, 2, b"a", b""), ("COMMITTED", b"k", 3, 4, b"", b"a")]


def test_rollback_shows_with_or_without_its_prewrite_and_frees_resolved_ts() -> None:
    watched = Watched()
    watched.subscriber.initialized = True
    watched.prewrite(1, put(b"k"))
    assert watched.resolve(10) == [1]
    watched.rollback(1, b"k", b"never-locked")
    assert watched.sent[1:] == [("ROLLBACK", b"k", 1, 0, b"", b""), ("ROLLBACK", b"never-locked", 1, 0, b"", b"")]
    assert watched.resolve(10) == [10]


def test_protected_rollback_carries_a_mark_that_is_no_row() -> None:
    watched = Watched()
    watched._observe(watched.data.rollback(Ts(5), [b"k"], protected=True))
    assert watched.sent == [("ROLLBACK", b"k", 5, 0, b"p", b"")]


def test_heartbeat_shows_nothing_or_in_older_tikv_a_fake_prewrite_of_a_long_value() -> None:
    for fake, size, expected in (
        (False, 300, []),
        (True, 255, []),
        (True, 256, [("PREWRITE", b"k", 2, 0, b"", b"old")]),
    ):
        subscriber = downstream()
        subscriber.fake_prewrites = fake
        watched = Watched(subscriber)
        watched.one_pc(0, 1, put(b"k", b"old"))
        watched.prewrite(2, put(b"k", bytes(size)))
        watched.sent.clear()
        watched._observe(watched.data.refresh(Ts(2), b"k", ttl_ms=60_000))
        assert watched.sent == expected


def test_enrolled_downstream_sees_nothing_until_it_is_subscribed() -> None:
    store, late = Watched(), downstream()
    store.delegate.enroll(late)
    changes = store.data.commit_at_once(Txn(start_ts=Ts(1), primary=b"k"), [put(b"k")], Ts(2))
    assert [change for change, _ in store.delegate.observe(changes)] == [store.subscriber]
    assert store.delegate.everyone == [store.subscriber, late]
    store.delegate.subscribe(late, [])
    assert [change for change, _ in store.delegate.observe(changes)] == [store.subscriber, late]
    store.delegate.unsubscribe(late)
    assert store.delegate.everyone == [store.subscriber]


def test_lossy_ddl_and_import_rows_are_never_sent_but_their_locks_hold_resolved_ts() -> None:
    watched = Watched()
    watched.subscriber.initialized = True
    watched.prewrite(1, put(b"k"), txn_source=1 << 8)
    assert watched.resolve(10) == [1]
    watched.commit(1, 2, b"k")
    watched.one_pc(3, 4, put(b"l"), txn_source=1 << 16)
    assert watched.sent == []
    assert rows(*scan(take_snapshot(watched.data, b"", b"", Ts(0)), downstream())) == [
        ("INITIALIZED", b"", 0, 0, b"", b"")
    ]


def test_filter_loop_drops_rows_of_another_cdc_live_and_scanned() -> None:
    for filter_loop, expected in ((True, 0), (False, 1)):
        watched = Watched(downstream(filter_loop=filter_loop))
        watched.one_pc(1, 2, put(b"k"), txn_source=3)
        assert len(watched.sent) == expected
        again = downstream(filter_loop=filter_loop)
        assert len(rows(*scan(take_snapshot(watched.data, b"", b"", Ts(0)), again))) == expected + 1


def test_only_keys_of_the_observed_range_are_sent_and_tracked() -> None:
    watched = Watched(downstream(start=b"b", end=b"d"))
    watched.subscriber.initialized = True
    watched.prewrite(5, put(b"a"), put(b"d"))
    assert watched.resolve(10) == [10]
    watched.prewrite(11, put(b"b"), put(b"c"))
    assert [row[1] for row in watched.sent] == [b"b", b"c"]
    assert watched.resolve(20) == [11]


def test_resolved_ts_waits_for_initialized_and_knows_the_locks_of_before() -> None:
    watched = Watched()
    watched.prewrite(5, put(b"k"))
    late = downstream()
    watched.delegate.subscribe(late, watched.data.locked_between(b"", b""))
    assert watched.resolve(10) == []
    late.initialized = True
    assert watched.resolve(10) == [5]
    watched.delegate.unsubscribe(late)
    assert late.stopped
    assert watched.resolve(10) == []


def test_scan_gives_versions_above_the_checkpoint_newest_first_and_ends_with_initialized() -> None:
    watched = Watched()
    for start_ts, value in ((1, b"a"), (3, b"b"), (5, b"c")):
        for key in (b"y", b"x"):
            watched.one_pc(start_ts, start_ts + 1, put(key, value))
    watched.one_pc(7, 8, Mutation("delete", b"y"))
    scanned = rows(*scan(take_snapshot(watched.data, b"", b"", Ts(2)), downstream(2)))
    assert scanned == [
        ("COMMITTED", b"x", 5, 6, b"c", b"b"),
        ("COMMITTED", b"x", 3, 4, b"b", b"a"),
        ("COMMITTED", b"y", 7, 8, b"", b"c"),
        ("COMMITTED", b"y", 5, 6, b"c", b"b"),
        ("COMMITTED", b"y", 3, 4, b"b", b"a"),
        ("INITIALIZED", b"", 0, 0, b"", b""),
    ]


def test_scan_begins_strictly_above_the_checkpoint() -> None:
    watched = Watched()
    for key, commit_ts in ((b"a", 2), (b"b", 3), (b"c", 4)):
        watched.one_pc(1, commit_ts, put(key))
    scanned = rows(*scan(take_snapshot(watched.data, b"", b"", Ts(2)), downstream(2)))
    assert [row[1] for row in scanned] == [b"b", b"c", b""]


def test_scan_shows_an_open_lock_whose_key_has_nothing_above_the_checkpoint() -> None:
    watched = Watched()
    watched.one_pc(1, 2, put(b"k", b"a"))
    watched.prewrite(3, put(b"k", b"b"))
    watched.data.pessimistic_lock(Txn(start_ts=Ts(4), primary=b"p"), [b"p"])
    scanned = rows(*scan(take_snapshot(watched.data, b"", b"", Ts(50)), downstream(50)))
    assert scanned == [("PREWRITE", b"k", 3, 0, b"b", b"a"), ("INITIALIZED", b"", 0, 0, b"", b"")]


def test_large_commands_and_scans_are_cut_into_events() -> None:
    watched = Watched()
    watched.one_pc(1, 2, *(put(b"%03d" % number, bytes(10_000)) for number in range(100)))
    (events,) = [list(scan(take_snapshot(watched.data, b"", b"", Ts(0)), downstream()))]
    assert 20 < len(events) < 40
    assert [event.entries.entries[-1].type for event in events].count(cdcpb_pb2.Event.INITIALIZED) == 1
    again = [put(b"%03d" % number, bytes(10_000)) for number in range(100)]
    changes = watched.data.commit_at_once(Txn(start_ts=Ts(3), primary=b"k"), again, Ts(4))
    live = list(watched.delegate.observe(changes))
    assert len(live) == 4  # values and old values
    assert sum(len(event.entries.entries) for _, event in live) == 100
