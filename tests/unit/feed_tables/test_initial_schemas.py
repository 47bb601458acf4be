"""Tables that a database gets before the rows of their images: which, in what order, and as what statements."""

# ruff: noqa: E501 - partitions and what becomes of them stand beside each other

from dataclasses import replace
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import stored_table
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import PositionClass, decode_position
from schemas.sink.sql_rows import SqlDdl, decode_ddl
from schemas.sink.topic import sorter_config
from sorters.core.encode.sql.create_table import create_schema, create_table
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.initial_schemas import initial_schemas, initial_topics
from sorters.core.records.order import no_records
from tests.support.recorded.ddl_jobs import column, index, job, snapshot, table_info

START = Ts(100)
MYSQL = "mysql://u:p@h:3306/"
SNAPSHOT: dict[str, Any] = {"initial": "snapshot"}


def feed_of(config: dict[str, Any], uri: str = MYSQL) -> CompiledFeed:
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="", config={}, start_ts=START)
    feed = compile_feed(sorter_config(load_changefeed(uri, config), info, "h:1"), "default")
    return replace(feed, partitions={feed.default_topic: 2})


@pytest.fixture
def store() -> SchemaStore:
    store = snapshot(
        ("late", 1, [table_info(11, "x")]),
        ("app", 2, [table_info(12, "b"), table_info(13, "a"), table_info(14, "keyless", pk_is_handle=False)]),
    )
    made = job(
        Ts(START + 1), DdlType.CREATE_TABLE, schema="app", schema_id=2, table_id=15, table_info=table_info(15, "n")
    )
    assert store.apply(made) is not None
    return store


def sent(store: SchemaStore, feed: CompiledFeed, tables_max: int = 500) -> list[tuple[int, bytes, SqlDdl]]:
    """Return partition, position and DDL of each record."""
    batches = initial_schemas(store, START, feed, 0, tables_max=tables_max)
    return [
        (record["partition"], record["position"], decode_ddl(record["value"]))
        for batch in batches
        for record in batch.to_pylist()
    ]


@pytest.mark.parametrize("tables_max", [1, 2, 500])
def test_initial_schemas_come_before_all_else_to_every_partition(store: SchemaStore, tables_max: int) -> None:
    records = sent(store, feed_of(SNAPSHOT), tables_max)
    for partition in (0, 1):
        mine = [(position, ddl) for number, position, ddl in records if number == partition]
        assert [ddl.name for _, ddl in mine] == ["app", "late", "late.x", "app.b", "app.a"]
        assert [position for position, _ in mine] == sorted({position for position, _ in mine})
        at = [decode_position(position) for position, _ in mine]
        assert {(position.commit_ts, position.position_class) for position in at} == {(START, PositionClass.BOOTSTRAP)}
    first, *_, last = (ddl for number, _, ddl in records if number == 0)
    assert (first.query, first.ddl_type) == ("CREATE DATABASE IF NOT EXISTS `app`", DdlType.CREATE_SCHEMA)
    assert last.query.startswith("CREATE TABLE IF NOT EXISTS `app`.`a` (`id` int(11) NOT NULL, `v` int(11), ")
    assert last.plain_backslashes


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, []),
        ({**SNAPSHOT, "initial-schema": False}, []),
        ({"initial-rules": [{"matcher": ["app.a"], "initial": "snapshot"}]}, ["app", "late", "app.a"]),
        ({**SNAPSHOT, "initial-rules": [{"matcher": ["*.a", "late.*"], "initial": "none"}]}, ["app", "late", "app.b"]),
        ({**SNAPSHOT, "filter": {"rules": ["late.*"]}}, ["late", "late.x"]),
        (
            {
                **SNAPSHOT,
                "filter": {"rules": ["late.*"]},
                "sink": {
                    "dispatchers": [{"matcher": ["*.*"], "target-schema": "to_{schema}", "target-table": "r_{table}"}]
                },
            },
            ["to_late", "to_late.r_x"],
        ),
    ],
    ids=["no image", "turned off", "one by a rule", "two by no rule", "filtered", "routed"],
)
def test_initial_schemas_are_of_tables_with_an_image(
    store: SchemaStore, config: dict[str, Any], names: list[str]
) -> None:
    assert [ddl.name for number, _, ddl in sent(store, feed_of(config)) if number == 0] == names


EMPTY = ("hollow", 3, list[dict[str, Any]]())
KEYLESS = ("keyless", 4, [table_info(16, "k", pk_is_handle=False)])


def latin(schema_id: int, name: str) -> dict[str, Any]:
    return {"id": schema_id, "db_name": {"O": name, "L": name}, "charset": "latin1", "collate": "latin1_bin"}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["app", "hollow", "keyless", "app.b"]),
        ({"filter": {"rules": ["*.*", "!hollow.*"]}}, ["app", "keyless", "app.b"]),
        ({"filter": {"rules": ["hollow.x"]}}, ["hollow"]),
        ({"filter": {"rules": ["none.*"]}}, []),
        (
            {"sink": {"dispatchers": [{"matcher": ["hollow.*"], "target-schema": "to_{schema}"}]}},
            ["app", "keyless", "to_hollow", "app.b"],
        ),
        (
            {
                "sink": {
                    "dispatchers": [
                        {"matcher": ["hollow.a*"], "target-schema": "one"},
                        {"matcher": ["hollow.*"], "target-schema": "two"},
                    ]
                }
            },
            ["app", "keyless", "one", "two", "app.b"],
        ),
    ],
    ids=["all", "left out", "by a table's name", "none", "routed", "routed to two"],
)
def test_initial_schemas_have_the_schemas_that_hold_no_table_of_the_changefeed(
    config: dict[str, Any], names: list[str]
) -> None:
    store = snapshot(("app", 2, [table_info(12, "b")]), EMPTY, KEYLESS, ("mysql", 5, [table_info(17, "user")]))
    ddls = [ddl for number, _, ddl in sent(store, feed_of({**SNAPSHOT, **config})) if number == 0]
    assert [ddl.name for ddl in ddls] == names


def test_initial_schemas_have_the_empty_schemas_of_the_start_ts_whatever_has_come_since() -> None:
    store = snapshot(EMPTY, ("gone_before", 6, []))
    for ts, kind, schema_id, name in (
        (START - 2, DdlType.CREATE_SCHEMA, 7, "made_before"),
        (START - 1, DdlType.DROP_SCHEMA, 6, "gone_before"),
        (START, DdlType.CREATE_SCHEMA, 8, "made_at"),
        (START + 1, DdlType.CREATE_SCHEMA, 9, "made_after"),
        (START + 2, DdlType.DROP_SCHEMA, 7, "made_before"),
        (START + 3, DdlType.CREATE_SCHEMA, 10, "short"),
        (START + 4, DdlType.DROP_SCHEMA, 10, "short"),
    ):
        assert store.apply(job(ts, kind, schema=name, schema_id=schema_id, db_info=latin(schema_id, name))) is not None
    queries = [ddl.query for number, _, ddl in sent(store, feed_of(SNAPSHOT)) if number == 0]
    assert queries == [
        "CREATE DATABASE IF NOT EXISTS `hollow`",
        "CREATE DATABASE IF NOT EXISTS `made_at` CHARACTER SET latin1 COLLATE latin1_bin",
        "CREATE DATABASE IF NOT EXISTS `made_before` CHARACTER SET latin1 COLLATE latin1_bin",
    ]


@pytest.mark.parametrize("target", ["", "to_{schema}"])
def test_initial_schemas_have_the_charset_and_collation_of_the_source(target: str) -> None:
    store = snapshot(("app", 2, [table_info(12, "b")]))
    latin = {"id": 2, "db_name": {"O": "app", "L": "app"}, "charset": "latin1", "collate": "latin1_bin"}
    changed = job(20, DdlType.MODIFY_SCHEMA_CHARSET, schema="app", schema_id=2, db_info=latin)
    assert store.apply(changed) is not None
    config = (
        {**SNAPSHOT, "sink": {"dispatchers": [{"matcher": ["*.*"], "target-schema": target}]}} if target else SNAPSHOT
    )
    for known in (store, store.copy()):
        first = sent(known, feed_of(config))[0][2]
        name = "to_app" if target else "app"
        assert first.query == f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET latin1 COLLATE latin1_bin"


@pytest.mark.parametrize(
    "uri",
    [
        "file:///data/out?protocol=csv",
        "kafka://h:1/t?protocol=avro&schema-registry=http://h:2",
        "kafka://h:1/t?protocol=simple",
        "file:///data/out?protocol=canal-json",
    ],
)
def test_initial_schemas_go_to_no_files_and_into_no_protocol_that_has_no_ddl_or_tells_schemas(
    store: SchemaStore, uri: str
) -> None:
    feed = feed_of(SNAPSHOT, uri)
    assert list(initial_schemas(store, START, feed, 0)) in ([], [no_records()])
    assert initial_topics(store, START, feed) == set()


PER_TABLE = {
    "sink": {
        "dispatchers": [{"matcher": ["*.*"], "topic": "of_{schema}_{table}"}],
        "send-bootstrap-interval-in-sec": 0,
    }
}
"""Without simple's own bootstraps."""


@pytest.mark.parametrize("tables_max", [1, 500])
@pytest.mark.parametrize(
    "protocol",
    ["canal-json", "open-protocol", "debezium", "canal", "simple"],
)
def test_consumers_of_topics_are_told_of_tables_with_an_image_before_their_first_row(
    store: SchemaStore, protocol: str, tables_max: int
) -> None:
    feed = feed_of({**SNAPSHOT, **PER_TABLE}, f"kafka://h:1/t?protocol={protocol}")
    topics = initial_topics(store, START, feed)
    assert topics == {"of_late_x", "of_app_a", "of_app_b"}
    feed = replace(feed, partitions={**feed.partitions, **dict.fromkeys(topics, 2)})
    batches = list(initial_schemas(store, START, feed, 0, tables_max=tables_max))
    records = [record for batch in batches for record in batch.to_pylist()]
    first = [record for record in records if record["partition"] == 0]
    tables = ["of_late_x", "of_app_b", "of_app_a"]
    assert [record["topic"] for record in first] == ["t", "t", *tables]
    texts = [f"{record['key']}{record['value']}".lower() for record in first]
    for text, word in zip(texts, ("database", "database", "`x`", "`b`", "`a`"), strict=True):
        assert word in text
    positions = [record["position"] for record in first]
    assert positions == sorted(set(positions))
    for at in map(decode_position, positions):
        assert (at.commit_ts, at.start_ts, at.position_class) == (START, START, PositionClass.DDL)


def test_a_routed_table_is_told_of_in_the_topic_of_its_rows(store: SchemaStore) -> None:
    dispatcher = {"matcher": ["*.*"], "topic": "of_{schema}_{table}", "target-table": "r_{table}"}
    feed = feed_of({**SNAPSHOT, "sink": {"dispatchers": [dispatcher]}}, "kafka://h:1/t?protocol=open-protocol")
    topics = initial_topics(store, START, feed)
    feed = replace(feed, partitions={**feed.partitions, **dict.fromkeys(topics, 1)})
    batches = list(initial_schemas(store, START, feed, 0))
    queries = {record["topic"]: record["value"] for batch in batches for record in batch.to_pylist()}
    assert b"`r_a`" in queries["of_app_a"]
    assert topics == {topic for topic in queries if topic != "t"}


def made(**info: Any) -> str:
    return create_table(stored_table({**table_info(1, "we`ird"), **info}, schema_id=1, schema="d", version=Ts(5)))


TEXT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


def test_create_table_writes_strings_for_plain_backslashes() -> None:
    kind = column(2, "e", tp=247, elems=["a'b", "c\\d"], **TEXT)  # type: ignore[arg-type]
    text = column(3, "s", tp=15, flen=7, **TEXT) | {"default": "x'y\\", "comment": "it's"}  # type: ignore[arg-type]
    columns = [column(1, "id", not_null=True, flag=2), kind, text]
    assert made(cols=columns, comment="ta'ble") == (
        "CREATE TABLE IF NOT EXISTS `d`.`we``ird` (`id` int(11) NOT NULL, "
        "`e` enum('a''b','c\\d') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, "
        "`s` varchar(7) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT 'x''y\\' COMMENT 'it''s', "
        "PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */)"
        " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'ta''ble'"
    )
    assert create_schema("a`b") == "CREATE DATABASE IF NOT EXISTS `a``b`"
    assert create_schema("a", "utf8mb4", "x; DROP") == "CREATE DATABASE IF NOT EXISTS `a` CHARACTER SET utf8mb4"
    assert create_schema("a", "x; DROP", "utf8mb4_bin") == "CREATE DATABASE IF NOT EXISTS `a`"


def test_create_table_leaves_out_defaults_that_the_destination_cannot_have() -> None:
    of_sequence = column(2, "n") | {"default": "nextval(`d`.`sq`)", "default_is_expr": True}
    moment = column(3, "t", tp=7, flen=19) | {"default": "2024-01-01 00:00:00"}
    computed = column(4, "u", tp=15, flen=36, **TEXT) | {"default": "uuid()", "default_is_expr": True}  # type: ignore[arg-type]
    sql = made(cols=[column(1, "id", not_null=True, flag=2), of_sequence, moment, computed])
    assert "`n` int(11), `t` timestamp NULL, `u` varchar(36)" in sql
    assert "DEFAULT (uuid())" in sql
    assert "nextval" not in sql and "2024" not in sql


PARTITIONED: list[tuple[dict[str, Any], str]] = [
    (
        {"type": 1, "expr": "`id`", "definitions": [("p0", {"less_than": ["10"]}), ("p1", {"less_than": ["MAXVALUE"]})]},
        "RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (10), PARTITION `p1` VALUES LESS THAN (MAXVALUE))",
    ),
    (
        {"type": 1, "columns": [{"O": "id"}], "definitions": [("p0", {"less_than": ["10"]})]},
        "RANGE COLUMNS (`id`) (PARTITION `p0` VALUES LESS THAN (10))",
    ),
    (
        {"type": 3, "expr": "`id`", "definitions": [("a", {"in_values": [["1"], ["2"]]}), ("b", {"in_values": [["DEFAULT"]]})]},
        "LIST (`id`) (PARTITION `a` VALUES IN (1,2), PARTITION `b` DEFAULT)",
    ),
    (
        {"type": 3, "columns": [{"O": "id"}, {"O": "v"}], "definitions": [("a", {"in_values": [["1", "'x'"], ["2", "'y'"]]})]},
        "LIST COLUMNS (`id`,`v`) (PARTITION `a` VALUES IN ((1,'x'),(2,'y')))",
    ),
    ({"type": 2, "expr": "`id`", "definitions": [("p0", {}), ("p1", {})]}, "HASH (`id`) PARTITIONS 2"),
    (
        {"type": 2, "expr": "`id`", "definitions": [("x", {}), ("p1", {})]},
        "HASH (`id`) (PARTITION `x`, PARTITION `p1`)",
    ),
    ({"type": 4, "columns": [{"O": "id"}], "definitions": [("p0", {})]}, "KEY (`id`) PARTITIONS 1"),
]  # fmt: skip


@pytest.mark.parametrize(("partition", "text"), PARTITIONED)
def test_create_table_has_the_partitions(partition: dict[str, Any], text: str) -> None:
    definitions = [
        {"id": 50 + n, "name": {"O": name}, **more} for n, (name, more) in enumerate(partition["definitions"])
    ]
    sql = made(partition={**partition, "definitions": definitions, "enable": True})
    assert sql.endswith(f" COLLATE utf8mb4_bin PARTITION BY {text}")


def test_create_table_has_public_keys_of_rows_alone() -> None:
    state = 2
    hidden = column(3, "_V$_x_0") | {"hidden": True, "generated_expr_string": "lower(`v`)"}
    indexes = [
        index(1, "PRIMARY", [0], unique=True, primary=True),
        index(2, "u", [1], unique=True) | {"comment": "c"},
        index(3, "k", [2]),
        index(4, "not yet", [1], state=state),
        index(5, "vector", [1]) | {"vector_index": {"dimension": 3}},
    ]
    indexes[1]["idx_cols"][0]["length"] = 4
    columns = [column(1, "id", not_null=True, flag=2), column(2, "v"), hidden]
    sql = made(cols=columns, index_info=indexes, pk_is_handle=False)
    assert "PRIMARY KEY (`id`) /*T![clustered_index] NONCLUSTERED */, " in sql
    assert "UNIQUE KEY `u` (`v`(4)) COMMENT 'c', KEY `k` ((lower(`v`))))" in sql
    assert "_V$" not in sql and "not yet" not in sql and "`vector`" not in sql


def test_create_table_says_which_keys_are_over_all_partitions() -> None:
    indexes = [
        index(1, "PRIMARY", [0], unique=True, primary=True) | {"is_global": True},
        index(2, "u", [1], unique=True) | {"comment": "c", "is_global": True},
        index(3, "k", [1]) | {"is_global": False},
    ]
    sql = made(index_info=indexes, pk_is_handle=False)
    assert "PRIMARY KEY (`id`) /*T![clustered_index] NONCLUSTERED */ /*T![global_index] GLOBAL */, " in sql
    assert "UNIQUE KEY `u` (`v`) COMMENT 'c' /*T![global_index] GLOBAL */, KEY `k` (`v`))" in sql
