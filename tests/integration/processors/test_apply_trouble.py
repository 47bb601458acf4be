"""A MariaDB that fills up, is killed, or wants TLS: the processor says so, and goes on once that is over."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from compose.stack.mariadb import LocalMariaDb
from compose.stack.secure.certificates import Authority, Pair
from consumers.processors.apply.connection import Connector, select
from consumers.processors.apply.errors import DestinationRefusedError, DestinationUnreachableError
from schemas.config.changefeed import load_changefeed
from schemas.errors import Action
from schemas.sink.position import RowOp
from tests.support.database.apply import Processor, rows, run_sql, table
from tests.support.database.mariadb import started_or_skip
from tests.support.topics.sink_log import SinkLog, form

A = form("d.a", "id", "v")
PATIENCE_S = 120.0
BIG_BYTES = 8000
"""Of a row: two on a page, and no page of its own for the rest."""
FULL_ROWS = 200


@dataclass(frozen=True)
class Server:
    """One MariaDB with TLS, whose tables share one file that may not grow."""

    mariadb: LocalMariaDb
    ca: str
    client: Pair
    other_ca: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("trouble")
    authority, other = Authority(folder), Authority(folder, "other")
    own = authority.issue("server")
    options = (f"--ssl-ca={authority.path}", f"--ssl-cert={own.cert}", f"--ssl-key={own.key}")
    room = ("--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M;ibdata2:8M")
    with started_or_skip(LocalMariaDb(data=folder / "mariadb", options=(*options, *room))) as mariadb:
        yield Server(mariadb, authority.path, authority.issue("client"), other.path)
        assert mariadb.child is not None
        mariadb.child.kill()  # a proper end takes it 15 s, to clean up what nobody reads again


@pytest.fixture
def mariadb(server: Server) -> LocalMariaDb:
    run_sql(server.mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    run_sql(server.mariadb, "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(10000)) CHARACTER SET latin1")
    return server.mariadb


def _log(*ids: int, text: str = "x") -> SinkLog:
    log = SinkLog()
    for at, number in enumerate(ids):
        log.rows(0, A, 10 + at, (RowOp.INSERT, str(number), f"({number},'{text}')"))
    log.watermark(10 + len(ids))
    return log


def _fill(mariadb: LocalMariaDb) -> None:
    """Leave no page free."""
    run_sql(mariadb, "CREATE TABLE d.filler (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(10000)) CHARACTER SET latin1")
    with pytest.raises(Exception, match="1114"):
        for _ in range(10_000):
            run_sql(mariadb, *[f"INSERT INTO d.filler (v) VALUES (REPEAT('f', {BIG_BYTES}))"] * 20)


def _again_until_there_is_room(mariadb: LocalMariaDb, log: SinkLog) -> None:
    """A server gives the pages of a dropped table back when it has time to."""
    deadline, revision = time.monotonic() + PATIENCE_S, 2
    while True:
        try:
            Processor(mariadb, log, "full", revision=revision).apply(10 + FULL_ROWS)
        except DestinationUnreachableError:
            assert time.monotonic() < deadline
            revision += 1
        else:
            return


def test_apply_into_a_full_disk_names_the_row_and_goes_on_when_there_is_room(mariadb: LocalMariaDb) -> None:
    # The filler stops when no extent is free; single pages may be, and the first 32 of a table need no extent.
    log, written = SinkLog(), _log(*range(FULL_ROWS), text="b" * BIG_BYTES)
    first = Processor(mariadb, log, "full")
    run = first.open()
    first.until_true(lambda: run.leader.is_settled)  # what it keeps there is no large thing, but needs a page once
    _fill(mariadb)
    for part, records in written.records.items():  # only now: a processor that is settled would have applied them
        log.records[part] += records
    with pytest.raises(DestinationUnreachableError) as caught:
        first.apply(10 + FULL_ROWS)
    fields, there = caught.value.fields, len(table(mariadb, "d.a"))
    assert there < FULL_ROWS
    assert (fields["table"], fields["key"], fields["commit_ts"]) == ("d.a", str(there), 10 + there)
    assert "1114" in str(fields["reason"])
    position = rows(mariadb, "SELECT commit_ts FROM tidebus.position WHERE feed = 'full' AND part = 0")
    assert position == [(9 + there if there else 1,)]
    run_sql(mariadb, "DROP TABLE d.filler")
    _again_until_there_is_room(mariadb, log)
    assert rows(mariadb, "SELECT COUNT(*), MAX(id) FROM d.a") == [(FULL_ROWS, FULL_ROWS - 1)]


def test_apply_to_a_server_that_is_killed_goes_on_where_it_was(mariadb: LocalMariaDb) -> None:
    log = _log(*range(40))
    first = Processor(mariadb, log, "killed", max_txn_row=4)
    run = first.open()
    while run.rows_total < 8:
        run.turn()
    assert mariadb.child is not None
    mariadb.child.kill()
    with pytest.raises(DestinationUnreachableError) as caught:
        first.until(50)
    assert caught.value.action is Action.RETRY
    first.close()
    mariadb.restart()
    Processor(mariadb, log, "killed", revision=2, max_txn_row=4).apply(50)
    assert rows(mariadb, "SELECT COUNT(*), MAX(id) FROM d.a") == [(40, 39)]


def _cipher(uri: str) -> str:
    config = load_changefeed(uri)
    assert config.uri.server is not None
    connection = Connector(config.uri.server, config)()
    try:
        return str(select(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])
    finally:
        connection.close()


def test_connection_over_tls_knows_the_server_by_its_ca(server: Server) -> None:
    assert _cipher(server.mariadb.uri(f"ssl-ca={server.ca}"))
    with pytest.raises(DestinationRefusedError, match="TLS") as caught:
        _cipher(server.mariadb.uri(f"ssl-ca={server.other_ca}"))
    assert "certificate verify failed" in str(caught.value.fields["reason"])


def test_connection_over_tls_shows_its_own_certificate_where_the_server_wants_one(server: Server) -> None:
    run_sql(
        server.mariadb,
        "CREATE USER IF NOT EXISTS 'certified'@'127.0.0.1' IDENTIFIED BY 'c' REQUIRE X509",
    )
    with pytest.raises(DestinationRefusedError):
        _cipher(server.mariadb.uri(f"ssl-ca={server.ca}", user="certified", password="c"))
    pair = f"&ssl-cert={server.client.cert}&ssl-key={server.client.key}"
    assert _cipher(server.mariadb.uri(f"ssl-ca={server.ca}{pair}", user="certified", password="c"))
