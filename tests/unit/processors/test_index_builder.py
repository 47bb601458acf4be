"""Indexes that are built beside the rows: which ones, what waits for them, and what their errors do."""

import json
import logging
import threading
from dataclasses import replace

import pytest

from consumers.processors.apply import index_builder
from consumers.processors.apply.errors import DdlRefusedError, DestinationUnreachableError
from consumers.processors.apply.index_builder import IndexBuilder
from consumers.processors.core.apply.index_ddl import IndexDdl, builds_apart, must_wait
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl, decode_ddl, encode_ddl

WAIT_S = 60.0


def _ddl(ts: int, name: str, query: str = "ALTER TABLE `t` ADD INDEX (`v`)", kind: int = DdlType.ADD_INDEX) -> SqlDdl:
    schema, _, table = name.partition(".")
    return SqlDdl(commit_ts=Ts(ts), ddl_type=kind, schema=schema, table=table, pre_schema="", pre_table="", query=query)


def _index(ts: int, name: str = "d.t") -> IndexDdl:
    return IndexDdl(ts.to_bytes(8, "big"), Ts(ts - 1), _ddl(ts, name), "before", 0)


@pytest.mark.parametrize(
    ("query", "apart"),
    [
        ("ALTER TABLE `t` ADD INDEX `i`(`v`)", True),
        ("CREATE INDEX i ON t (v)", True),
        ("ALTER TABLE `t` ADD UNIQUE INDEX `i`(`v`)", False),
        ("create unique index i on t (v)", False),
        ("ALTER TABLE `t` ADD FULLTEXT INDEX (`v`)", False),
        ("ALTER TABLE `t` ADD INDEX (`v`)", True),
        ("ALTER TABLE `t` ADD INDEX `i`((`v` + 1))", True),
        ("ALTER TABLE `t` ADD INDEX ((`v` + 1))", False),
    ],
)
def test_index_that_refuses_no_row_is_built_apart(query: str, apart: bool) -> None:
    assert builds_apart(_ddl(5, "d.t", query)) is apart
    assert not builds_apart(_ddl(5, "d.t", query, DdlType.ADD_COLUMN))


def test_ddl_waits_for_an_index_of_its_table_or_in_its_schema() -> None:
    building = [_index(5, "d.t")]
    renamed = SqlDdl(
        commit_ts=Ts(9), ddl_type=14, schema="d", table="u", pre_schema="d", pre_table="t", query="RENAME TABLE t TO u"
    )
    assert must_wait(_ddl(6, "d.t"), building)
    assert must_wait(_ddl(6, "d"), building)
    assert must_wait(renamed, building)
    assert not must_wait(_ddl(6, "d.u"), building)
    assert not must_wait(_ddl(6, "e.t"), building)


def test_table_made_like_another_waits_for_an_index_that_is_built_there() -> None:
    building = [_index(5, "d.T")]
    like = _ddl(6, "e.u", "CREATE TABLE `u` LIKE `d`.`t`", DdlType.CREATE_TABLE)
    assert must_wait(replace(like, referred=(("d", "t"),)), building)
    assert not must_wait(replace(like, referred=(("d", "other"),)), building)
    assert must_wait(like, building), "a sorter of a former release does not tell which table it is"
    assert not must_wait(like, [])
    assert not must_wait(_ddl(6, "e.u", "CREATE TABLE `u` (`likes` INT)", DdlType.CREATE_TABLE), building)


def test_ddl_of_a_sorter_that_does_not_tell_what_it_reads_is_taken() -> None:
    ddl = replace(_ddl(6, "e.u"), referred=(("d", "t"), ("e", "v")))
    fields = json.loads(encode_ddl(ddl))
    assert decode_ddl(encode_ddl(ddl)) == ddl
    assert fields.pop("referred") == [["d", "t"], ["e", "v"]]
    assert decode_ddl(json.dumps(fields).encode()) == replace(ddl, referred=())


class Server:
    """Builds when it is told to; a list of errors comes first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked, self.may = list(errors), list[int](), threading.Event()
        self.may.set()

    def build(self, index: IndexDdl) -> None:
        assert self.may.wait(WAIT_S)
        self.asked.append(index.ddl.commit_ts)
        if self.errors:
            raise self.errors.pop(0)


def test_builder_holds_the_checkpoint_below_what_is_not_built() -> None:
    server = Server()
    server.may.clear()
    builder = IndexBuilder(server.build)
    nothing = builder.held_ts
    builder.add([_index(7), _index(9, "d.u")])
    assert (nothing, builder.held_ts) == (None, 6)
    server.may.set()
    assert builder.wait_for(_ddl(10, "d.t"), lambda: False)
    assert builder.wait_for(_ddl(10, "d.u"), lambda: False)
    assert (builder.held_ts, server.asked) == (None, [7, 9])
    builder.close()


def test_builder_tries_again_what_time_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "AGAIN_S", 0.001)
    server = Server(DestinationUnreachableError("gone"), DestinationUnreachableError("gone"))
    builder = IndexBuilder(server.build)
    builder.add([_index(7)])
    assert builder.wait_for(_ddl(8, "d.t"), lambda: False)
    builder.check()
    assert server.asked == [7, 7, 7]
    builder.close()


def test_builder_warns_at_the_first_failure_and_not_at_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_builder, "AGAIN_S", 0.001)
    server = Server(*[DestinationUnreachableError("locked")] * 3)
    builder = IndexBuilder(server.build)
    builder.add([_index(7)])
    assert builder.wait_for(_ddl(8, "d.t"), lambda: False)
    (said,) = [vars(record) for record in caplog.records if record.levelno == logging.WARNING]
    assert (said["code"], said["table"], said["commit_ts"]) == ("apply.destination_unreachable", "d.t", 7)
    assert "locked" in said["reason"]
    caplog.clear()
    monkeypatch.setattr(index_builder, "WARN_AGAIN_S", 0.0)
    server.errors += [DestinationUnreachableError("locked")] * 3
    builder.add([_index(9)])
    assert builder.wait_for(_ddl(10, "d.t"), lambda: False)
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 3
    builder.close()


def test_builder_says_what_an_operator_must_mend_and_lets_nothing_wait_for_ever() -> None:
    server = Server(DdlRefusedError("no"))
    builder = IndexBuilder(server.build)
    builder.add([_index(7)])
    with pytest.raises(DdlRefusedError):
        builder.wait_for(_ddl(8, "d.t"), lambda: False)
    with pytest.raises(DdlRefusedError):
        builder.check()
    assert builder.held_ts == 6
    builder.close()


def test_builder_closed_lets_who_waits_go() -> None:
    server = Server()
    server.may.clear()
    builder = IndexBuilder(server.build)
    builder.add([_index(7)])
    assert not builder.wait_for(_ddl(8, "d.t"), lambda: True)
    builder.close()
    assert not builder.wait_for(_ddl(8, "d.t"), lambda: False)
    server.may.set()
