"""A resync of a table whose rows no range of keys tells: what a database is told, and which rows say so."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, opening_of
from schemas.sink.position import decode_position
from schemas.sink.sql_rows import ResyncStep, decode_ddl, decode_form
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.feed.resync_events import noted_names
from sorters.core.records.order import no_records
from sorters.core.sql.ddl_event import event_of_no_job
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.unit.images.test_image_chunks import ONE, TWO, S, chunk_of, cut_of, inserts, program
from tests.unit.images.test_resync import UNIQUE, database, ids, opened, said_of, stored

PARTED = {"enable": True, "definitions": [{"id": n, "name": {"O": f"p{n}", "L": f"p{n}"}} for n in (21, 22)]}
P1, P2 = TableId(21), TableId(22)
NOTE, DELETE, FORGET = ResyncStep.NOTE, ResyncStep.DELETE, ResyncStep.FORGET


def steps(cut: Cut, **more: Any) -> list[tuple[ResyncStep | None, int, tuple[str, ...]]]:
    """Return what a database is to do at a cut's end, of which tables and by which keys."""
    store = snapshot(("d", 1, [{**table_info(11, "one"), **more}, table_info(12, "two")]))
    records = said_of(cut, store, database(store=store)).to_pylist()
    assert {decode_position(record["position"]).start_ts for record in records} <= {S}
    ddls = [decode_ddl(record["value"]) for record in records]
    return [(ddl.step, ddl.table_id, ddl.key) for ddl in ddls]


def test_a_database_notes_keys_only_of_a_table_whose_ranges_it_cannot_tell() -> None:
    cut = opened(ONE, TWO)
    assert steps(cut) == []
    assert steps(cut, pk_is_handle=False, **UNIQUE) == [(NOTE, ONE, ("id",))]
    assert steps(cut, pk_is_handle=False) == [], "a table without a key has no rows to be written twice"


def whole(table: TableId, number: int = 0) -> ImageChunk:
    return replace(chunk_of(table, number, {}, (0, 0)), keys=KeyRange.of_table(table))


def opening(table: TableId, number: int = 0) -> ImageChunk:
    return replace(whole(table, number), keys=opening_of(table))


def waiting(*tables: TableId, chunks: Sequence[ImageChunk], begun: Collection[TableId] = ()) -> Cut:
    """Return a cut with chunks of tables that are resynced, some of which have begun."""
    done = LeftOut(ids(*tables), {table: (opening_of(table),) for table in begun})
    resynced = frozenset(chunk.table_id for chunk in chunks)
    return replace(cut_of(*chunks), resynced=resynced, resync=ids(*tables), read_again=done)


@pytest.mark.parametrize(
    ("cut", "step"),
    [
        (waiting(P1, P2, chunks=[opening(P1), opening(P2, 1)]), NOTE),
        (waiting(P1, P2, chunks=[opening(P1)]), NOTE),
        (waiting(P1, P2, chunks=[opening(P2)], begun=[P1]), None),
        (waiting(P2, chunks=[opening(P2)]), None),  # the other one is whole
        (waiting(P1, chunks=[opening(P1)]), FORGET),  # the other one came, and is not waited for
        (waiting(P1, P2, chunks=[whole(P1)], begun=[P1, P2]), None),
        (waiting(P1, P2, chunks=[whole(P1), whole(P2, 1)], begun=[P1, P2]), DELETE),
        (waiting(P2, chunks=[whole(P2)], begun=[P2]), DELETE),
    ],
)
def test_partitions_are_one_table_to_a_database(cut: Cut, step: ResyncStep | None) -> None:
    """Keys are noted with the first opening, and deleted once no partition is waited for."""
    expected = [] if step is None else [(step, 11, ("id",))]
    assert steps(cut, partition=PARTED) == expected


def test_partitions_are_emptied_once_at_consumers_of_a_topic() -> None:
    store = snapshot(("d", 1, [{**table_info(11, "one"), "partition": PARTED}]))
    by = program("canal-json")
    for cut, count in (
        (waiting(P1, P2, chunks=[opening(P1), opening(P2, 1)]), 1),
        (waiting(P1, P2, chunks=[opening(P2)], begun=[P1]), 0),
        (waiting(P2, chunks=[whole(P2)], begun=[P2]), 0),
    ):
        assert said_of(cut, store, by).num_rows == count


def test_rows_of_a_table_that_is_resynced_say_whose_notes_they_are_struck_off() -> None:
    store = snapshot(("d", 1, [{**table_info(11, "one"), "pk_is_handle": False, **UNIQUE}, table_info(12, "two")]))
    renamed = {**table_info(11, "uno"), "pk_is_handle": False, **UNIQUE}
    assert store.apply(job(Ts(S - 5), DdlType.RENAME_TABLE, schema_id=1, table_id=11, table_info=renamed)) is not None
    by = database(store=store)
    raw = tuple(inserts(table, 7, ts=ts) for table in (ONE, TWO) for ts in (S - 9, S - 1))
    cut = replace(cut_of(), resync=ids(ONE, TWO))
    cut = replace(cut, noted=noted_names(cut, store, by.feed))
    made = whole_cut(cut, RawCut(list(raw), 0), by, no_records(), 1, 1 << 30)
    assert made is not None
    forms = [decode_form(record["key"]) for record in made.records.to_pylist()]
    assert {(form.table, form.notes) for form in forms} == {("one", 11), ("uno", 11), ("two", 0)}
    assert noted_names(replace(cut, resync=()), store, by.feed) == {}


def test_a_database_is_told_which_ddl_makes_a_table_another() -> None:
    def said(ddl_type: DdlType, pre: StoredTable | None, post: StoredTable | None) -> tuple[int, tuple[int, ...]]:
        event = replace(
            event_of_no_job(ddl_type, S, "d", "TRUNCATE TABLE `d`.`one`", start_ts=Ts(1), pre=pre, post=post),
            table_id=(post or pre or stored()).table_id,
        )
        ddl = decode_ddl(SqlRowsEncoder().encode_ddl(event).value)
        return ddl.table_id, ddl.ended

    (other,) = snapshot(("d", 1, [table_info(12, "one")])).stored_at(Ts(10))
    assert said(DdlType.ADD_COLUMN, stored(), stored()) == (11, ())
    assert said(DdlType.TRUNCATE_TABLE, stored(), other) == (12, (11,))
    assert said(DdlType.DROP_TABLE, stored(), None) == (11, (11,))
    assert said(DdlType.EXCHANGE_PARTITION, stored(), other) == (12, (11, 12))
