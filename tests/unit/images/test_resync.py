"""A resync: what goes out beside the rows of a chunk, into a database and into topics."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from compose.capture.api.backend import ApiBackend
from compose.capture.api.resync_rules import check_backfill, check_resync
from compose.capture.api.upstream_tables import UpstreamTables
from consumers.control.api.access.errors import ApiError
from consumers.control.changefeeds.asked_images import decode_asked
from consumers.control.changefeeds.image_requests import ImageRefusedError
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.apply.statements import StatementSettings, statements
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.rawlog.images import IdRange, ImageMode, KeyRange, opening_of
from schemas.sink.position import Position, PositionClass, RowOp, decode_position
from schemas.sink.sql_rows import decode_form, decode_rows
from schemas.sink.topic import sorter_config
from schemas.tidb.keys import row_key
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.resync_events import resync_events, resync_records
from sorters.core.records.order import OutputRecords, no_records
from sorters.cut.image_chunks import RawChunk, read_chunks
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.control.memory_zookeeper import MemoryZooKeeper
from tests.support.control.served_bus import places_of
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info
from tests.unit.images.test_image_chunks import ONE, TWO, S, Topic, chunk_of, cut_of, inserts, program, raw_chunk

INFO = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="", config={}, start_ts=Ts(1))
STORE = snapshot(("d", 1, [table_info(11, "one"), table_info(12, "two")]))


def database(config: dict[str, Any] | None = None, store: SchemaStore = STORE) -> FeedProgram:
    """Return the program of a changefeed into a database."""
    made = sorter_config(load_changefeed("mysql://u:p@h:3306/", config or {}), INFO, "h:1")
    feed = compile_feed(made, "default")
    topic = feed.default_topic
    return FeedProgram(store, replace(feed, partitions={topic: 1}, topic_message_bytes={topic: 1 << 20}))


def resynced(by: FeedProgram, *chunks: RawChunk, raw: tuple[bytes, ...] = ()) -> OutputRecords:
    """Run a cut; the sorter's own books are checked in it."""
    tables = frozenset(each.chunk.table_id for each in chunks)
    cut = replace(cut_of(*(each.chunk for each in chunks)), resynced=tables)
    whole = whole_cut(cut, RawCut(list(raw), 0, chunks=chunks), by, no_records(), 1, 1 << 30)
    assert whole is not None
    return whole.records


def applied(records: OutputRecords, stale: dict[int, int], name: str = "d.one") -> dict[int, int]:
    """Return what a database has of a table afterwards, that had ``stale`` before: each claim's statements, run."""
    server = sqlite3.connect(":memory:")
    server.execute(f"ATTACH ':memory:' AS {name.partition('.')[0]}")
    server.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v INTEGER)")
    server.executemany(f"INSERT INTO {name} VALUES (?, ?)", stale.items())
    queue = PartitionQueue(0, start_position(Ts(1)), 0)
    for offset, record in enumerate(records.to_pylist()):
        queue.feed(position=record["position"], offset=offset, key=record["key"], value=record["value"])
    end = Position(Ts(5_000), PositionClass.WATERMARK).encode()
    queue.feed(position=end, offset=records.num_rows, key=None, value=b"{}")
    while (claim := queue.claim(1_000_000, bytes_max=1 << 30)) is not None:
        for statement in statements(claim.rows, StatementSettings()):
            server.execute(statement.sql.decode())
        queue.arrived()
    return dict(server.execute(f"SELECT id, v FROM {name}"))


def test_rows_that_a_chunk_lacks_are_deleted_and_what_came_after_it_stays() -> None:
    stale = dict.fromkeys([-5, 3, 7, 8, 40, 2_000, 2**40], 111)
    raw = inserts(ONE, 500, ts=600), inserts(ONE, 7, 8, ts=800)
    # 7 and 8 were deleted again before S in the source, so the chunk lacks them; 500 came before S, and it is in it.
    after = inserts(ONE, 40, 41, ts=S + 5)
    chunk = raw_chunk(ONE, 0, 3, 500, *range(1_000, 1_600))
    first = resynced(database(), chunk, raw=raw[:1])
    later = replace(cut_of(), after_ts=S, upto_ts=Ts(S + 10))
    second = whole_cut(later, RawCut([after], 0), database(), no_records(), 1, 1 << 30)
    assert second is not None
    both: Any = pa.concat_tables([first, second.records])
    assert applied(both, stale) == {
        3: 3, 40: 40, 41: 41, 500: 0, **{key: key % 100 for key in range(1_000, 1_600)},
    }  # fmt: skip


def test_only_the_range_of_a_chunk_loses_rows() -> None:
    stale = dict.fromkeys([1, 5, 10, 12, 19, 20, 30], 111)
    keys = KeyRange(row_key(ONE, 5), row_key(ONE, 20))
    empty = RawChunk(replace(chunk_of(ONE, 0, {}, (0, 0)), keys=keys), ())
    assert applied(resynced(database(), empty), stale) == dict.fromkeys([1, 20, 30], 111)


def test_a_range_of_one_rows_key_is_no_opening() -> None:
    """Who shares a range with a part of another changefeed may get a row by itself."""
    keys = KeyRange(row_key(ONE, 5), row_key(ONE, 5) + b"\0")
    single = RawChunk(replace(chunk_of(ONE, 0, {}, (0, 0)), keys=keys), ())
    assert applied(resynced(database(), single), {4: 1, 5: 1, 6: 1}) == {4: 1, 6: 1}
    by = program("canal-json")
    assert isinstance(by.schemas, SchemaStore)
    assert said_of(replace(opened(ONE), chunks=(single.chunk,)), by.schemas, by).num_rows == 0


def test_what_a_chunk_lacks_stands_before_its_rows_and_behind_all_changes_up_to_it() -> None:
    raw = inserts(ONE, 70, ts=S - 1)
    records = resynced(database(), raw_chunk(ONE, 0, 5, 9), raw_chunk(TWO, 1, 2), raw=(raw,)).to_pylist()
    said = []
    for record in records:
        form, position = decode_form(record["key"]), decode_position(record["position"])
        rows = decode_rows(record["value"])
        said.append((position.commit_ts, position.op, form.table, [rows.row(at, form).key for at in range(len(rows))]))
    assert said == [
        (S - 1, RowOp.INSERT, "one", [b"70"]),
        (S, RowOp.DELETE, "one", [b"(`id` NOT IN (5,9))"]),
        (S, RowOp.DELETE, "two", [b"(`id` NOT IN (2))"]),
        (S, RowOp.INSERT, "one", [b"5", b"9"]),
        (S, RowOp.INSERT, "two", [b"2"]),
    ]


def test_nothing_is_deleted_by_an_opening_a_filter_without_deletes_or_a_table_that_no_range_tells() -> None:
    opening = RawChunk(replace(chunk_of(ONE, 0, {}, (0, 0)), keys=opening_of(ONE)), ())
    assert resynced(database(), opening).num_rows == 0
    ignoring = {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["delete"]}]}}
    assert resynced(database(ignoring), raw_chunk(ONE, 0, 5)).num_rows == 1
    assert resynced(database({"filter": {"rules": ["d.two"]}}), raw_chunk(ONE, 0, 5)).num_rows == 0
    parted = {**table_info(11, "one"), "partition": PARTITION}
    assert resynced(database(store=snapshot(("d", 1, [parted]))), raw_chunk(ONE, 0, 5)).num_rows == 1


PARTITION = {"enable": True, "definitions": [{"id": 11, "name": {"O": "p", "L": "p"}}]}


def test_a_range_without_a_row_is_read_by_one_task_where_it_is_of_a_resync() -> None:
    cut = replace(cut_of(chunk_of(ONE, 0, {}, (2, 2)), chunk_of(TWO, 1, {}, (2, 2))), resynced=frozenset({TWO}))
    shares = [list(read_chunks(Topic([]), cut, lambda _: None, number, 2)) for number in range(2)]
    assert [[each.chunk.table_id for each in share] for share in shares] == [[], [TWO]]


# -- topics


def said_of(cut: Cut, store: SchemaStore, by: FeedProgram) -> OutputRecords:
    return resync_records(resync_events(cut, store, by.feed), by.feed, 1)


def opened(*tables: TableId) -> Cut:
    chunks = [
        replace(chunk_of(table, number, {}, (0, 0)), keys=opening_of(table)) for number, table in enumerate(tables)
    ]
    return replace(cut_of(*chunks), resynced=frozenset(tables), resync=ids(*tables))


def ids(*tables: TableId) -> tuple[IdRange, ...]:
    return tuple(IdRange(table, table) for table in tables)


def test_a_resync_into_topics_begins_with_a_marked_truncate_and_its_rows_come_later() -> None:
    by = program("canal-json&enable-tidb-extension=true")
    store = SchemaStore.empty() if by.schemas is None else by.schemas
    assert isinstance(store, SchemaStore)
    records = said_of(opened(ONE, TWO), store, by).to_pylist()
    said = [json.loads(record["value"]) for record in records]
    assert {(each["type"], each["isDdl"], each["sql"], each["_tidb"]["commitTs"]) for each in said} == {
        ("TRUNCATE", True, "TRUNCATE TABLE `d`.`one`", S),
        ("TRUNCATE", True, "TRUNCATE TABLE `d`.`two`", S),
    }
    positions = {decode_position(record["position"]) for record in records}
    assert {(each.commit_ts, each.position_class, each.start_ts) for each in positions} == {(S, PositionClass.DDL, S)}
    assert len(positions) == 2
    assert said_of(replace(opened(ONE), resynced=frozenset()), store, by).num_rows == 0
    rest = replace(opened(ONE), chunks=(raw_chunk(ONE, 0, 5).chunk,))
    assert said_of(rest, store, by).num_rows == 0
    assert resynced(by, raw_chunk(ONE, 0, 5)).num_rows == 1, "a topic is told of no range"


@pytest.mark.parametrize("protocol", ["open-protocol", "simple", "debezium", "canal", "canal-json"])
def test_each_protocol_with_ddl_says_it_in_its_own_form(protocol: str) -> None:
    by = program(protocol)
    store = by.schemas
    assert isinstance(store, SchemaStore)
    records = said_of(opened(ONE), store, by).to_pylist()
    assert records
    assert all(b"TRUNCATE TABLE `d`.`one`" in record["value"] for record in records)


def test_files_and_a_table_that_has_gone_are_told_of_no_truncate() -> None:
    made = sorter_config(load_changefeed("file:///f?protocol=csv", {}), INFO, "h:1")
    assert resync_events(opened(ONE), STORE, compile_feed(made, "default")) == []
    store = snapshot(("d", 1, [table_info(11, "one")]))
    assert store.apply(job(Ts(900), DdlType.DROP_TABLE, schema_id=1, table_id=11)) is not None
    assert said_of(opened(ONE), store, program("canal-json")).num_rows == 0


# -- what is refused

KEY: dict[str, Any] = {
    "id": 1,
    "idx_name": {"O": "PRIMARY", "L": "primary"},
    "is_unique": True,
    "is_primary": True,
    "state": 5,
    "idx_cols": [{"name": {"O": "id", "L": "id"}, "offset": 0, "length": -1}],
}
UNIQUE: dict[str, Any] = {"index_info": [KEY]}
"""A primary key that is not clustered, with ``pk_is_handle=False``."""


def stored(**more: Any) -> StoredTable:
    (table,) = snapshot(("d", 1, [{**table_info(11, "one"), **more}])).stored_at(Ts(10))
    return table


@pytest.mark.parametrize(
    ("uri", "config", "table", "why"),
    [
        ("kafka://h:1/t?protocol=avro&schema-registry=http://r:1", {}, stored(), "the protocol lacks"),
        ("mysql://h:1/", {}, stored(pk_is_handle=False), "it has no key"),
        (
            "mysql://h:1/",
            {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["delete"]}]}},
            stored(),
            "leaves its deletes out",
        ),
        ("iceberg://?warehouse=file:///w&mode=append", {}, stored(), "hold each change"),
        ("iceberg://?warehouse=file:///w&mode=append", {}, stored(partition=PARTITION), "hold each change"),
        (
            "iceberg://?warehouse=file:///w&mode=upsert",
            {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["delete"]}]}},
            stored(),
            "leaves its deletes out",
        ),
        (
            "kafka://h:1/t?protocol=canal-json",
            {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["truncate table"]}]}},
            stored(),
            "leaves the TRUNCATE TABLE out",
        ),
        (
            "kafka://h:1/t?protocol=canal-json",
            {"filter": {"event-filters": [{"matcher": ["d.one"], "ignore-sql": ["(?i)^truncate"]}]}},
            stored(),
            "leaves the TRUNCATE TABLE out",
        ),
    ],
)
def test_a_resync_that_would_be_none_is_refused_by_name(
    uri: str, config: dict[str, Any], table: StoredTable, why: str
) -> None:
    with pytest.raises(ImageRefusedError) as caught:
        check_resync(replace(INFO, sink_uri=uri, config=config), [table])
    assert why in str(caught.value)
    assert caught.value.fields["changefeed"] == "f"


def test_a_part_of_a_table_is_resynced_only_where_its_ranges_can_be_told() -> None:
    info = replace(INFO, sink_uri="tidb://h:1/")
    check_resync(info, [stored()], is_part=True)
    with pytest.raises(ImageRefusedError, match="all of it can be resynced"):
        check_resync(info, [stored(pk_is_handle=False, **UNIQUE)], is_part=True)


def test_rows_of_a_table_without_a_key_do_not_go_into_a_database_twice() -> None:
    keyless = stored(cols=[column(1, "v")], pk_is_handle=False)
    with pytest.raises(ImageRefusedError, match="would stand in the database twice"):
        check_backfill(replace(INFO, sink_uri="mysql://h:1/"), [keyless])
    check_backfill(replace(INFO, sink_uri="mysql://h:1/"), [stored()])
    check_backfill(replace(INFO, sink_uri="kafka://h:1/t?protocol=canal-json"), [keyless])


def test_a_resync_is_taken_where_rows_can_be_told() -> None:
    for uri in ("mysql://h:1/", "kafka://h:1/t?protocol=canal-json", "kafka://h:1/t?protocol=debezium"):
        check_resync(replace(INFO, sink_uri=uri), [stored()])
    for uri in ("tidb://h:1/", "kafka://h:1/t?protocol=canal-json", "iceberg://?warehouse=file:///w&mode=upsert"):
        check_resync(replace(INFO, sink_uri=uri), [stored(partition=PARTITION)])
    check_resync(replace(INFO, sink_uri="mysql://h:1/"), [stored(pk_is_handle=False, **UNIQUE)])
    for uri in ("kafka://h:1/t?protocol=simple", "iceberg://?warehouse=file:///w&mode=upsert"):
        check_resync(replace(INFO, sink_uri=uri), [stored(pk_is_handle=False)])
    others = {"filter": {"event-filters": [{"matcher": ["d.two"], "ignore-event": ["truncate table", "delete"]}]}}
    check_resync(replace(INFO, sink_uri="kafka://h:1/t?protocol=simple", config=others), [stored()])


def test_the_api_takes_a_resync_of_any_key_but_not_for_a_range_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    session, paths = MemoryZooKeeper(), ZkPaths("c")
    name = INFO.namespace, INFO.changefeed_id
    into = encode_changefeed_info(replace(INFO, sink_uri="mysql://h:1/"))
    status = encode_changefeed_status(ChangefeedStatus(state="normal", checkpoint_ts=Ts(1), resolved_ts=Ts(1)))
    session.write({paths.changefeed_info(*name): into, paths.changefeed_status(*name): status})
    monkeypatch.setattr(UpstreamTables, "stored", lambda *_: [stored(pk_is_handle=False, **UNIQUE)])
    me = CaptureInfo(capture_id=CaptureId("c"), address="h:1", version="", started_at_s=1)
    with closing(ApiBackend(cast(Session, session), me, places_of("", "", "", "c", "u"), lambda: False)) as bus:
        ask = partial(bus.request_images, INFO.changefeed_id, INFO.namespace, ImageMode.RESYNC, ["d.one"])
        with pytest.raises(ImageRefusedError, match="without a range of keys"):
            ask("1:7")
        assert list(ask()) == [ONE]
    asked = decode_asked(session.nodes[paths.changefeed_images(*name)].value)
    assert asked.requested[ImageMode.RESYNC] == {ONE}


def test_table_whose_name_could_be_anothers_is_asked_for_in_backticks(monkeypatch: pytest.MonkeyPatch) -> None:
    session, paths = MemoryZooKeeper(), ZkPaths("c")
    info = replace(INFO, sink_uri="kafka://h:1/t?protocol=canal-json")
    session.write({paths.changefeed_info(INFO.namespace, INFO.changefeed_id): encode_changefeed_info(info)})
    both = [replace(stored(), schema="a.b", table="c"), replace(stored(), schema="a", table="b.c", table_id=TWO)]
    monkeypatch.setattr(UpstreamTables, "stored", lambda *_: both)
    me = CaptureInfo(capture_id=CaptureId("c"), address="h:1", version="", started_at_s=1)
    with closing(ApiBackend(cast(Session, session), me, places_of("", "", "", "c", "u"), lambda: False)) as bus:
        ask = partial(bus.request_images, INFO.changefeed_id, INFO.namespace, ImageMode.BACKFILL)
        with pytest.raises(ApiError, match=re.escape("called a.b.c; write which: `a.b`.`c`, `a`.`b.c`")):
            ask(["a.b.c"])
        with pytest.raises(ApiError, match=re.escape("no such table: d.one")):
            ask(["d.one"])
        assert list(ask(["`a`.`b.c`"])) == [both[1].table_id]
        assert list(ask(["`a.b`.`c`"])) == [both[0].table_id]
