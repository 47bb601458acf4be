"""Topics and schemas of tables are there before a table's first row, and not before it is needed."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.log.topic_admin import SinkTopicLimits
from sorters.registry.registry import SchemaRefusedError
from sorters.run.ready_tables import REQUESTS_AT_ONCE, ReadyTables
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

A, B, C = TableId(100), TableId(101), TableId(102)
COLUMNS = [column(1, "id", not_null=True, flag=PRIMARY)]
START = Ts(10)


class Broker:
    """Makes every topic that it is asked for."""

    def __init__(self) -> None:
        self.topics = set[str]()

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        self.topics |= set(topics)
        return {topic: SinkTopicLimits(partitions=3, message_bytes_max=1 << 20) for topic in topics}


class Registry:
    """Takes every schema but those of ``refused`` subjects; each request waits until ``together`` are under way. As a
    client does it asks once for a text.
    """

    def __init__(self, refused: str = "-", together: int = 1) -> None:
        self.seen: list[tuple[str, str]] = []
        self._refused, self._gate = refused, threading.Barrier(together)

    def close(self) -> None: ...

    def register(self, subject: str, schema: str, *, table: str) -> int:
        self._gate.wait(60)
        if subject.startswith(self._refused):
            raise SchemaRefusedError("schema registry refuses the schema", subject=subject, table=table)
        if (subject, schema) not in self.seen:
            self.seen.append((subject, schema))
        return self.seen.index((subject, schema)) + 1


def cut(after: int, upto: int) -> Cut:
    return Cut(after_ts=Ts(after), upto_ts=Ts(upto), start=(0,), end=(1,), may_repeat=False, ddl_end=0)


def feed_of(protocol: str = "avro", extension: bool = True) -> CompiledFeed:
    more = "&schema-registry=http://h:1" if protocol == "avro" else ""
    uri = f"kafka://h:1/plain?protocol={protocol}&enable-tidb-extension={str(extension).lower()}{more}"
    rules = {"sink": {"dispatchers": [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]}}
    return compile_feed(load_changefeed(uri, rules), "default")


def store_of(*names: str) -> SchemaStore:
    infos = [table_info(100 + at, name, columns=COLUMNS) for at, name in enumerate(names)]
    return snapshot(("d", 1, infos), ts=START)


def subjects(registry: Registry) -> list[str]:
    return [subject for subject, _ in registry.seen]


def test_ready_tables_of_avro_have_topic_and_schemas_when_rows_come_and_no_sooner() -> None:
    store, broker, registry = store_of("a", "b", "c"), Broker(), Registry()
    tables = ReadyTables(feed_of(), broker, registry)
    feed = tables.begin(cut(10, 20), None, store, feed_of())
    assert (broker.topics, subjects(registry), tables.waiting) == ({"plain"}, [], 3)
    ready = tables.make_ready(cut(10, 20), {A}, store, feed)
    assert ready is not None
    assert (broker.topics, sorted(subjects(registry))) == ({"plain", "d_a"}, ["d_a-key", "d_a-value"])
    assert ready.partitions == {"plain": 3, "d_a": 3}
    assert {subject for subject, *_ in ready.schema_ids} == {"d_a-key", "d_a-value"}
    assert tables.make_ready(cut(20, 30), {A}, store, ready) is None
    rest = tables.make_ready(cut(20, 30), None, store, ready)
    assert rest is not None
    assert (broker.topics, tables.waiting, len(rest.schema_ids)) == ({"plain", "d_a", "d_b", "d_c"}, 0, 6)


def test_ready_tables_after_a_ddl_register_what_rows_of_the_cut_may_have() -> None:
    store, registry, broker = store_of("a"), Registry(), Broker()
    for ts, extra in ((15, "one"), (25, "two"), (35, "three")):
        info = table_info(A, "a", columns=[*COLUMNS, {**column(2, extra), "offset": 1}])
        info["update_timestamp"] = ts
        query = f"ALTER TABLE a ADD {extra} INT"
        store.apply(job(ts, DdlType.ADD_COLUMN, schema_id=1, table_id=A, query=query, table_info=info))
    tables = ReadyTables(feed_of(), broker, registry)
    feed = tables.begin(cut(10, 20), None, store, feed_of())
    feed = tables.begin(cut(20, 30), Ts(20), store, feed)
    assert broker.topics == {"plain"}, "Avro sends no DDL"
    tables.make_ready(cut(20, 30), {A}, store, feed)
    values = [schema for subject, schema in registry.seen if subject == "d_a-value"]
    assert [next(name for name in ("one", "two", "three") if name in schema) for schema in values] == ["one", "two"]


def test_ready_tables_where_a_schema_is_refused_stop_at_its_rows_and_not_before() -> None:
    store, tables = store_of("a", "b"), ReadyTables(feed_of(), Broker(), Registry(refused="d_b"))
    feed = tables.begin(cut(10, 20), None, store, feed_of())
    feed = tables.make_ready(cut(10, 20), {A}, store, feed) or feed
    for _ in range(2):  # and again, until it is mended
        with pytest.raises(SchemaRefusedError, match=r"d_b.*table=d\.b"):
            tables.make_ready(cut(20, 30), {A, B}, store, feed)


def test_ready_tables_ask_the_registry_for_several_subjects_at_once() -> None:
    names = [f"t{at}" for at in range(REQUESTS_AT_ONCE)]
    store, registry = store_of(*names), Registry(together=REQUESTS_AT_ONCE)
    tables = ReadyTables(feed_of(), Broker(), registry)
    tables.make_ready(cut(10, 20), None, store, tables.begin(cut(10, 20), None, store, feed_of()))
    assert len(registry.seen) == 2 * len(names)


@pytest.mark.parametrize(("extension", "topics"), [(True, {"plain", "d_a", "d_b"}), (False, {"plain"})])
def test_ready_tables_of_a_protocol_with_watermarks_have_all_topics_at_the_start(
    extension: bool, topics: set[str]
) -> None:
    store, broker = store_of("a", "b"), Broker()
    tables = ReadyTables(feed_of("canal-json", extension), broker, None)
    tables.begin(cut(10, 20), None, store, feed_of("canal-json", extension))
    assert broker.topics == topics


def test_ready_tables_leave_a_topic_that_has_grown_as_it_is_when_another_is_new() -> None:
    store = store_of("a")
    tables = ReadyTables(feed_of("canal-json"), Broker(), None)
    feed = tables.begin(cut(10, 20), None, store, feed_of("canal-json"))
    grown = replace(feed, partitions={**feed.partitions, "plain": 6})  # sorters.run.topic_growth
    info = table_info(101, "b", columns=COLUMNS)
    store.apply(
        job(25, DdlType.CREATE_TABLE, schema_id=1, table_id=101, query="CREATE TABLE b (id INT)", table_info=info)
    )
    after = tables.begin(cut(20, 30), Ts(20), store, grown)
    assert after.partitions == {"plain": 6, "d_a": 3, "d_b": 3}
