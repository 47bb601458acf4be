"""What a reader at a version sees in the region server, past locks or not."""

from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.mvcc import RegionData
from producers.region_server.core.store.snapshot_read import Blocked, ReadView, SeenRow, read, safe_ts, scan
from schemas.ids import Ts


def written(**versions: int) -> RegionData:
    """Return data in which each key was written at start_ts = the number, commit_ts one later."""
    data = RegionData()
    for key, start_ts in versions.items():
        data.commit_at_once(
            Txn(start_ts=Ts(start_ts), primary=b"k"), [put(key.encode(), str(start_ts))], Ts(start_ts + 1)
        )
    return data


def put(key: bytes, value: str = "locked") -> Mutation:
    return Mutation("put", key, value.encode())


def lock(data: RegionData, start_ts: int, *mutations: Mutation, min_commit_ts: int = 0) -> None:
    txn = Txn(start_ts=Ts(start_ts), primary=mutations[0].key, min_commit_ts=Ts(min_commit_ts))
    data.prewrite(txn, list(mutations))


def test_read_lock_that_may_still_commit_below_then_it_blocks() -> None:
    data = written(k=10)
    lock(data, 20, put(b"k"))
    blocked = read(data, b"k", ReadView(Ts(30)))
    assert isinstance(blocked, Blocked)
    assert blocked.lock.txn.start_ts == 20
    assert read(data, b"k", ReadView(Ts(15))) == SeenRow(b"k", b"10", Ts(11))


def test_read_transaction_is_known_to_be_resolved_then_its_lock_is_passed_by() -> None:
    data = written(k=10)
    lock(data, 20, put(b"k"), put(b"new"))
    view = ReadView(Ts(30), resolved=frozenset([Ts(20)]))
    assert read(data, b"k", view) == SeenRow(b"k", b"10", Ts(11))
    assert read(data, b"new", view) is None


def test_read_transaction_is_known_to_be_committed_then_its_lock_is_read_as_the_version_it_becomes() -> None:
    data = written(k=10, gone=10)
    lock(data, 20, put(b"k"), Mutation("delete", b"gone"))
    view = ReadView(Ts(30), committed=frozenset([Ts(20)]))
    assert read(data, b"k", view) == SeenRow(b"k", b"locked", Ts(0))
    assert read(data, b"gone", view) is None


def test_scan_goes_on_behind_a_lock_and_counts_it() -> None:
    data = written(a=10, b=10, c=10, d=10)
    lock(data, 20, put(b"b"), put(b"bb"))
    seen = scan(data, b"", b"", ReadView(Ts(30)), 4)
    assert [(row.key, type(row).__name__) for row in seen] == [
        (b"a", "SeenRow"), (b"b", "Blocked"), (b"bb", "Blocked"), (b"c", "SeenRow"),
    ]  # fmt: skip
    down = scan(data, b"b", b"d", ReadView(Ts(30)), 2, reverse=True)
    assert [row.key for row in down] == [b"c", b"bb"]


def test_scan_of_more_keys_than_a_block_gives_all_up_to_the_limit() -> None:
    data = RegionData()
    keys = [b"%05d" % number for number in range(3_000)]
    data.commit_at_once(Txn(start_ts=Ts(1), primary=keys[0]), [put(key) for key in keys], Ts(2))
    data.commit_at_once(Txn(start_ts=Ts(3), primary=keys[0]), [Mutation("delete", key) for key in keys[:1_500]], Ts(4))
    assert [row.key for row in scan(data, b"", b"", ReadView(Ts(5)), 2_000)] == keys[1_500:]
    assert [row.key for row in scan(data, keys[10], keys[2_999], ReadView(Ts(2)), 9_999)] == keys[10:2_999]


def test_safe_ts_stays_below_a_transaction_under_way() -> None:
    data = written(k=10)
    assert safe_ts(data, Ts(50)) == 50
    lock(data, 20, put(b"k"))
    assert safe_ts(data, Ts(50)) == 19
