"""DDL whose answer is lost at a TiDB: its job is asked for before it is said again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from consumers.processors.apply import ddl as runner_module
from consumers.processors.apply.connection import Connector
from consumers.processors.apply.ddl import DdlRunner, StoppedError
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import DdlRefusedError, DestinationUnreachableError
from consumers.processors.core.apply.ddl_jobs import DdlJob, JobVerdict, verdict
from consumers.processors.core.apply.partition import DdlMark
from consumers.processors.core.apply.statements import StatementSettings
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl
from tests.support.database.fake_tidb import Answer, FakeTidb, Gone
from tests.support.database.tidb_catalog import TidbCatalog

NOTED_S = 1_700_000_000
POSITION, START = bytes(15) + b"\x0a", bytes(16)
MODIFY = "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT"
EXPRESSION = "ALTER TABLE `t` ADD INDEX ((`v` + 1))"
INDEX = "ALTER TABLE `t` ADD INDEX `i`(`v`)"


def mark(query: str, ddl_type: int = DdlType.MODIFY_COLUMN) -> DdlMark:
    ddl = SqlDdl(commit_ts=Ts(10), ddl_type=ddl_type, schema="d", table="t", pre_schema="", pre_table="", query=query)
    return DdlMark(POSITION, Ts(9), ddl, 0)


@dataclass
class Jobs:
    """A TiDB that loses the answer to the first ALTER, and goes on with it: ``states`` is what its job is in, look by
    look; no state: it has no job."""

    states: list[str | None]
    lost: int = 1
    catalog: TidbCatalog = field(default_factory=TidbCatalog)
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, sql: str) -> Answer:
        if sql.startswith("ALTER"):
            self.said.append(sql)
            if len(self.said) <= self.lost:
                return Gone()
        if "information_schema.ddl_jobs" in sql:
            if not self.said:
                return []
            self.asked.append(sql)
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            ended = str(NOTED_S + 200) if state in ("synced", "cancelled", "rollback done") else None
            return [] if state is None else [("412", state, ended)]
        return self.catalog.answer(sql)

    @contextmanager
    def serve(self) -> Iterator[FakeTidb]:
        self.catalog.answer("CREATE DATABASE `d`")
        self.catalog.answer("USE `d`")
        self.catalog.answer("CREATE TABLE `t` (`v` INT)")
        with FakeTidb(self.answer) as server:
            yield server


def leader(server: FakeTidb, revision: int = 1, *, stopped: bool = False) -> DdlRunner:
    config = load_changefeed(server.uri)
    assert config.uri.server is not None
    destination = DatabaseDestination(Connector(config.uri.server, config), "feed", revision, StatementSettings())
    destination.lead(1, START)
    return DdlRunner(destination=destination, read_timeout_s=120.0, stopped=lambda: stopped)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "JOB_WAIT_S", 0.01)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([], JobVerdict.UNKNOWN),
        ([DdlJob(1, "queueing", None)], JobVerdict.UNDER_WAY),
        ([DdlJob(1, "paused", None)], JobVerdict.UNDER_WAY),
        ([DdlJob(1, "rollingback", None)], JobVerdict.UNDER_WAY),
        ([DdlJob(1, "synced", NOTED_S + 1)], JobVerdict.DONE),
        ([DdlJob(1, "cancelled", NOTED_S + 1)], JobVerdict.REFUSED),
        ([DdlJob(1, "rollback done", NOTED_S + 1)], JobVerdict.REFUSED),
        ([DdlJob(1, "synced", NOTED_S)], JobVerdict.UNKNOWN),
        ([DdlJob(1, "synced", NOTED_S), DdlJob(2, "running", None)], JobVerdict.UNDER_WAY),
        ([DdlJob(1, "cancelled", NOTED_S + 1), DdlJob(2, "synced", NOTED_S + 9)], JobVerdict.DONE),
    ],
)
def test_what_jobs_say_of_a_statement(jobs: list[DdlJob], expected: JobVerdict) -> None:
    assert verdict(jobs, NOTED_S) is expected


def test_a_ddl_whose_answer_is_lost_is_waited_for_and_said_once() -> None:
    tidb = Jobs(["running", "running", "synced"])
    with tidb.serve() as server:
        runner = leader(server)
        runner.begin(mark(MODIFY))
        runner.run(mark(MODIFY))
        runner.finish(mark(MODIFY), {0: 1})
    assert tidb.said == [MODIFY]
    assert len(tidb.asked) == 3
    assert f"FROM_UNIXTIME({NOTED_S})" in tidb.asked[0]
    assert f"query = '{MODIFY}'" in tidb.asked[0]


def test_the_next_leader_waits_for_a_ddl_that_is_under_way() -> None:
    tidb = Jobs(["running", "queueing", "running", "synced"])
    with tidb.serve() as server:
        leader(server).begin(mark(MODIFY))
        tidb.said.append(MODIFY)  # its processor is killed in the midst of it
        tidb.catalog.now_s += 60
        assert leader(server, 2).check(mark(MODIFY))
    assert tidb.said == [MODIFY]
    assert len(tidb.asked) == 4
    assert f"FROM_UNIXTIME({NOTED_S})" in tidb.asked[-1]


@pytest.mark.parametrize("state", ["cancelled", "rollback done"])
def test_a_ddl_that_is_called_off_is_a_stop_of_its_own(state: str) -> None:
    tidb = Jobs(["running", state])
    with tidb.serve() as server:
        runner = leader(server)
        runner.begin(mark(MODIFY))
        with pytest.raises(DdlRefusedError, match="set read-timeout") as caught:
            runner.run(mark(MODIFY))
        fields = caught.value.fields
        assert (caught.value.code, fields["job"], fields["ran_s"]) == ("apply.ddl_refused", f"412 ({state})", 200)
        assert [fields[name] for name in ("key", "got", "allowed")] == ["read-timeout", "120s", "more than 200s"]
        assert not leader(server, 2).check(mark(MODIFY))  # who resumes tries again
    assert tidb.said == [MODIFY]


def test_a_ddl_that_is_called_off_while_the_next_leader_waits_is_not_taken_for_done() -> None:
    tidb, unnamed = Jobs(["running", "cancelled"]), mark(EXPRESSION, DdlType.ADD_INDEX)
    with tidb.serve() as server:
        leader(server).begin(unnamed)
        tidb.said.append(EXPRESSION)  # its processor is killed in the midst of it
        with pytest.raises(DdlRefusedError, match="set read-timeout"):
            leader(server, 2).check(unnamed)
        tidb.catalog.answer("DROP TABLE `t`")
        tidb.catalog.answer("CREATE TABLE `t` (`v` BIGINT)")
        with pytest.raises(DdlRefusedError, match="nothing tells whether"):
            leader(server, 3).check(unnamed)


def test_a_ddl_that_has_no_job_is_said_again() -> None:
    tidb = Jobs([None])
    with tidb.serve() as server:
        runner = leader(server)
        runner.begin(mark(MODIFY))
        with pytest.raises(DestinationUnreachableError):
            runner.run(mark(MODIFY))
        runner = leader(server, 2)
        assert not runner.check(mark(MODIFY))
        runner.run(mark(MODIFY))
    assert tidb.said == [MODIFY, MODIFY]


@pytest.mark.parametrize("has_run", [True, False])
def test_the_next_leader_tells_an_exchange_that_has_run_from_a_table_that_was_mended(has_run: bool) -> None:
    query = "ALTER TABLE `t` EXCHANGE PARTITION `P0` WITH TABLE `u`"
    ddl = replace(mark(query, DdlType.EXCHANGE_PARTITION).ddl, pre_schema="d", pre_table="u")
    exchange, tidb = DdlMark(POSITION, Ts(9), ddl, 0), Jobs([None])
    with tidb.serve() as server:
        tidb.catalog.answer("CREATE TABLE `u` (`v` INT)")
        leader(server).begin(exchange)
        if has_run:
            tidb.catalog.answer(query)
        tidb.catalog.answer("ALTER TABLE `u` ADD COLUMN `w` INT")
        assert leader(server, 2).check(exchange) is has_run


def test_an_index_beside_the_rows_whose_answer_is_lost_is_said_once() -> None:
    tidb, index = Jobs(["running", "synced"]), mark(INDEX, DdlType.ADD_INDEX)
    with tidb.serve() as server:
        runner = leader(server)
        runner.begin(index)
        runner.run(index)
        runner.finish(index, {0: 1})
        assert runner.indexes.wait_for(index.ddl, lambda: False)
        runner.close()
    assert tidb.said == [INDEX]


def test_who_is_told_to_stop_does_not_wait_for_a_job() -> None:
    tidb = Jobs(["running"])
    with tidb.serve() as server:
        leader(server).begin(mark(MODIFY))
        tidb.said.append(MODIFY)
        with pytest.raises(StoppedError):
            leader(server, 2, stopped=True).check(mark(MODIFY))
