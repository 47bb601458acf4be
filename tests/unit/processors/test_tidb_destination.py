"""What a TiDB destination is told, against what TiCDC told one; it answers by MySQL's protocol."""

import hashlib
import re
from collections.abc import Callable, Mapping

import pymysql
import pytest

from consumers.processors.apply.begin import DatabaseSides
from consumers.processors.apply.connection import Connector, is_tidb
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import DdlRefusedError, DestinationRefusedError, RecoverRefusedError
from consumers.processors.apply.fingerprint import fingerprint, is_as_before
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.core.apply.partition import DdlMark
from consumers.processors.core.apply.statements import StatementSettings
from consumers.processors.processor import ProcessorInputs, ProcessorOptions
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, decode_changefeed_info, encode_changefeed_info
from schemas.sink.sql_rows import SqlDdl
from tests.support.database.fake_tidb import Affected, Answer, FakeTidb
from tests.support.database.tidb_catalog import TidbCatalog
from tests.support.recorded.recording import TIDB_DATA, read_jsonl

RECORDED = TIDB_DATA.parent / "ticdc-sql"
MARIADB = "5.5.5-10.11.6-MariaDB"
TIDB_ONLY = (
    "allow_auto_random_explicit_insert",
    "tidb_cdc_write_source",
    "tidb_enable_external_ts_read",
    "tidb_placement_mode",
    "tidb_txn_mode",
)
SYNTAX = (1064, "You have an error in your SQL syntax")


def settings(sql: str) -> dict[str, str]:
    """Return the session variables of a SET, in lower case and without quotes."""
    assignments = re.findall(
        r"(?:@@SESSION\.|SET SESSION |, )`?(\w+)`? ?= ?(?:_UTF8MB4)?('[^']*'|[\w+:]+)", sql, re.IGNORECASE
    )
    return {name.lower(): value.strip("'").lower() for name, value in assignments}


def recorded(name: str) -> dict[str, str]:
    """Return what TiCDC's sink set in the sessions that wrote rows."""
    lines = list(read_jsonl(RECORDED / f"{name}.jsonl.zst"))
    writers = {line["conn"] for line in lines if line["sql"].startswith("REPLACE INTO")}
    variables: dict[str, str] = {}
    for line in lines:
        if line["conn"] in writers and line["sql"].startswith("SET @@SESSION"):
            variables |= settings(line["sql"])
    return variables


def knows(*names: str) -> Callable[[str], Answer]:
    """Answer as a server that has these variables."""

    def answer(sql: str) -> Answer:
        if sql.startswith("SHOW SESSION VARIABLES"):
            return [(name, "x") for name in names if f"'{name}'" in sql]
        for name in TIDB_ONLY:
            if sql.startswith("SET") and name in sql and name not in names:
                return 1193, f"Unknown system variable '{name}'"
        return SYNTAX if "tidb_version()" in sql and not names else None

    return answer


def session(server: FakeTidb) -> dict[str, str]:
    config = load_changefeed(server.uri)
    assert config.uri.server is not None
    Connector(config.uri.server, config)().close()
    variables: dict[str, str] = {}
    for sql in server.said:
        variables |= settings(sql)
    return variables


@pytest.mark.parametrize("name", ["classic", "new"])
def test_a_tidb_gets_the_session_variables_that_ticdc_sets(name: str) -> None:
    with FakeTidb(knows(*TIDB_ONLY)) as server:
        variables = session(server)
    expected = recorded(name)
    assert set(TIDB_ONLY) <= set(expected)
    for variable in (*TIDB_ONLY, "foreign_key_checks"):
        assert variables[variable] == expected[variable], variable


def test_a_tidb_that_gives_itself_out_as_mysql_gets_them_too() -> None:
    with FakeTidb(knows(*TIDB_ONLY), version="8.0.36") as server:
        assert session(server)["allow_auto_random_explicit_insert"] == "1"


@pytest.mark.parametrize("lacks", TIDB_ONLY)
def test_an_older_tidb_gets_those_that_it_knows(lacks: str) -> None:
    known = [name for name in TIDB_ONLY if name != lacks]
    with FakeTidb(knows(*known)) as server:
        variables = session(server)
    assert set(known) <= set(variables)


def test_a_mariadb_gets_none_of_a_tidbs() -> None:
    with FakeTidb(knows(), version=MARIADB) as server:
        variables = session(server)
    assert not set(TIDB_ONLY) & set(variables)
    assert variables["foreign_key_checks"] == "0"


def tidb(ids: Mapping[str, int], refused: Mapping[str, Answer] | None = None) -> Callable[[str], Answer]:
    """Answer as a TiDB whose tables have ids; ``refused``: beginnings of statements and what they end with."""
    known = knows(*TIDB_ONLY)

    def answer(sql: str) -> Answer:
        for start, refusal in (refused or {}).items():
            if sql.startswith(start):
                return refusal
        if sql.startswith("CHECKSUM TABLE"):
            return SYNTAX
        if sql.startswith("SHOW CREATE"):
            return [("name", "as ever")]
        if "tidb_table_id" in sql:
            return [(str(number),) for name, number in ids.items() if f"'{name}'" in sql]
        return [("1",)] if sql.startswith("SELECT") else known(sql)

    return answer


def connected(server: FakeTidb) -> pymysql.connections.Connection:
    config = load_changefeed(server.uri)
    assert config.uri.server is not None
    connection: pymysql.connections.Connection = Connector(config.uri.server, config)()
    return connection


EXCHANGE = SqlDdl(
    commit_ts=Ts(10),
    ddl_type=DdlType.EXCHANGE_PARTITION,
    schema="rec",
    table="rp",
    pre_schema="rec",
    pre_table="ex",
    query="ALTER TABLE `rec`.`rp` EXCHANGE PARTITION `p1` WITH TABLE `rec`.`ex`",
)


@pytest.mark.parametrize("version", ["8.0.11-TiDB-v8.5.4", "8.0.36"])
def test_exchange_partition_at_a_tidb_is_noticed_by_the_tables_id(version: str) -> None:
    # TiDB gives the plain table the partition's id, and the partition the table's: as upstream's own jobs show.
    ids = {"ex": 134}
    with FakeTidb(tidb(ids), version) as server:
        connection = connected(server)
        assert is_tidb(connection)
        before = fingerprint(connection, EXCHANGE)
        assert fingerprint(connection, EXCHANGE) == before
        ids["ex"] = 120
        assert fingerprint(connection, EXCHANGE) != before
        connection.close()


ADD_INDEX = SqlDdl(
    commit_ts=Ts(10),
    ddl_type=DdlType.ADD_INDEX,
    schema="rec",
    table="t",
    pre_schema="rec",
    pre_table="t",
    query="ALTER TABLE `t` ADD INDEX `i`(`v`)",
)
AUTO_RANDOM = (
    "CREATE TABLE `t` (`id` bigint NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */, `v` int%s) ENGINE=InnoDB"
    "%s /*T![auto_id_cache] AUTO_ID_CACHE=1 */"
)
"""What a TiDB shows; its base is moved by the rows that a changefeed writes."""


def of_a_table(shown: list[str]) -> Callable[[str], Answer]:
    """Answer as a TiDB that shows a table so."""
    known = tidb({})
    return lambda sql: [("t", shown[0])] if sql.startswith("SHOW CREATE TABLE") else known(sql)


def test_rows_of_an_auto_random_table_are_not_taken_for_its_ddl() -> None:
    base = " /*T![auto_rand_base] AUTO_RANDOM_BASE=%d */"
    shown = [AUTO_RANDOM % ("", "")]
    with FakeTidb(of_a_table(shown)) as server:
        connection = connected(server)
        before = fingerprint(connection, ADD_INDEX)
        for moved in (base % 30001, base % 60001):
            shown[0] = AUTO_RANDOM % ("", moved)
            assert is_as_before(connection, ADD_INDEX, before), moved
        shown[0] = AUTO_RANDOM % (", KEY `i` (`v`)", base % 60001)
        assert not is_as_before(connection, ADD_INDEX, before)
        shown[0] = (AUTO_RANDOM % ("", "")).replace("CACHE=1", "CACHE=2")
        assert not is_as_before(connection, ADD_INDEX, before), "of a DDL"
        connection.close()


def test_what_a_release_before_noted_of_an_auto_random_table_is_known() -> None:
    shown = AUTO_RANDOM % ("", " /*T![auto_rand_base] AUTO_RANDOM_BASE=30001 */")
    parts = [str((("name", "as ever"),)), str((("t", shown),))]
    before = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    with FakeTidb(of_a_table([shown])) as server:
        connection = connected(server)
        assert is_as_before(connection, ADD_INDEX, before)
        assert not is_as_before(connection, ADD_INDEX, None)
        connection.close()


@pytest.mark.parametrize(
    ("version", "tidb_only", "ts"),
    [
        ("8.0.11-TiDB-v8.5.4", TIDB_ONLY, "449999999999999999"),
        ("8.0.36", TIDB_ONLY, "449999999999999999"),
        (MARIADB, (), "0"),
    ],
)
def test_syncpoint_has_the_ts_of_a_tidb_whatever_version_that_shows(
    version: str, tidb_only: tuple[str, ...], ts: str
) -> None:
    known = knows(*tidb_only)

    def answer(sql: str) -> Answer:
        if "tidb_current_ts" in sql:
            return [(ts,)]
        if sql.startswith("INSERT IGNORE INTO tidb_cdc") or "tidebus.changefeed" in sql:
            return Affected(1)
        return known(sql) if "tidb_version()" in sql or not sql.startswith("SELECT") else [("1",)]

    with FakeTidb(answer, version) as server:
        config = load_changefeed(server.uri)
        assert config.uri.server is not None
        destination = DatabaseDestination(Connector(config.uri.server, config), "feed", 1, StatementSettings())
        writer = SyncpointWriter(
            destination=destination,
            cluster="c",
            changefeed_id="f",
            namespace="default",
            start_ts=Ts(1),
            interval_s=30,
            retention_s=60,
        )
        writer.write(Ts(5 << 18))
        (noted,) = [sql for sql in server.said if sql.startswith("INSERT IGNORE INTO tidb_cdc")]
        assert noted.endswith(f"VALUES ('c', 'f', '{5 << 18}', '{ts}')")
        assert any("tidb_external_ts = " in sql for sql in server.said) is (ts != "0")


def recover(query: str, ddl_type: DdlType = DdlType.RECOVER_TABLE) -> SqlDdl:
    return SqlDdl(
        commit_ts=Ts(10),
        ddl_type=ddl_type,
        schema="rec",
        table="" if ddl_type is DdlType.RECOVER_SCHEMA else "lk",
        pre_schema="",
        pre_table="",
        query=query,
    )


def run(server: FakeTidb, ddl: SqlDdl, *, leads: bool = False) -> None:
    config = load_changefeed(server.uri)
    assert config.uri.server is not None
    destination = DatabaseDestination(Connector(config.uri.server, config), "feed", 1, StatementSettings())
    if leads:
        destination.lead(1, bytes(16))
    DdlRunner(destination=destination).run(DdlMark(b"p", Ts(9), ddl, 0))


@pytest.mark.parametrize(
    "refusal",
    [SYNTAX, (1105, "Can't find dropped/truncated table 'lk' in GC safe point 2026-11-22 14:00:00 +0000 UTC")],
)
def test_a_recover_that_the_destination_cannot_follow_is_a_stop_of_its_own(refusal: Answer) -> None:
    with (
        FakeTidb(tidb({}, {"RECOVER TABLE": refusal})) as server,
        pytest.raises(RecoverRefusedError, match="`tidebus table backfill`") as caught,
    ):
        run(server, recover("RECOVER TABLE `lk`"))
    assert caught.value.code == "apply.recover_refused"
    assert (caught.value.fields["table"], caught.value.fields["commit_ts"]) == ("rec.lk", 10)


@pytest.mark.parametrize("refusal", [SYNTAX, (1105, "Can't find dropped table 'lk' in GC safe point 2026-11-22")])
def test_a_flashback_that_the_destination_cannot_follow_says_what_to_make_by_hand(refusal: Answer) -> None:
    with (
        FakeTidb(tidb({}, {"FLASHBACK": refusal})) as server,
        pytest.raises(RecoverRefusedError, match="create the table there, empty, and resume"),
    ):
        run(server, recover("FLASHBACK TABLE `lk_old` TO `lk`"))
    with (
        FakeTidb(tidb({}, {"FLASHBACK": refusal})) as server,
        pytest.raises(RecoverRefusedError, match="create the database with all its tables there, empty") as caught,
    ):
        run(server, recover("FLASHBACK DATABASE `rec`", DdlType.RECOVER_SCHEMA))
    assert (caught.value.code, caught.value.fields["table"]) == ("apply.recover_refused", "rec")


def test_a_flashback_runs_at_a_tidb_that_has_what_was_dropped() -> None:
    catalog = TidbCatalog()
    with catalog.serve() as served:
        for sql in ("CREATE DATABASE `rec`", "CREATE TABLE `rec`.`lk` (a INT)", "DROP TABLE `rec`.`lk`"):
            catalog.answer(sql)
        run(served.server, recover("FLASHBACK TABLE `lk` TO `back`"), leads=True)
        assert catalog.tables == {"rec.back"}
        catalog.answer("DROP DATABASE `rec`")
        # No USE of a database that is not there yet: a TiDB would refuse it.
        run(served.server, recover("FLASHBACK DATABASE `rec`", DdlType.RECOVER_SCHEMA), leads=True)
        assert catalog.tables == {"rec.back"}
        catalog.answer("DROP DATABASE `rec`")
        run(served.server, recover("FLASHBACK DATABASE `rec` TO `rec3`", DdlType.RECOVER_SCHEMA), leads=True)
        assert catalog.tables == {"rec3.back"}


def test_a_recover_that_we_may_not_do_is_none() -> None:
    refusal = (1142, "RECOVER command denied")
    with FakeTidb(tidb({}, {"RECOVER TABLE": refusal})) as server, pytest.raises(DdlRefusedError) as caught:
        run(server, recover("RECOVER TABLE `lk`"))
    assert caught.value.code == "apply.ddl_refused"


def test_a_recover_by_upstreams_job_names_the_table_instead() -> None:
    with FakeTidb(tidb({})) as server:
        run(server, recover("RECOVER TABLE BY JOB 412"))
    assert "RECOVER TABLE `rec`.`lk`" in server.said
    assert not any("JOB" in sql for sql in server.said)


@pytest.mark.parametrize("multi_statements", [True, False], ids=["rows", "ddl"])
@pytest.mark.parametrize(
    "known", [(), tuple(name for name in TIDB_ONLY if name != "tidb_cdc_write_source")], ids=["no TiDB", "older TiDB"]
)
def test_bdr_mode_needs_a_destination_that_marks_our_writes(known: tuple[str, ...], multi_statements: bool) -> None:
    with FakeTidb(knows(*known)) as server:
        config = load_changefeed(server.uri, {"bdr-mode": True})
        assert config.uri.server is not None
        with pytest.raises(DestinationRefusedError, match="tidb_cdc_write_source"):
            Connector(config.uri.server, config)(multi_statements=multi_statements)


@pytest.mark.parametrize("multi_statements", [True, False], ids=["rows", "ddl"])
def test_bdr_mode_marks_each_session_of_a_tidb(multi_statements: bool) -> None:
    with FakeTidb(knows(*TIDB_ONLY)) as server:
        config = load_changefeed(server.uri, {"bdr-mode": True})
        assert config.uri.server is not None
        Connector(config.uri.server, config)(multi_statements=multi_statements).close()
        assert "SET SESSION tidb_cdc_write_source=1" in server.said


@pytest.mark.parametrize("multi_statements", [True, False], ids=["rows", "ddl"])
def test_each_session_of_a_tidb_is_marked_with_the_upstreams_source_id(multi_statements: bool) -> None:
    with FakeTidb(knows(*TIDB_ONLY)) as server:
        info = ChangefeedInfo(
            changefeed_id="cf", upstream=UpstreamId("u"), sink_uri=server.uri, start_ts=Ts(1), source_id=2
        )
        info = decode_changefeed_info(encode_changefeed_info(info))
        config = load_changefeed(server.uri)
        options = ProcessorOptions(
            changefeed_id="cf", kafka=KafkaAccess("127.0.0.1:1"), zookeeper=ZooKeeperAccess("127.0.0.1:1")
        )
        sides = DatabaseSides(ProcessorInputs(options=options, info=info, config=config, stopped=lambda: False))
        sides.destination(0).connect(multi_statements=multi_statements).close()
        sides.source.close()
        marks = [sql for sql in server.said if "tidb_cdc_write_source" in sql]
    assert marks == ["SET SESSION tidb_cdc_write_source=2"]
