"""Rows name the schema of their own table, also where several tables share a subject and one time of their last DDL."""

import io
import json
import struct
from typing import Any

import fastavro
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.rows.shared_pass import run_chunks
from sorters.registry.registry import SchemaRefusedError
from sorters.run.ready_tables import ReadyTables, SchemaAmbiguousError
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.unit.feed_tables.test_ready_tables import Broker, cut

ID = column(1, "id", not_null=True, flag=PRIMARY)
PROTOCOLS = ["avro", "debezium-avro"]
BY_TABLE = [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]
MADE_AT = 5
"""When one DDL job has made all of these tables, or a backup is restored: their ``update_timestamp``."""


class Registry:
    """Numbers schemas from 1, and remembers them as its client does; with ``one_name`` a subject has records of one
    name, as where it is to stay compatible.
    """

    def __init__(self, *, one_name: bool = False) -> None:
        self.texts: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self._one_name, self._ids, self._names = one_name, dict[tuple[str, str], int](), dict[str, str]()

    def close(self) -> None: ...

    def register(self, subject: str, schema: str, *, table: str) -> int:
        self.asked.append((subject, table))
        name = json.loads(schema)["name"]
        if self._one_name and self._names.setdefault(subject, name) != name:
            raise SchemaRefusedError("schema registry refuses the schema", subject=subject, table=table)
        if (subject, schema) not in self._ids:
            self.texts.append(schema)
            self._ids[subject, schema] = len(self.texts)
        return self._ids[subject, schema]


class Forgetful(Registry):
    """Gives a text another number each time."""

    def register(self, subject: str, schema: str, *, table: str) -> int:
        self._ids.clear()
        return super().register(subject, schema, table=table)


def info(table_id: int, name: str, *names: str) -> dict[str, Any]:
    columns = [ID, *(column(at + 1, each) | {"offset": at} for at, each in enumerate(names, 1))]
    return table_info(table_id, name, columns=columns) | {"update_timestamp": MADE_AT}


class World:
    """A changefeed of tables 100 (price, stock) and 101 (stock, price), which begins at ts 10."""

    def __init__(self, protocol: str, names: tuple[str, str], registry: Registry, rules: Any = None) -> None:
        uri = f"kafka://h:1/plain?protocol={protocol}&schema-registry=http://h:1"
        self.feed: CompiledFeed = compile_feed(
            load_changefeed(uri, {"sink": {"dispatchers": rules}} if rules else {}), "default"
        )
        infos = [info(100, names[0], "price", "stock"), info(101, names[1], "stock", "price")]
        self.store: SchemaStore = snapshot(("d", 1, infos), ts=Ts(10))
        self.registry, self.tables = registry, ReadyTables(self.feed, Broker(), registry)
        self._ready_upto: Ts | None = None

    def begin(self, after: int, upto: int) -> None:
        self.feed = self.tables.begin(cut(after, upto), self._ready_upto, self.store, self.feed)
        self.feed = self.tables.make_ready(cut(after, upto), None, self.store, self.feed) or self.feed
        self._ready_upto = Ts(upto)

    def read(self, table_id: int, commit_ts: int, price: int, stock: int) -> dict[str, Any]:
        """Return a row of a table as a consumer reads it, by the schema that it names."""
        ids = {"price": 2, "stock": 3} if table_id == 100 else {"stock": 2, "price": 3}
        value = encode_row_v2({ids["price"]: bytes([price]), ids["stock"]: bytes([stock])})
        change = CommittedChange(commit_ts, commit_ts - 1, row_key(TableId(table_id), 1), "put", value, b"", 0)
        (records,) = run_chunks([row_changes(table_id, [change])], self.store, self.feed, encoded_at_ms=5)
        (message,) = records.column("value").to_pylist()
        schema = json.loads(self.registry.texts[struct.unpack(">xi", message[:5])[0] - 1])
        read: Any = fastavro.schemaless_reader(io.BytesIO(message[5:]), schema, None)
        return dict(read.get("after", read))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("names", "rules"),
    [(("goods", "stocks"), None), (("商品", "库存"), BY_TABLE)],
    ids=["default topic", "topics that are called alike"],
)
def test_rows_of_tables_of_one_ddl_job_under_one_subject_name_their_own_schema(
    protocol: str, names: tuple[str, str], rules: Any
) -> None:
    world = World(protocol, names, Registry(), rules)
    world.begin(20, 30)
    assert world.read(100, 25, price=5, stock=7) == {"id": 1, "price": 5, "stock": 7}
    assert world.read(101, 26, price=5, stock=7) == {"id": 1, "price": 5, "stock": 7}


def test_second_table_of_a_ddl_job_under_a_subject_that_takes_one_record_is_refused() -> None:
    world = World("avro", ("goods", "stocks"), Registry(one_name=True))
    with pytest.raises(SchemaRefusedError, match=r"plain-.*table=d\.stocks"):
        world.begin(20, 30)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("rules", [None, BY_TABLE], ids=["default topic", "topics by table"])
def test_rows_of_a_table_that_takes_anothers_name_name_its_own_schema(protocol: str, rules: Any) -> None:
    world = World(protocol, ("t", "t_new"), Registry(), rules)
    world.begin(20, 30)
    for ts, table_id, name, columns in ((35, 100, "t_old", ("price", "stock")), (36, 101, "t", ("stock", "price"))):
        renamed = info(table_id, name, *columns)
        query = f"RENAME TABLE x TO {name}"
        world.store.apply(
            job(ts, DdlType.RENAME_TABLE, schema_id=1, table_id=table_id, query=query, table_info=renamed)
        )
    world.begin(30, 40)
    for commit_ts in (32, 39):
        assert world.read(100, commit_ts, price=5, stock=7) == {"id": 1, "price": 5, "stock": 7}
        assert world.read(101, commit_ts, price=5, stock=7) == {"id": 1, "price": 5, "stock": 7}


def test_partitions_of_a_table_have_its_schemas_registered_once() -> None:
    definitions = [{"id": 200 + at, "name": {"O": f"p{at}", "L": f"p{at}"}} for at in range(50)]
    parted = info(100, "t", "v") | {"partition": {"enable": True, "definitions": definitions}}
    registry, store = Registry(), snapshot(("d", 1, [parted]), ts=Ts(10))
    feed = compile_feed(load_changefeed("kafka://h:1/plain?protocol=avro&schema-registry=http://h:1", {}), "default")
    tables = ReadyTables(feed, Broker(), registry)
    ready = tables.make_ready(cut(20, 30), None, store, tables.begin(cut(20, 30), None, store, feed))
    assert sorted(registry.asked) == [("plain-key", "d.t"), ("plain-value", "d.t")]
    assert ready is not None
    assert len(ready.schema_ids) == 2


def test_a_table_version_that_would_have_two_schemas_is_refused() -> None:
    world = World("avro", ("t", "u"), Forgetful(), BY_TABLE)
    world.begin(20, 30)
    more = info(100, "t", "price", "stock", "more") | {"update_timestamp": 35}
    world.store.apply(
        job(35, DdlType.ADD_COLUMN, schema_id=1, table_id=100, query="ALTER TABLE t ADD more INT", table_info=more)
    )
    with pytest.raises(SchemaAmbiguousError, match=r"subject=d_t-key, table=d\.t, ids=1, \d+"):
        world.begin(30, 40)
