"""State proofs and ``tidebus verify`` on a real MariaDB: TiDB's texts by its SQL, and planted differences by key."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compose.operator import verify as operator_verify
from compose.operator.verify import VerifyOptions, exit_status
from compose.stack.mariadb import LocalMariaDb
from consumers.verify.core.differences import KeyDifference
from consumers.verify.core.outcome import TableOutcome, Verdict, as_json, lines
from consumers.verify.core.proof_at import ProofAnswer, proof_at
from consumers.verify.errors import NoAncientRowsError, NothingAppliedError, RowTooLongError
from consumers.verify.tidb_source import TidbSource
from edges.zookeeper.access import ZooKeeperAccess
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import RowOp
from schemas.sink.topic import destination_feed
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.column_kind import TextForm, column_kind
from schemas.state_proof.proof_sql import Dialect, ProofColumn, text_sql, totals_sql
from schemas.state_proof.row_text import TableProof, row_hash, value_text
from tests.support.database.apply import Processor, rows, run_sql
from tests.support.database.apply_tables import A, feed, two_tables
from tests.support.database.fake_tidb import FakeTidb
from tests.support.database.mariadb import mariadb
from tests.support.database.tidb_hash import (
    RecordedValue,
    column_types,
    mounted,
    plain_digits,
    recorded_table,
    recorded_values,
)
from tests.support.database.verify import (
    MariaDbSource,
    applied,
    connector,
    pair,
    played_tidb,
    table_check,
    upstream,
)
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb", "upstream"]

INSERT, UPDATE, DELETE = RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE


@contextmanager
def session(server: LocalMariaDb) -> Iterator[Any]:
    """A cursor in the session that the recording's TiDB had."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode='NO_ENGINE_SUBSTITUTION', time_zone='+00:00'")
            cursor.execute("SET NAMES utf8mb4")
            yield cursor
    finally:
        connection.close()


def literal_for_mariadb(value: RecordedValue) -> str:
    """A JSON and a VECTOR arrive as TiDB's text."""
    shown = value.results["hex_cast_char"]
    if shown is None or value.kind.form not in {TextForm.JSON, TextForm.VECTOR}:
        return value.literal
    return f"convert(x'{shown}' using utf8mb4)"


def test_text_sql_on_mariadb_gives_tidbs_texts_of_all_recorded_values(mariadb: LocalMariaDb, feed: str) -> None:
    values = recorded_values()
    column = "c"
    with session(mariadb) as cursor:
        for number, value in enumerate(values):
            kept = "text" if value.kind.form is TextForm.VECTOR else value.type
            cursor.execute(f"CREATE TABLE d.v{number} (c {kept} NULL)")
            cursor.execute(f"INSERT INTO d.v{number} VALUES ({literal_for_mariadb(value)})")
            sql = text_sql(Dialect.MARIADB, ProofColumn(column, value.kind))
            cursor.execute(f"SELECT hex({sql}) FROM d.v{number}", ())
            ((shown,),) = cursor.fetchall()
            text = None if shown is None else bytes.fromhex(shown)
            assert text == value_text(value.kind, mounted(value)) == value.tidb_text, (value.type, value.literal)


def test_totals_sql_on_mariadb_of_the_recorded_table_is_the_proof_of_its_texts(
    mariadb: LocalMariaDb, feed: str
) -> None:
    table = recorded_table()
    types = column_types(table["ddl"])
    names = table["columns"]
    columns = [ProofColumn(name, column_kind(types[name])) for name in names]
    expected = TableProof()
    with session(mariadb) as cursor:
        definition = ", ".join(f"`{name}` {types[name]} NULL" for name in names)
        cursor.execute(f"CREATE TABLE d.w ({definition}, PRIMARY KEY (id))")
        for cells in table["rows_hex_cast_char"]:
            literals = [_literal(name, cell) for name, cell in zip(names, cells, strict=True)]
            cursor.execute(f"INSERT INTO d.w VALUES ({','.join(literals)})")
            expected = expected.changed(None, row_hash([_text(*cell) for cell in zip(names, cells, strict=True)]))
        cursor.execute(totals_sql(Dialect.MARIADB, ("d", "w"), columns), ())
        assert cursor.fetchall() == ((200, 200, expected.xor),)


def _literal(name: str, cell: str | None) -> str:
    if cell is None:
        return "NULL"
    return f"x'{cell}'" if name in {"b", "bi"} else f"convert(x'{cell}' using utf8mb4)"


def _text(name: str, cell: str | None) -> bytes | None:
    """The recording has a FLOAT's own digits; the proof takes its double's."""
    text = None if cell is None else bytes.fromhex(cell)
    return plain_digits(repr(float(np.float32(text.decode())))) if name == "f" and text is not None else text


# -- differences -------------------------------------------------------------------------------------------------------


def named(*differences: tuple[tuple[str, ...], str]) -> tuple[KeyDifference, ...]:
    return tuple(KeyDifference(key, what) for key, what in differences)  # type: ignore[arg-type]


def test_verify_of_what_processors_have_applied_says_the_same_at_the_positions_ts(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    check = table_check(upstream, feed)
    outcome = check.check(pair("a"))
    assert (outcome.verdict, outcome.source_proof.rows, outcome.differences) == (Verdict.SAME, 10, ())
    assert outcome.source_proof == outcome.destination_proof != TableProof()
    assert outcome.ts == upstream.asked[-1] >= 20
    outcome = check.check(pair("b", partition=1))
    assert (outcome.verdict, outcome.source_proof.rows) == (Verdict.SAME, 3)


def test_verify_of_planted_differences_names_their_keys(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    check = table_check(upstream, feed)
    run_sql(mariadb, "DELETE FROM d.a WHERE id = 4")
    lost = check.check(pair("a"))
    assert (lost.verdict, lost.differences) == (Verdict.DIFFERENT, named((("4",), "missing")))
    run_sql(
        mariadb,
        "INSERT INTO d.a VALUES (4, 400)",
        "UPDATE d.a SET v = CASE id WHEN 2 THEN 900 ELSE 200 END WHERE id IN (2, 9)",  # each has the other's
    )
    swapped = check.check(pair("a"))
    assert swapped.differences == named((("2",), "differs"), (("9",), "differs"))
    assert swapped.source_proof.rows == swapped.destination_proof.rows
    run_sql(mariadb, "UPDATE d.a SET v = id * 100", "INSERT INTO d.a VALUES (77, 1), (-5, 1)")
    assert check.check(pair("a")).differences == named((("-5",), "extra"), (("77",), "extra"))
    run_sql(mariadb, "UPDATE d.b SET v = 9 WHERE k = 'y'")
    by_text = check.check(pair("b", partition=1))
    assert by_text.differences == named((("1", "y"), "differs"))
    assert lines(by_text)[-1] == "  differs: id='1', k='y'"


def test_verify_names_which_of_source_proof_and_destination_is_unlike_the_others(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    carried = TableProof()
    for number in range(1, 11):
        carried = carried.changed(None, row_hash([str(number).encode(), str(number * 100).encode()]))
    state = CarriedState(
        table_id=TableId(7), table="u.a", after_ts=Ts(10), ts=Ts(20), proof=carried, columns=((1, "id"), (2, "v"))
    )
    told_states = [state, replace(state, table_id=TableId(8), table="u.b")]
    asked: list[Ts] = []

    def proofs(table: str, ts: Ts) -> ProofAnswer:
        asked.append(ts)
        return proof_at(told_states, table, ts, Ts(ts - 1 if len(asked) == 1 else ts))  # told a moment later

    check = table_check(upstream, feed, proofs=proofs, wait_s=5.0)
    same = check.check(pair("a"))
    assert (same.verdict, same.proof, same.odd, len(asked)) == (Verdict.SAME, carried, "", 2)
    assert lines(same)[-1] == "  the state proof says the same"

    run_sql(mariadb, "DELETE FROM d.a WHERE id = 4")
    lost = check.check(pair("a"))
    assert (lost.verdict, lost.odd, lost.differences) == (Verdict.DIFFERENT, "destination", named((("4",), "missing")))
    run_sql(mariadb, "DELETE FROM u.a WHERE id = 4")
    repeated = check.check(pair("a"))
    assert (repeated.verdict, repeated.odd, repeated.differences) == (Verdict.DIFFERENT, "proof", ())
    assert lines(repeated)[-1] == "  the state proof differs from source and destination, which agree"
    run_sql(mariadb, "INSERT INTO d.a VALUES (4, 400)")
    assert (check.check(pair("a")).odd, as_json(check.check(pair("a")))["odd"]) == ("source", "source")
    run_sql(mariadb, "UPDATE d.a SET v = 402 WHERE id = 5")
    assert check.check(pair("a")).odd == "all"

    run_sql(mariadb, "UPDATE d.a SET v = id * 100", "INSERT INTO u.a VALUES (4, 400)")
    for schema in ("u", "d"):
        run_sql(mariadb, f"ALTER TABLE {schema}.a ADD COLUMN late INT DEFAULT 3 FIRST")
    added = check.check(pair("a"))
    assert (added.verdict, added.odd, added.proof) == (Verdict.SAME, "", carried), "of the columns that the proof has"
    told_states.append(replace(state, ts=Ts(10**6), after_ts=Ts(1)))
    between = table_check(upstream, feed, proofs=proofs).check(pair("a"))
    assert (between.verdict, between.proof) == (Verdict.SAME, None)
    assert lines(between)[-1] == "  no state proof: of this very ts no state was told"


def test_verify_of_other_definitions_says_what_is_missing(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    check = table_check(upstream, feed)
    run_sql(mariadb, "ALTER TABLE u.a ADD COLUMN `odd``%s'name` INT DEFAULT 3, ADD COLUMN g INT AS (v + 1) VIRTUAL")
    outcome = check.check(pair("a"))
    assert (outcome.verdict, outcome.missing_columns) == (Verdict.DIFFERENT, ("odd`%s'name",))
    run_sql(mariadb, "ALTER TABLE d.a ADD COLUMN `odd``%s'name` INT DEFAULT 3")
    assert check.check(pair("a")).verdict is Verdict.SAME
    run_sql(mariadb, "DROP TABLE d.b")
    assert check.check(pair("b", partition=1)).reason == "the table is not at the destination"


def test_verify_while_a_processor_writes_is_the_same_at_each_ts(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    """What the source held at a ts is made from the log; nobody stands still for the comparison."""
    two_tables(mariadb)
    run_sql(mariadb, "CREATE TABLE u.a LIKE d.a")
    log, last = SinkLog(), 400
    log.rows(0, A, 9, *((INSERT, str(number), f"({number},0)") for number in range(5)))
    for ts in range(10, last):
        # One transaction changes two rows: half of it would show.
        log.rows(0, A, ts, *((UPDATE, str(number), f"({number},{ts})") for number in (ts % 5, (ts + 1) % 5)))
    log.watermark(last)

    def prepare(ts: Ts) -> None:
        held = dict.fromkeys(range(5), 0)
        for at in range(10, min(ts + 1, last)):
            held |= {at % 5: at, (at + 1) % 5: at}
        inserts = ",".join(f"({number},{value})" for number, value in held.items() if ts >= 9)
        run_sql(mariadb, "DELETE FROM u.a", *([f"INSERT INTO u.a VALUES {inserts}"] if inserts else []))

    upstream.prepare = prepare
    processor = Processor(mariadb, log, feed, max_txn_row=2)
    processor.open()
    check, stopped = table_check(upstream, feed), threading.Event()

    def apply() -> None:
        try:
            processor.until(last)
        finally:
            stopped.set()

    writer = threading.Thread(target=apply)
    writer.start()
    try:
        while not stopped.is_set():
            assert check.check(pair("a")).verdict is Verdict.SAME
    finally:
        writer.join()
        processor.close()
    assert check.check(pair("a")).verdict is Verdict.SAME
    assert len(set(upstream.asked)) >= 3, upstream.asked


def test_verify_where_a_ddl_is_under_way_compares_nothing(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    run_sql(mariadb, f"UPDATE tidebus.changefeed SET ddl_state = 'begun' WHERE feed = '{feed}'")
    outcome = table_check(upstream, feed).check(pair("a"))
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert "verify.table_in_motion" in outcome.reason
    assert upstream.asked == []


def test_verify_where_no_processor_has_begun_is_refused(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    with pytest.raises(NothingAppliedError):
        table_check(upstream, feed).check(pair("a"))


def test_verify_of_a_row_that_a_server_makes_no_hash_of_compares_nothing(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    """Its XOR would leave the row out in silence."""
    applied(mariadb, feed)
    run_sql(mariadb, "CREATE TABLE u.l (id INT PRIMARY KEY, s LONGTEXT)", "CREATE TABLE d.l LIKE u.l")
    ((before,),) = rows(mariadb, "SELECT @@global.max_allowed_packet")
    run_sql(mariadb, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        for schema in ("u", "d"):
            run_sql(mariadb, f"INSERT INTO {schema}.l VALUES (1, repeat('x', 600000))")
        outcome = table_check(upstream, feed).check(pair("l"))
    finally:
        run_sql(mariadb, f"SET GLOBAL max_allowed_packet = {before}")
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert RowTooLongError.code in outcome.reason


def test_tidb_source_that_is_no_tidb_is_refused(mariadb: LocalMariaDb) -> None:
    with pytest.raises(NoAncientRowsError), TidbSource(connector(mariadb))(Ts(5)):
        pass


def test_verify_command_reads_the_tidb_at_the_destinations_ts_and_shows_no_secret(
    mariadb: LocalMariaDb,
    upstream: MariaDbSource,
    feed: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    info = ChangefeedInfo(
        changefeed_id="f",
        upstream=UpstreamId("u"),
        sink_uri=mariadb.uri(""),
        start_ts=Ts(1),
        create_time="2026-01-01T00:00:00Z",
    )
    applied(mariadb, destination_feed("default", info))

    class Store:
        def get(self, changefeed_id: str, namespace: str) -> ChangefeedInfo:
            assert (changefeed_id, namespace) == ("f", "default")
            return info

        def upstream_status(self, upstream: UpstreamId) -> dict[str, Any]:
            assert upstream == "u"
            return status

    status: dict[str, Any] = {}

    @contextmanager
    def open_store(_: object, __: str) -> Iterator[Store]:
        yield Store()

    monkeypatch.setattr(operator_verify, "open_store", open_store)
    monkeypatch.setattr(operator_verify, "table_hash", lambda _, table: {"a": 0, "b": 1}[table])
    outcomes: list[TableOutcome] = []
    with FakeTidb(played_tidb(mariadb)) as tidb:
        uri = tidb.uri.replace("root@", "root:s3cret@")
        options = VerifyOptions(
            changefeed_id="f", zookeeper=ZooKeeperAccess(servers="127.0.0.1:1"), upstream_dsn=uri, wait_s=0.0
        )
        assert operator_verify.verify(options, outcomes.append, lambda text: pytest.fail(text)) == 2
        assert [(item.source, item.verdict) for item in outcomes] == [("d.a", Verdict.SAME), ("d.b", Verdict.SAME)]
        assert f"SET SESSION tidb_snapshot = '{outcomes[0].ts}'" in tidb.said
        assert exit_status(item.verdict for item in outcomes) == 0
        run_sql(mariadb, "DELETE FROM d.b WHERE k = 'z'")
        operator_verify.verify(options, outcomes.append, lambda text: pytest.fail(text))
        status["images"] = [{"namespace": "default", "id": "f", "tables_left": 1, "tables": [{"name": "d.b"}]}]
        noted: list[str] = []
        under_way: list[TableOutcome] = []
        operator_verify.verify(options, under_way.append, noted.append)
        assert len(noted) == 1
    assert outcomes[-1].differences == named((("1", "z"), "missing"))
    assert exit_status(item.verdict for item in outcomes[-2:]) == 3
    assert [item.verdict for item in under_way] == [Verdict.SAME, Verdict.NOT_COMPARED]
    assert under_way[1].reason.startswith("its image is under way; ")
    assert exit_status(item.verdict for item in under_way) == 1
    assert "s3cret" not in repr(options) + "".join(operator_verify.shown(item, in_json=True) for item in outcomes)
