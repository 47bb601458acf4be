"""Processors of a database sink in this process, over a sink log in memory, and connections that die where told."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.alone import AloneRun
from consumers.processors.apply import connection as connection_module
from consumers.processors.apply.begin import DatabaseWork
from consumers.processors.apply.connection import Connector
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.lead import Syncpoints
from consumers.processors.apply.share import RunSettings
from consumers.processors.apply.tls import DatabaseConnection
from consumers.processors.core.apply.partition import DdlMark, start_position
from consumers.processors.core.apply.statements import StatementSettings
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from tests.support.topics.sink_log import MemorySource, SinkLog

START_TS = Ts(1)
PATIENCE_S = 600.0


class Crash(BaseException):  # no error: the process is gone
    """What a process that is killed sees: nothing. Nobody may catch it."""


@dataclass
class Faults:
    """Counts statements; at number ``at`` (from 0) the processor dies, ``before`` or after the server has run it."""

    at: int | None = None
    before: bool = True
    count: int = 0
    dead: bool = False
    said: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def around(self, text: str, call: Callable[[], Any], close: Callable[[], None]) -> Any:
        with self.lock:
            if self.dead:
                close()
                raise Crash
            number, self.count = self.count, self.count + 1
            self.said.append(text)
            dies = number == self.at
            if dies and self.before:
                self.dead = True
                close()
                raise Crash
        result = call()
        if dies or self.dead:
            self.dead = True
            close()
            raise Crash
        return result


class FaultyConnection(DatabaseConnection):
    """Tells each statement to ``faults``; what it is closed with is a socket's end, as a kill closes it."""

    faults: Faults

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        text = sql if isinstance(sql, str) else bytes(sql).decode("utf-8", "replace")
        return self._told(text, lambda: DatabaseConnection.query(self, sql, unbuffered))

    def begin(self) -> None:
        self._told("BEGIN", lambda: DatabaseConnection.begin(self))

    def commit(self) -> None:
        self._told("COMMIT", lambda: DatabaseConnection.commit(self))

    def rollback(self) -> None:
        self._told("ROLLBACK", lambda: DatabaseConnection.rollback(self))

    def _told(self, text: str, call: Callable[[], Any]) -> Any:
        faults = getattr(self, "faults", None)
        return call() if faults is None else faults.around(text, call, self._force_close)  # type: ignore[attr-defined]


@contextmanager
def faulty_connections(faults: Faults) -> Iterator[None]:
    """Let the product's connections be such."""

    def connect(**arguments: Any) -> FaultyConnection:
        made = FaultyConnection(**arguments)
        made.faults = faults
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "DatabaseConnection", connect)
        yield


@dataclass
class MemorySides:
    """Both sides of a database sink, of which the topic is in memory."""

    processor: "Processor"
    connector: Connector
    source: MemorySource
    settings: RunSettings
    start: bytes = start_position(START_TS)

    def partitions(self) -> int:
        return self.processor.log.partitions

    def destination(self, revision: int) -> DatabaseDestination:
        return DatabaseDestination(self.connector, self.processor.feed, revision, self.processor.settings)

    def runner(self, destination: DatabaseDestination) -> DdlRunner:
        mysql = self.connector.config.sink.mysql
        return DdlRunner(destination=destination, read_timeout_s=mysql.read_timeout_s)

    def syncpoints(self, destination: DatabaseDestination) -> Syncpoints | None:
        return None if self.processor.syncpoints is None else self.processor.syncpoints(destination)

    def read_ddl(self, offsets: Mapping[int, int]) -> DdlMark:
        raise AssertionError(f"who has all partitions asks the topic for no ddl: {offsets}")


class Destination(Protocol):
    """A server that rows go to: a MariaDB, or what says that it is a TiDB."""

    def uri(self, parameters: str = "", user: str = ..., password: str = ...) -> str: ...


@dataclass
class Processor:
    """One processor that has a changefeed for itself, driven by the test."""

    server: Destination
    log: SinkLog
    feed: str
    revision: int = 1
    parameters: str = "worker-count=2"
    settings: StatementSettings = field(default_factory=StatementSettings)
    max_txn_row: int = 2048
    syncpoints: Callable[[DatabaseDestination], Syncpoints] | None = None
    ignore_start_ts: frozenset[int] = frozenset()
    user: tuple[str, str] | None = None
    run: AloneRun | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def connector(self) -> Connector:
        """Return what connects to the server as this processor does."""
        user = {} if self.user is None else {"user": self.user[0], "password": self.user[1]}
        config = load_changefeed(self.server.uri(self.parameters, **user))
        assert config.uri.server is not None
        return Connector(config.uri.server, config)

    def open(self) -> AloneRun:
        """Take the lead."""
        settings = RunSettings(worker_count=2, max_txn_row=self.max_txn_row, ignore_start_ts=self.ignore_start_ts)
        work = DatabaseWork(MemorySides(self, self.connector(), MemorySource(self.log, {}), settings))
        self.stack.push(_suppress_crash)
        self.stack.callback(work.close)
        self.run = AloneRun(work, self.revision, START_TS)
        self.stack.callback(self.run.close)
        return self.run

    def until(self, ts: int) -> AloneRun:
        """Apply all up to ``ts``."""
        run = self.run or self.open()
        return self.until_true(lambda: run.checkpoint_ts >= ts)

    def until_true(self, is_reached: Callable[[], bool]) -> AloneRun:
        """Apply until something is so."""
        run = self.run or self.open()
        deadline = time.monotonic() + PATIENCE_S
        while not is_reached():
            run.turn()
            assert time.monotonic() < deadline, (run.checkpoint_ts, run.rows_total, run.ddl_total)
        return run

    def close(self) -> None:
        self.run = None
        self.stack.close()

    def apply(self, ts: int) -> None:
        """Apply all up to ``ts`` and end."""
        try:
            self.until(ts)
        finally:
            self.close()


def _suppress_crash(_: object, error: object, __: object) -> bool:
    return isinstance(error, Crash)


def table(server: LocalMariaDb, name: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, sorted."""
    return sorted(rows(server, f"SELECT * FROM {name}"), key=repr)


def rows(server: LocalMariaDb, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
    finally:
        connection.close()


def run_sql(server: LocalMariaDb, *statements: str) -> None:
    """Run statements as the administrator."""
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)
    finally:
        connection.close()
