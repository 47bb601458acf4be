"""The truth of end-to-end comparisons: what a writer notes is what stands in the store, by the decoder of rows."""

import pytest

from consumers.verify.core.columns import compared
from consumers.verify.reader import ColumnRange
from producers.region_server.core.store.mvcc import LockKind, Write
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer
from schemas.changes import Op
from schemas.ids import TableId, Ts
from schemas.state_proof.row_text import value_text
from schemas.tidb.table_info import table_version
from sorters.core.mount.scalar import mount_row
from sorters.core.state_proof.proof_columns import kind_of
from tests.support.database.state_tables import EXTRA, KINDS, add_extra, hashed
from tests.support.database.state_writer import SCHEMA, StateWriter
from tests.support.database.written_source import WrittenSource
from tests.support.processes.bus import wait_until
from tests.support.recorded.recording import CommittedChange
from tests.support.recorded.schema_feed import schema_store


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("is_extended", [False, True])
def test_texts_of_a_kind_are_those_of_its_encoded_rows(name: str, is_extended: bool) -> None:
    kind = KINDS[name]
    info = kind.info("t", range(50, 51 + kind.partitions))
    extra_id = None
    if is_extended:
        info = add_extra(info)
        extra_id = info["max_col_id"]
    table = table_version(info, schema_id=1, schema="s", version=Ts(1))
    pool = b"0123456789-" * 500
    for number, sequence in ((1, 1), (2, 3), (2_001, 70), (9_999, 123_456)):
        texts = kind.texts(number, sequence, pool)
        value = kind.value(number, sequence, pool, extra_id)
        mounted = mount_row(
            table,
            key=kind.key(table.table_id, number),
            op=Op.PUT,
            value=value,
            old_value=b"",
            commit_ts=Ts(5),
            start_ts=Ts(4),
        )
        assert mounted is not None and mounted.columns is not None
        shown = [value_text(kind_of(spec), cell) for spec, cell in zip(table.columns, mounted.columns, strict=True)]
        assert shown[: len(texts)] == list(texts)
        assert shown[len(texts) :] == ([b"%d" % (sequence % 1_000)] if is_extended else [])


def live_rows(store: ClusterStore, ts: int) -> dict[bytes, bytes]:
    """Return the rows that the store holds at ``ts``, by key."""
    rows = {}
    for region in store.regions:
        for key, newest in region.data.writes.items():
            version: Write | None = newest
            while version is not None and (version.commit_ts > ts or version.op not in (LockKind.PUT, LockKind.DELETE)):
                version = version.previous
            if key[:1] == b"t" and key[9:11] == b"_r" and version is not None and version.op is LockKind.PUT:
                rows[key] = version.value or b""
    return rows


def test_written_tables_at_any_ts_are_what_the_store_holds() -> None:
    with RegionServer(min_ts_interval_ms=200) as server:
        writer = StateWriter(server, rows_per_s=20_000)
        server.call(writer.load([(name, name, 300) for name in KINDS]))
        seen = [server.tso()]
        writing = server.spawn(writer.run())
        wait_until(lambda: writer.rows_committed > 4_000, 60, "rows")
        seen.append(server.tso())
        server.act(lambda _: writer.add_column("hash"))
        server.act(lambda _: writer.truncate("int"))
        server.act(lambda _: writer.create("late", "range"))
        seen.append(server.tso())
        wait_until(lambda: writer.rows_committed > 8_000, 60, "more rows")
        writer.stop()
        writing.result(60)
        seen.append(server.tso())
        for ts in seen:
            rows = server.act(lambda store, ts=ts: live_rows(store, ts))  # type: ignore[misc]
            for name, table in writer.tables.items():
                held = server.act(lambda _, table=table, ts=ts: table.at(ts))  # type: ignore[misc]
                keys = {table.kind.key(table.physical_id(number), number) for number in held.numbers.tolist()}
                if name != "int" or ts >= seen[2]:  # before, it had another id
                    partitions = (table.info["partition"] or {"definitions": [table.info]})["definitions"]
                    own = {int(each["id"]) for each in partitions}
                    there = {key for key in rows if int.from_bytes(key[1:9], "big") ^ (1 << 63) in own}
                    assert keys == there, (name, ts)
                numbered = zip(held.numbers.tolist(), held.sequences.tolist(), held.hashes.tolist(), strict=True)
                for number, sequence, digest in numbered:
                    assert digest == hashed(table.kind.texts(number, sequence, writer.pool))
                    if name not in {"hash", "int"}:
                        key = table.kind.key(table.physical_id(number), number)
                        assert rows[key] == table.kind.value(number, sequence, writer.pool, None)
        assert len(writer.tables["int"].at(seen[1]).numbers) > 300
        assert len(writer.tables["int"].at(writer.tables["int"].emptied_ts[0]).numbers) == 0


def committed(store: ClusterStore) -> list[CommittedChange]:
    """Return all versions, in the order of their commits."""
    changes = []
    for region in store.regions:
        for key, newest in region.data.writes.items():
            version: Write | None = newest
            while version is not None:
                if version.op in (LockKind.PUT, LockKind.DELETE):
                    changes.append(
                        CommittedChange(
                            commit_ts=version.commit_ts,
                            start_ts=version.start_ts,
                            key=key,
                            op="put" if version.op is LockKind.PUT else "delete",
                            value=version.value or b"",
                            old_value=b"",
                            txn_source=0,
                        )
                    )
                version = version.previous
    return sorted(changes, key=lambda change: change.commit_ts)


def test_written_ddl_is_read_as_that_of_a_tidb() -> None:
    with RegionServer(min_ts_interval_ms=200) as server:
        writer = StateWriter(server, rows_per_s=0)
        server.call(writer.load([("a", "int", 5), ("b", "hash", 5)]))
        before_ts = server.tso()
        emptied_id = TableId(writer.tables["a"].info["id"])
        server.act(lambda _: writer.truncate("a"))
        server.act(lambda _: writer.add_column("b"))
        changes, last_ts = server.act(committed), server.tso()
    schemas = schema_store(changes)
    first, second = writer.tables["a"], writer.tables["b"]
    assert first.emptied_ts and second.extended_ts is not None
    for number in range(1, 6):
        physical = second.physical_id(number)
        at_ts = [schemas.table_at(physical, Ts(ts)) for ts in (before_ts, second.extended_ts + 1, last_ts)]
        names = [[column.name for column in table.columns] for table in at_ts if table is not None]
        assert names == [["id", "k", "c", "pad"], *[["id", "k", "c", "pad", EXTRA]] * 2]
    there = schemas.table_at(TableId(first.info["id"]), last_ts)
    assert there is not None and there.table == "a"
    assert schemas.table_at(emptied_id, before_ts) is not None
    assert emptied_id != first.info["id"]


def test_written_reader_divides_a_table_as_a_database_does() -> None:
    with RegionServer(min_ts_interval_ms=200) as server:
        writer = StateWriter(server, rows_per_s=0)
        server.call(writer.load([("t", "int", 1_000)]))
        with WrittenSource(server, writer)(server.tso()) as reader:
            name = SCHEMA, "t"
            what = compared(reader.columns(name), reader.keys(name), ["id", "k", "c", "pad"], reader.dialect)
            whole = reader.proof(name, what, ColumnRange())
            assert whole.rows == 1_000
            assert reader.border(name, "id", None, 400) == 400
            assert reader.border(name, "id", 400, 600) == 1_000
            assert reader.border(name, "id", 400, 601) is None
            parts = [
                reader.proof(name, what, ColumnRange("id", after, upto)) for after, upto in ((None, 400), (400, None))
            ]
            assert [part.rows for part in parts] == [400, 600]
            assert parts[0].xor ^ parts[1].xor == whole.xor
            buckets = reader.buckets(name, what, ColumnRange(), 60)
            assert sum(each.rows for each in buckets.values()) == 1_000
            rows = reader.rows(name, what, ColumnRange("id", None, 5), 0, [0], 9)
            assert rows == []
            named = reader.rows(name, what, ColumnRange("id", 3, 5), 63, [0, 1], 9)
            assert sorted(row.key for row in named) == [("4",), ("5",)]
