"""A source of ``tidebus verify`` that is a schema of a MariaDB: what it held at a ts, the test says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import Connector
from consumers.verify.reader import SideReader
from consumers.verify.table_check import CheckSettings, Proofs, TableCheck, TablePair
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.sink.position import RowOp
from tests.support.database.apply import Processor, rows, run_sql
from tests.support.database.apply_tables import A, B, two_tables
from tests.support.database.fake_tidb import Answer
from tests.support.topics.sink_log import SinkLog


def connector(server: LocalMariaDb) -> Connector:
    """Return what connects to the server as a processor does."""
    config = load_changefeed(server.uri(""))
    assert config.uri.server is not None
    return Connector(config.uri.server, config)


@dataclass
class MariaDbSource:
    """Opens the server; ``prepare`` is told the ts before."""

    server: LocalMariaDb
    prepare: Callable[[Ts], None] = lambda _: None
    asked: list[Ts] = field(default_factory=list)

    @contextmanager
    def __call__(self, ts: Ts) -> Iterator[SideReader]:
        self.asked.append(ts)
        self.prepare(ts)
        connection = connector(self.server)()
        try:
            yield SideReader(connection, "source")
        finally:
            connection.close()


@pytest.fixture
def upstream(mariadb: LocalMariaDb) -> Iterator[MariaDbSource]:
    """Schema ``u`` as the source, empty at first."""
    run_sql(mariadb, "DROP DATABASE IF EXISTS u", "CREATE DATABASE u")
    yield MariaDbSource(mariadb)
    run_sql(mariadb, "DROP DATABASE IF EXISTS u")


def applied(mariadb: LocalMariaDb, feed: str) -> None:
    """Ten rows of d.a and three of d.b, by a processor; u.a and u.b hold the same."""
    two_tables(mariadb)
    log = SinkLog()
    for number in range(1, 11):
        log.rows(0, A, 10 + number, (RowOp.INSERT, str(number), f"({number},{number * 100})"))
    log.rows(1, B, 12, *((RowOp.INSERT, f"(`id`=1 AND `k`='{k}')", f"(1,'{k}',{n})") for n, k in enumerate("xyz")))
    log.watermark(30)
    Processor(mariadb, log, feed).apply(30)
    for table in ("a", "b"):
        run_sql(mariadb, f"CREATE TABLE u.{table} LIKE d.{table}", f"INSERT INTO u.{table} SELECT * FROM d.{table}")


def table_check(
    source: MariaDbSource, feed: str, *, range_rows: int = 3, wait_s: float = 0.0, proofs: Proofs | None = None
) -> TableCheck:
    """Return what compares tables of a source with the same server's."""
    settings = CheckSettings(feed=feed, range_rows=range_rows, wait_s=wait_s)
    return TableCheck(source, connector(source.server), settings, proofs)


def pair(table: str, *, partition: int = 0) -> TablePair:
    """Return ``u.TABLE`` as the source of ``d.TABLE``, whose rows are in a partition."""
    return TablePair(source=("u", table), destination=("d", table), partition_of=lambda _: partition)


def played_tidb(server: LocalMariaDb) -> Callable[[str], Answer]:
    """Return what a TiDB would answer whose schema ``d`` is the server's schema ``u``."""

    def answer(text: str) -> Answer:
        if not text.lower().startswith("select"):
            return [] if text.startswith("SHOW") else None
        asked = text.replace("`d`.", "`u`.").replace("table_schema = 'd'", "table_schema = 'u'")
        shown = [[_shown(cell) for cell in row] for row in rows(server, asked)]
        if "information_schema.tables" in text:
            return [["d", name] for schema, name in shown if schema == "u"]
        return shown

    return answer


def _shown(cell: object) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)
