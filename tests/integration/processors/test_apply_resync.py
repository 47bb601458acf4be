"""A processor resyncs tables of a real MariaDB by noted keys: whatever the key is, and wherever it dies."""

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply import resync as resync_module
from consumers.processors.apply.errors import ShapeDiffersError
from consumers.processors.core.apply import noted_keys
from schemas.ddl.job import DdlType
from schemas.ids import TableId
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import ResyncStep
from tests.integration.processors.test_apply_images import killed_everywhere
from tests.support.database.apply import Crash, Faults, Processor, faulty_connections, rows, run_sql, table
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.recorded.ddl_jobs import snapshot, table_info
from tests.support.topics.sink_log import SinkLog, form
from tests.unit.images.test_image_chunks import ONE, TWO, S, inserts, raw_chunk
from tests.unit.images.test_resync import UNIQUE, database, opened, resynced, said_of
from tests.unit.images.test_routed_resync import ROUTE

__all__ = ["feed", "mariadb"]

STEP = 1 if os.environ.get("NIGHTLY_DATABASE") else 13
"""Every so manyth statement is a processor's last; all of them take some minutes."""
INSERT, UPDATE, DELETE = RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE
NOTE, DROP = ResyncStep.NOTE, ResyncStep.DELETE
T = replace(form("d.t", "k", "v", key=("k",)), notes=TableId(11))
C = replace(form("d.c", "e", "at", "v", key=("e", "at")), notes=TableId(12))
A = form("d.a", "id", "v")
C_TYPES = "enum('z','y','x')", "datetime(3)"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two keys a transaction, so that a step has several, and dies between them."""
    for module in (noted_keys, resync_module):
        monkeypatch.setattr(module, "NOTED_AT_ONCE", 2)
        monkeypatch.setattr(module, "DELETED_AT_ONCE", 2)
    yield


def c_key(member: int, second: int) -> str:
    return f"(`e`={member} AND `at`='2026-01-01 00:00:{second:02}.5')"


def c_row(member: int, second: int, value: int) -> str:
    return f"({member},'2026-01-01 00:00:{second:02}.5',{value})"


def _log() -> SinkLog:
    """Texts and a composite key, with changes before, between and behind chunks, of keys that are stale too."""
    log = SinkLog()
    log.rows(0, T, 8, (INSERT, "'w'", "('w',1)"))
    log.rows(1, A, 9, (INSERT, "1", "(1,1)"))
    log.step(10, NOTE, T, "varchar(9)")
    log.step(11, NOTE, C, *C_TYPES)
    # Came after the keys were noted: stale rows hold these keys, one of them under another case.
    log.rows(0, T, 12, (INSERT, "'NEW'", "('NEW',5)"), (DELETE, "'gone'", ""), (UPDATE, "'b'", "('b',20)"))
    log.rows(1, C, 12, (INSERT, c_key(1, 3), c_row(1, 3, 5)))
    log.watermark(13)
    log.image(0, T, 15, ("'a'", "('a',1)"), ("'b'", "('b',20)"), ("'new'", "('NEW',5)"))
    log.image(1, C, 15, (c_key(2, 1), c_row(2, 1, 1)), (c_key(1, 3), c_row(1, 3, 5)))
    log.rows(0, T, 16, (DELETE, "'a'", ""), (UPDATE, "'w'", "('w',10)"))
    log.image(0, T, 20, ("'w'", "('w',10)"))
    log.step(20, DROP, T, "varchar(9)")
    log.step(21, DROP, C, *C_TYPES)
    plain = replace(T, notes=TableId(0))
    log.rows(0, plain, 22, (INSERT, "'s1'", "('s1',7)"), (DELETE, "'w'", ""))
    log.watermark(30)
    return log


def _begin(mariadb: LocalMariaDb) -> None:
    run_sql(
        mariadb,
        *("DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)"),
        "CREATE TABLE d.t (k VARCHAR(9) COLLATE utf8mb4_general_ci, v INT, UNIQUE (k))",
        "INSERT INTO d.t VALUES ('s1', -1), ('a', -1), ('B', -1), ('new', -1), ('gone', -1), ('é', -1), ('s3', -1),"
        " ('s2', -1), (NULL, -1), (NULL, -2), (NULL, -3)",
        "CREATE TABLE d.c (e ENUM('z','y','x'), at DATETIME(3), v INT, PRIMARY KEY (at, e))",
        "INSERT INTO d.c SELECT m.e, FROM_UNIXTIME(1767225600 + s.s + 0.5), -1 FROM"
        " (SELECT 'z' AS e UNION SELECT 'y' UNION SELECT 'x') AS m, (SELECT 1 AS s UNION SELECT 2 UNION SELECT 3) AS s",
    )


def _check(mariadb: LocalMariaDb) -> None:
    assert sorted(table(mariadb, "d.t")) == [("NEW", 5), ("b", 20), ("s1", 7)]
    assert [(e, v) for e, _, v in table(mariadb, "d.c")] == [("y", 1), ("z", 5)]
    assert table(mariadb, "d.a") == [(1, 1)]


@pytest.mark.timeout(600)
def test_apply_resync_by_noted_keys_deletes_what_the_source_has_no_more_wherever_it_dies(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    log = _log()
    _begin(mariadb)
    Processor(mariadb, log, fresh_name("at once")).apply(30)
    _check(mariadb)
    died, statements = killed_everywhere(
        mariadb, log, fresh_name, lambda: _begin(mariadb), lambda: _check(mariadb), step=STEP
    )
    assert died >= statements // STEP - 5 > 5
    assert _left(mariadb) == []


def _left(mariadb: LocalMariaDb) -> list[object]:
    """Return what is left of notes."""
    tables = rows(mariadb, "SHOW TABLES FROM tidebus LIKE 'resync\\_%'")
    return [*tables, *rows(mariadb, "SELECT * FROM tidebus.resync")]


def test_apply_resync_that_began_anew_forgets_what_an_earlier_one_noted(mariadb: LocalMariaDb, feed: str) -> None:
    _begin(mariadb)
    log = SinkLog()
    log.step(10, NOTE, T, "varchar(9)")
    log.rows(0, replace(T, notes=TableId(0)), 12, (UPDATE, "'a'", "('a',1)"))  # of a resync that was not gone on with
    log.step(14, NOTE, T, "varchar(9)")
    log.image(0, T, 15, ("'a'", "('a',1)"))
    log.step(15, DROP, T, "varchar(9)")
    log.watermark(30)
    Processor(mariadb, log, feed).apply(30)
    assert table(mariadb, "d.t") == [("a", 1)]


@pytest.mark.parametrize(
    ("query", "ended", "left"),
    [
        ("ALTER TABLE `t` ADD COLUMN `w` INT", (), [("a", 1, None)]),
        ("ALTER TABLE `t` CHANGE COLUMN `k` `k` VARCHAR(20) COLLATE utf8mb4_bin", (), None),
        ("ALTER TABLE `t` COMMENT 'exchanged'", (11,), None),
    ],
    ids=["keeps the key", "other key", "other table"],
)
def test_apply_a_ddl_that_makes_keys_others_lets_no_row_be_deleted(
    mariadb: LocalMariaDb, feed: str, query: str, ended: tuple[int, ...], left: list[object] | None
) -> None:
    _begin(mariadb)
    before = len(table(mariadb, "d.t"))
    log = SinkLog()
    log.step(10, NOTE, T, "varchar(9)")
    log.image(0, T, 15, ("'a'", "('a',1)"))
    log.ddl(16, DdlType.MODIFY_COLUMN, "d.t", query, pre="d.t", table_id=11, ended=ended)
    log.rows(0, T, 17, (UPDATE, "'a'", "('a',1)"))
    log.step(20, DROP, T, "varchar(9)")
    log.watermark(30)
    Processor(mariadb, log, feed).apply(30)
    assert (table(mariadb, "d.t") == left) if left else (len(table(mariadb, "d.t")) == before)


def test_apply_resync_of_a_routed_table_leaves_the_one_of_its_source_name_alone(
    mariadb: LocalMariaDb, feed: str
) -> None:
    """What a sorter makes of a chunk, and of the keys of a table that no range tells, goes to the target alone."""
    run_sql(
        mariadb,
        *("DROP DATABASE IF EXISTS d", "DROP DATABASE IF EXISTS far", "CREATE DATABASE d", "CREATE DATABASE far"),
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("d.one", "far.x_one", "far.x_two")),
        *(f"INSERT INTO {name} VALUES (-5, -1), (3, -1), (40, -1)" for name in ("d.one", "far.x_one", "far.x_two")),
    )
    log = SinkLog()
    store = snapshot(("d", 1, [table_info(11, "one"), {**table_info(12, "two"), "pk_is_handle": False, **UNIQUE}]))
    by = database(ROUTE, store)
    log.add_all(said_of(opened(TWO), store, by))
    log.add_all(resynced(by, raw_chunk(ONE, 0, 3, 500), raw=(inserts(ONE, 7, ts=S - 9),)))
    log.watermark(S + 10)
    Processor(mariadb, log, feed).apply(S + 10)
    assert table(mariadb, "far.x_one") == [(3, 3), (500, 0)]
    assert [key for key, _ in table(mariadb, "d.one")] == [-5, 3, 40]
    assert len(table(mariadb, "far.x_two")) == 3, "its keys are noted only"


def test_apply_a_renamed_table_goes_on_being_resynced(mariadb: LocalMariaDb, feed: str) -> None:
    _begin(mariadb)
    log, renamed = SinkLog(), replace(T, table="u")
    log.step(10, NOTE, T, "varchar(9)")
    log.image(0, T, 15, ("'a'", "('a',1)"))
    log.ddl(16, DdlType.RENAME_TABLE, "d.u", "RENAME TABLE `d`.`t` TO `d`.`u`", pre="d.t", table_id=11)
    log.image(1, renamed, 20, ("'s1'", "('s1',1)"))
    log.step(20, DROP, renamed, "varchar(9)")
    log.watermark(30)
    Processor(mariadb, log, feed).apply(30)
    assert sorted(table(mariadb, "d.u")) == [("a", 1), ("s1", 1)]


@pytest.mark.parametrize(
    ("create", "differs"),
    [
        ("(k VARCHAR(9), v INT)", "it has no unique key of (k)"),
        ("(k INT PRIMARY KEY, v INT)", "its key column `k` is int(11), not varchar(9)"),
        ("", "it is not there"),
    ],
)
def test_apply_resync_of_a_table_whose_key_is_none_is_refused_before_a_row_goes(
    mariadb: LocalMariaDb, feed: str, create: str, differs: str
) -> None:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    if create:
        run_sql(mariadb, f"CREATE TABLE d.t {create}", "INSERT INTO d.t VALUES (7, 1)")
    log = SinkLog()
    log.step(10, NOTE, T, "varchar(9)")
    log.watermark(30)
    with pytest.raises(ShapeDiffersError) as caught:
        Processor(mariadb, log, feed).apply(30)
    assert caught.value.fields["differs"] == differs
    if create:
        assert len(table(mariadb, "d.t")) == 1


def _random_log(seed: int) -> tuple[SinkLog, dict[str, int], list[str]]:
    """Changes and chunks of a table of texts in any order that the image law allows: the log, what the source has at
    its end, and stale keys.
    """
    draw = random.Random(seed)
    source: dict[str, int] = {}
    log, keys, ts = SinkLog(), [f"k{number}" for number in range(9)] + ["é", "z", "z z"], 10

    def change(is_noted: bool) -> None:
        nonlocal ts
        ts += 1
        key, value = draw.choice(keys), draw.randrange(100)
        shape = replace(T, notes=TableId(11 if is_noted else 0))
        if key in source and draw.random() < 0.5:
            del source[key]
            log.rows(0, shape, ts, (DELETE, f"'{key}'", ""))
        else:
            op = UPDATE if key in source else INSERT
            source[key] = value
            log.rows(0, shape, ts, (op, f"'{key}'", f"('{key}',{value})"))

    stale = [draw.choice([key, key.upper()]) for key in draw.sample(keys, draw.randrange(len(keys) + 1))]
    for _ in range(draw.randrange(4)):
        change(is_noted=True)
    log.step(ts := ts + 1, NOTE, T, "varchar(9)")
    edges = sorted(draw.sample(range(len(keys) + 1), 3))
    for first, end in zip([0, *edges], [*edges, len(keys)], strict=True):
        for _ in range(draw.randrange(5)):
            change(is_noted=True)
        ts += 1
        if chunk := [(f"'{key}'", f"('{key}',{source[key]})") for key in keys[first:end] if key in source]:
            log.image(0, T, ts, *chunk)
    log.step(ts, DROP, T, "varchar(9)")
    for _ in range(draw.randrange(4)):
        change(is_noted=False)
    log.watermark(ts := ts + 1)
    return log, source, stale


@pytest.mark.parametrize("seed", range(200 if os.environ.get("NIGHTLY_DATABASE") else 12))
def test_apply_resync_of_any_schedule_has_the_rows_of_the_source_and_no_others(
    mariadb: LocalMariaDb, feed: str, seed: int
) -> None:
    log, source, stale = _random_log(seed)
    run_sql(
        mariadb,
        *("DROP DATABASE IF EXISTS d", "CREATE DATABASE d"),
        "CREATE TABLE d.t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
    )
    # What changes before the resync meet is as the source had it: they are no part of what it mends.
    run_sql(mariadb, *(f"INSERT INTO d.t VALUES ('{key}', -1)" for key in stale))
    end_ts = int.from_bytes(log.records[0][-1].position[:8], "big")
    one_by_one, dies_at = "worker-count=1&multi-stmt-enable=false", random.Random(seed).randrange(60)
    with faulty_connections(Faults(at=dies_at if seed % 2 else None)), contextlib.suppress(Crash):
        Processor(mariadb, log, feed, parameters=one_by_one, max_txn_row=1).apply(end_ts)
    Processor(mariadb, log, feed, revision=2).apply(end_ts)
    assert dict(table(mariadb, "d.t")) == source
