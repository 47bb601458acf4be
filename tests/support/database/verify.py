"""A source of ``tidebus verify`` that is a schema of a MariaDB: what it held at a ts, the test says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import Connector
from consumers.verify.reader import SideReader
from consumers.verify.table_check import CheckSettings, Proofs, TableCheck, TablePair
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from tests.support.database.apply import rows
from tests.support.database.fake_tidb import Answer


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
