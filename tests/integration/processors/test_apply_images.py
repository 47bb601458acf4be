"""A processor writes table images into a real MariaDB: over what is there, in order, whatever dies where."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.errors import RecoverRefusedError, RowRefusedError, ShapeDiffersError
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import RowOp
from schemas.sink.topic import sorter_config
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.initial_schemas import initial_schemas
from tests.support.database.apply import START_TS, Crash, Faults, Processor, faulty_connections, rows, run_sql, table
from tests.support.database.apply_tables import A, B, feed, two_tables
from tests.support.database.mariadb import mariadb
from tests.support.recorded.ddl_jobs import job, snapshot, table_info, view_info
from tests.support.topics.sink_log import SinkLog, form

__all__ = ["feed", "mariadb"]

INSERT, UPDATE, DELETE = RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE
ONE_BY_ONE = "worker-count=2&multi-stmt-enable=false"


def _image_log() -> SinkLog:
    """Two chunks of one table, changes of both halves between and behind them, and a chunk of another table."""
    log = SinkLog()
    log.image(0, A, 10, *((str(n), f"({n},{n})") for n in range(4)))
    log.image(1, B, 10, ("(`id`=1 AND `k`='x')", "(1,'x',1)"), ("(`id`=1 AND `k`='y')", "(1,'y',2)"))
    log.watermark(11)
    log.rows(0, A, 12, (UPDATE, "1", "(1,100)"), (DELETE, "2", ""))
    log.rows(0, A, 13, (INSERT, "9", "(9,90)"))
    log.image(0, A, 20, *((str(n), f"({n},{n})") for n in range(4, 8)))
    log.rows(0, A, 21, (UPDATE, "5", "(5,500)"), (INSERT, "2", "(2,200)"))
    log.watermark(30)
    return log


SOURCE = [(0, 0), (1, 100), (2, 200), (3, 3), (4, 4), (5, 500), (6, 6), (7, 7), (9, 90)]


def test_apply_images_are_written_over_what_is_there_and_changes_over_images(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    run_sql(mariadb, "INSERT INTO d.a VALUES (1, -1), (5, -5)", "INSERT INTO d.b VALUES (1, 'x', -1)")
    Processor(mariadb, _image_log(), feed).apply(30)
    assert table(mariadb, "d.a") == SOURCE
    assert table(mariadb, "d.b") == [(1, "x", 1), (1, "y", 2)]


def test_apply_images_that_a_sorter_writes_again_change_nothing(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = _image_log()
    Processor(mariadb, log, feed).apply(30)
    for record in [record for records in log.records.values() for record in list(records)]:
        log.add(record.partition, record.position, record.key, record.value)
    log.rows(0, A, 31, (INSERT, "10", "(10,10)"))
    log.watermark(40)
    Processor(mariadb, log, feed, revision=2).apply(40)
    assert sorted(table(mariadb, "d.a")) == [*SOURCE, (10, 10)]


def killed_everywhere(  # what is applied, where, and how it is looked at
    mariadb: LocalMariaDb,
    log: SinkLog,
    fresh_name: Callable[[str], str],
    begin: Callable[[], None],
    check: Callable[[], None],
    step: int = 1,
) -> tuple[int, int]:
    """Let a processor apply a log to its end, and then others that die at each ``step``-th of its statements and have a
    successor: ``begin`` makes the destination anew before each, ``check`` looks at it behind each. Return how many
    have died, and how many statements there are.
    """
    died = 0
    begin()
    clean = Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean"), parameters=ONE_BY_ONE, max_txn_row=1).apply(30)
    check()
    for at in range(0, clean.count, step):
        feed = fresh_name("killed")
        begin()
        with faulty_connections(Faults(at=at)):
            try:
                Processor(mariadb, log, feed, parameters=ONE_BY_ONE, max_txn_row=1).apply(30)
            except Crash:
                died += 1
        Processor(mariadb, log, feed, revision=2).apply(30)
        check()
    return died, clean.count


@pytest.mark.timeout(600)
def test_apply_killed_at_every_statement_of_an_image_goes_on_exactly_once(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    log = _image_log()

    def begin() -> None:
        run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
        two_tables(mariadb)

    def check() -> None:
        assert table(mariadb, "d.a") == SOURCE

    died, statements = killed_everywhere(mariadb, log, fresh_name, begin, check)
    # Workers run their statements in another order now and then, so that the last numbers may be missed.
    assert died >= statements - 5 > 30


TABLE_BY_HAND = "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)"


@pytest.mark.parametrize(
    ("dropped", "brought_back", "by_hand"),
    [
        ("DROP TABLE `a`", "RECOVER TABLE `a`", [TABLE_BY_HAND]),
        ("DROP TABLE `a`", "FLASHBACK TABLE `a`", [TABLE_BY_HAND]),
        ("RENAME TABLE `a` TO `gone`", "FLASHBACK TABLE `b` TO `a`", [TABLE_BY_HAND]),
        ("DROP DATABASE `d`", "FLASHBACK DATABASE `d`", ["CREATE DATABASE d", TABLE_BY_HAND]),
    ],
)
def test_apply_a_table_that_is_not_recovered_there_is_made_empty_and_backfilled(
    mariadb: LocalMariaDb, feed: str, dropped: str, brought_back: str, by_hand: list[str]
) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 8, *((INSERT, str(n), f"({n},{n})") for n in range(1, 5)))
    if "DATABASE" in dropped:
        log.ddl(9, DdlType.DROP_SCHEMA, "d", dropped)
        log.ddl(10, DdlType.RECOVER_SCHEMA, "d", brought_back)
    else:
        log.ddl(9, DdlType.DROP_TABLE, "d.a", dropped, pre="d.a")
        log.ddl(10, DdlType.RECOVER_TABLE, "d.a", brought_back)
    log.rows(0, A, 11, (UPDATE, "1", "(1,100)"), (DELETE, "2", ""), (INSERT, "9", "(9,90)"))
    log.image(0, A, 20, ("1", "(1,100)"), ("3", "(3,3)"), ("4", "(4,4)"), ("9", "(9,90)"))
    log.rows(0, A, 21, (UPDATE, "3", "(3,300)"))
    log.watermark(30)
    with pytest.raises(RecoverRefusedError, match="`tidebus table backfill`"):
        Processor(mariadb, log, feed).apply(30)
    run_sql(mariadb, *by_hand)
    Processor(mariadb, log, feed, revision=2).apply(30)
    assert table(mariadb, "d.a") == [(1, 100), (3, 300), (4, 4), (9, 90)]


R = form("d.r", "a", "b", "v", key=("a", "b"))


def _resync_log() -> SinkLog:
    """Two chunks of each table, which lack rows, with changes of the same keys before, between and behind them."""
    log = SinkLog()
    log.rows(0, A, 8, (INSERT, "50", "(50,1)"))
    log.rows(0, A, 9, (DELETE, "50", ""))
    log.lacks(0, A, 10, "(`id`<5 AND `id` NOT IN (1,3))")
    log.image(0, A, 10, ("1", "(1,1)"), ("3", "(3,3)"))
    log.lacks(1, R, 10, "((`a`,`b`) NOT IN ((1,1)))")
    log.image(1, R, 10, ("(`a`=1 AND `b`=1)", "(1,1,1)"))
    log.watermark(11)
    log.rows(0, A, 12, (INSERT, "2", "(2,200)"), (DELETE, "3", ""), (INSERT, "7", "(7,700)"))
    log.lacks(0, A, 20, "(`id`>=5 AND `id`<=7 AND `id` NOT IN (7))", "(`id`>7)")
    log.image(0, A, 20, ("7", "(7,700)"))
    log.rows(0, A, 21, (INSERT, "6", "(6,600)"), (INSERT, "90", "(90,9)"))
    log.rows(1, R, 21, (INSERT, "(`a`=2 AND `b`=1)", "(2,1,2)"))
    log.watermark(30)
    return log


def _plant(mariadb: LocalMariaDb) -> None:
    """Rows that the source has no more, in every range, at keys too that are written anew later."""
    run_sql(
        mariadb,
        "INSERT INTO d.a VALUES (-9, -1), (0, -1), (1, -1), (2, -1), (4, -1), (5, -1), (6, -1), (8, -1), (90, -1)",
        "CREATE TABLE d.r (a INT, b INT, v INT, PRIMARY KEY (a, b))",
        "INSERT INTO d.r VALUES (1, 1, -1), (1, 2, -1), (2, 1, -1), (3, 1, -1)",
    )


RESYNCED = [(1, 1), (2, 200), (6, 600), (7, 700), (90, 9)]


@pytest.mark.timeout(600)
def test_apply_resync_deletes_what_chunks_lack_and_nothing_that_came_later_wherever_it_dies(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    log = _resync_log()

    def begin() -> None:
        run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
        two_tables(mariadb)
        _plant(mariadb)

    def check() -> None:
        assert sorted(table(mariadb, "d.a")) == RESYNCED
        assert sorted(table(mariadb, "d.r")) == [(1, 1, 1), (2, 1, 2)]

    begin()
    Processor(mariadb, log, fresh_name("at once")).apply(30)
    check()
    died, statements = killed_everywhere(mariadb, log, fresh_name, begin, check, step=2)
    assert died >= statements // 2 - 5 > 10


@pytest.mark.parametrize(
    ("columns", "differs"),
    [
        ("key_id INT PRIMARY KEY", "it lacks column `id`"),
        ("id VARCHAR(9) PRIMARY KEY", "is no whole number but varchar"),
    ],
)
def test_apply_resync_of_a_table_whose_key_is_another_is_refused_before_a_row_goes(
    mariadb: LocalMariaDb, feed: str, columns: str, differs: str
) -> None:
    run_sql(mariadb, f"CREATE TABLE d.a ({columns}, v INT)", "INSERT INTO d.a VALUES ('5', 1)")
    log = SinkLog()
    log.lacks(0, A, 10, "(`id`>3)")
    log.watermark(20)
    with pytest.raises(ShapeDiffersError) as caught:
        Processor(mariadb, log, feed).apply(20)
    assert differs in str(caught.value.fields["differs"])
    assert len(table(mariadb, "d.a")) == 1


U = replace(form("d.u", "id", "u"), uniques=(("id",), ("u",)))


def test_apply_image_row_takes_the_place_of_rows_that_hold_its_unique_keys(mariadb: LocalMariaDb, feed: str) -> None:
    """Both keys of the image's second row are another stale row's; neither is in the image's way."""
    run_sql(mariadb, "CREATE TABLE d.u (id INT PRIMARY KEY, u INT UNIQUE)", "INSERT INTO d.u VALUES (2, 7), (3, 8)")
    log = SinkLog()
    log.image(0, U, 10, ("1", "(1,7)"), ("2", "(2,8)"))
    log.watermark(20)
    Processor(mariadb, log, feed).apply(20)
    assert table(mariadb, "d.u") == [(1, 7), (2, 8)]


@pytest.mark.parametrize(
    ("create", "differs"),
    [
        ("", "it is not there"),
        ("(id INT PRIMARY KEY)", "it lacks column `v`"),
        ("(id INT PRIMARY KEY, v INT AS (id + 1) STORED)", "it generates column `v`"),
        ("(id INT, v INT, PRIMARY KEY (id, v))", "it has no unique key of (id)"),
        ("(id INT, v INT, KEY (id))", "it has no unique key of (id)"),
        ("(id INT PRIMARY KEY, v INT UNIQUE)", "its unique key of (v) may hold one row where the source has several"),
        ("(id INT PRIMARY KEY, v INT, w INT NOT NULL)", "its column `w` has no default"),
    ],
    ids=["absent", "no column", "generated", "wider key", "no unique key", "another unique key", "needed column"],
)
def test_apply_image_of_another_shape_is_refused_before_its_first_row(
    mariadb: LocalMariaDb, feed: str, create: str, differs: str
) -> None:
    if create:
        run_sql(mariadb, f"CREATE TABLE d.a {create}")
    log = SinkLog()
    log.image(0, A, 10, ("1", "(1,1)"))
    log.watermark(20)
    with pytest.raises(ShapeDiffersError) as caught:
        Processor(mariadb, log, feed).apply(20)
    fields = caught.value.fields
    assert (caught.value.code, fields["table"]) == ("apply.shape_differs", "d.a")
    assert differs in str(fields["differs"])
    assert (fields["source_columns"], fields["source_key"]) == (["id", "v"], ["id"])
    run_sql(mariadb, "DROP TABLE IF EXISTS d.a", "CREATE TABLE d.a (id INT, V INT, w INT DEFAULT 5, UNIQUE (ID))")
    Processor(mariadb, log, feed, revision=2).apply(20)
    assert table(mariadb, "d.a") == [(1, 1, 5)]


def test_apply_changes_alone_ask_for_no_shape(mariadb: LocalMariaDb, feed: str) -> None:
    run_sql(mariadb, "CREATE TABLE d.a (id INT, v INT)")
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,1)"))
    log.watermark(20)
    Processor(mariadb, log, feed).apply(20)
    assert table(mariadb, "d.a") == [(1, 1)]


def _start_log() -> SinkLog:
    """Tables as of the start, before anything else; a DDL of one of them; then its rows."""
    log = SinkLog()
    log.ddl(START_TS, DdlType.CREATE_SCHEMA, "made.", "CREATE DATABASE IF NOT EXISTS `made`", restored=True, at_start=0)
    for number, (name, columns) in enumerate((("a", "`id` INT PRIMARY KEY, `v` INT"), ("b", "`id` INT PRIMARY KEY"))):
        query = f"CREATE TABLE IF NOT EXISTS `made`.`{name}` ({columns})"
        log.ddl(START_TS, DdlType.CREATE_TABLE, f"made.{name}", query, restored=True, at_start=2**64 + number)
    log.ddl(5, DdlType.ADD_COLUMN, "made.b", "ALTER TABLE `made`.`b` ADD COLUMN `v` INT", pre="made.b")
    log.image(0, form("made.a", "id", "v"), 10, ("1", "(1,1)"))
    log.image(1, form("made.b", "id", "v"), 10, ("1", "(1,1)"))
    log.watermark(20)
    return log


@pytest.mark.timeout(600)
def test_apply_makes_tables_as_of_the_start_before_all_else_wherever_it_dies(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    def check() -> None:
        assert (table(mariadb, "made.a"), table(mariadb, "made.b")) == ([(1, 1)], [(1, 1)])
        run_sql(mariadb, "DROP DATABASE made")

    log, clean = _start_log(), Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean"), parameters=ONE_BY_ONE).apply(20)
    check()
    for at in range(0, clean.count, 3):
        feed = fresh_name("killed")
        with faulty_connections(Faults(at=at)), contextlib.suppress(Crash):
            Processor(mariadb, log, feed, parameters=ONE_BY_ONE).apply(20)
        Processor(mariadb, log, feed, revision=2).apply(20)
        check()


def test_apply_leaves_tables_that_are_there_as_they_are(mariadb: LocalMariaDb, feed: str) -> None:
    run_sql(mariadb, "CREATE DATABASE made", "CREATE TABLE made.a (id INT PRIMARY KEY, v INT, w INT DEFAULT 3)")
    Processor(mariadb, _start_log(), feed).apply(20)
    assert rows(mariadb, "SELECT * FROM made.a") == [(1, 1, 3)]
    run_sql(mariadb, "DROP DATABASE made")


def _log_with_views() -> SinkLog:
    """A table as of the start under a route, and two views, of which the first reads the second; then a row."""
    low = view_info(21, "low", "SELECT `id` AS `id`,`v` AS `v` FROM `d`.`a` WHERE `v`>0", "id", "n", view_security=1)
    top = view_info(20, "top", "SELECT `x`.`n` AS `n` FROM `d`.`low` AS `x`", "w")
    store = snapshot(("d", 1, [table_info(11, "a"), top, low]), ts=START_TS)
    route = {"matcher": ["d.*"], "target-schema": "made"}
    config = load_changefeed("mysql://u:p@h:1/", {"initial": "snapshot", "sink": {"dispatchers": [route]}})
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="", config={}, start_ts=START_TS)
    compiled = compile_feed(sorter_config(config, info, "h:1"), "default")
    log = SinkLog()
    for batch in initial_schemas(
        store, START_TS, replace(compiled, partitions={compiled.default_topic: log.partitions}), 0
    ):
        for record in batch.to_pylist():
            log.add(record["partition"], record["position"], record["key"], record["value"])
    log.image(0, form("made.a", "id", "v"), 10, ("1", "(1,5)"), ("2", "(2,0)"))
    log.watermark(20)
    return log


@pytest.mark.timeout(600)
def test_apply_makes_views_as_of_the_start_behind_what_they_read_wherever_it_dies(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    def check() -> None:
        assert (table(mariadb, "made.low"), table(mariadb, "made.top")) == ([(1, 5)], [(5,)])
        made = "SELECT table_name, security_type FROM information_schema.views WHERE table_schema = 'made' ORDER BY 1"
        assert rows(mariadb, made) == [("low", "INVOKER"), ("top", "DEFINER")]

    run_sql(mariadb, "DROP DATABASE IF EXISTS made")
    log, clean = _log_with_views(), Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean"), parameters=ONE_BY_ONE).apply(20)
    check()
    for at in range(0, clean.count, 4):  # from the second one on the views are there
        feed = fresh_name("killed")
        with faulty_connections(Faults(at=at)), contextlib.suppress(Crash):
            Processor(mariadb, log, feed, parameters=ONE_BY_ONE).apply(20)
        Processor(mariadb, log, feed, revision=2).apply(20)
        check()
        if at % 8 == 0:
            run_sql(mariadb, "DROP DATABASE made")
    run_sql(mariadb, "DROP DATABASE IF EXISTS made")


def test_apply_row_that_is_refused_within_an_image_is_named(mariadb: LocalMariaDb, feed: str) -> None:
    run_sql(mariadb, "CREATE TABLE d.a (id INT PRIMARY KEY, v TINYINT)")
    log = SinkLog()
    log.image(0, A, 10, ("1", "(1,1)"), ("2", "(2,20000)"))
    log.watermark(20)
    with pytest.raises(RowRefusedError) as caught:
        Processor(mariadb, log, feed).apply(20)
    assert (caught.value.fields["key"], caught.value.fields["commit_ts"]) == ("2", 10)
    assert table(mariadb, "d.a") == []


def test_apply_of_a_table_that_is_renamed_into_the_filter_makes_it_before_its_image(
    mariadb: LocalMariaDb, feed: str
) -> None:
    info = table_info(11, "a")
    store = snapshot(("d", 1, [{**info, "name": {"O": "away", "L": "away"}}]))
    change = store.apply(job(12, DdlType.RENAME_TABLE, schema_id=1, table_id=11, table_info=info))
    assert change is not None
    config = load_changefeed("kafka://h:1/t?protocol=canal-json", {"initial": "snapshot", "filter": {"rules": ["d.a"]}})
    (event,) = events_to_send(change, compile_feed(config, "default"))
    log = SinkLog()
    log.ddl(12, event.type, "d.a", event.query, restored=event.restored)
    log.image(0, A, 20, ("1", "(1,1)"), ("2", "(2,2)"))
    log.rows(0, A, 21, (UPDATE, "2", "(2,20)"))
    log.watermark(30)
    Processor(mariadb, log, feed).apply(30)
    assert table(mariadb, "d.a") == [(1, 1), (2, 20)]
