"""When a state proof begins, goes on and ends: images, filters, lives of a changefeed, a topic that takes nothing."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError, ConfigError
from schemas.flow.chain import check_chain
from schemas.flow.proof import PROOF_BYTES_MAX, ProofWindow, decode_proof, follow_up, join_windows
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange, KeyRange
from schemas.rawlog.record_check import NO_TABLE
from schemas.state_proof.carried import CarriedState, StateRecord, decode_state, encode_state
from schemas.state_proof.row_text import TableProof
from schemas.tidb.table import ColumnVersion
from schemas.tidb.table_info import table_version
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.feed.feed import compile_feed
from sorters.core.state_proof.deltas import StateDeltas, TableDelta
from sorters.core.state_proof.proof_columns import keeps_texts
from sorters.core.state_proof.states import IMAGE_MIDWAY, NO_STATE, RENAMED
from sorters.run.proofs.state_proofs import RECORD_SKIPPED, StateProofs
from tests.support.rawlog.memory_states import MemoryStates
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info

NAME = ("default", "a")
A, B = TableId(12), TableId(13)
LOW, HIGH = KeyRange(b"a", b"m"), KeyRange(b"m", b"z")
WHOLE = KeyRange(b"a", b"z")


class _Run:
    """A run of a changefeed over cuts that are told one by one."""

    def __init__(self, topic: MemoryStates, store: SchemaStore, life: str = "1", **config: Any) -> None:
        settings = {"state-proofs": ["app.*"], **config}
        self.feed = compile_feed(load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json", settings), "default")
        self.states, self.store = StateProofs(topic, NAME, life), store

    def cut(
        self,
        after_ts: int,
        upto_ts: int,
        deltas: dict[TableId, TableDelta] | None = None,
        left_out: LeftOut | None = None,
        lacking: Collection[TableId] = (),
    ) -> Cut:
        cut = Cut(
            after_ts=Ts(after_ts),
            upto_ts=Ts(upto_ts),
            start=(0,),
            end=(1,),
            may_repeat=False,
            ddl_end=0,
            left_out=left_out,
        )
        planned = self.states.plan(cut, self.store, self.feed)
        self.states.tell(StateDeltas(deltas or {}), lacking)
        return planned

    def __getitem__(self, table: TableId) -> CarriedState:
        return self.states.states[table]


def _pending(table: TableId, *done: KeyRange) -> LeftOut:
    return LeftOut((IdRange(table, table),), {table: done})


def _altered(ts: int, table: TableId, kind: DdlType, columns: Sequence[dict[str, Any]], name: str = "b") -> Any:
    info = table_info(table, name) | {"cols": list(columns)}
    return job(Ts(ts), kind, schema="app", schema_id=2, table_id=table, table_info=info)


@pytest.fixture
def store() -> SchemaStore:
    return snapshot(("app", 2, [table_info(A, "b"), table_info(B, "a")]), ("other", 3, [table_info(14, "b")]))


def _from(store: SchemaStore) -> int:
    assert store.snapshot_ts is not None
    return store.snapshot_ts


def test_tables_that_were_there_have_no_proof_and_others_no_state(store: SchemaStore) -> None:
    run, t = _Run(MemoryStates(), store), _from(store)
    assert run.cut(t, t + 10).states == {}
    assert {table: state.unproven for table, state in run.states.states.items()} == {A: NO_STATE, B: NO_STATE}


def test_image_is_added_up_while_it_comes_and_proven_once_it_is_whole(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    run = _Run(topic, store)
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))  # a chunk of LOW goes out at its end
    run.cut(t + 10, t + 20, {A: TableDelta(0, 1, 1)}, _pending(A, LOW))
    assert (run[A].is_proven, run[A].proof, run[B].unproven) == (False, TableProof(2, 7), NO_STATE)
    run = _Run(topic, store)  # a restart in the middle
    run.cut(t + 20, t + 30, {A: TableDelta(1, 8, 1)}, _pending(A, LOW))
    run.cut(t + 30, t + 40, {A: TableDelta(-1, 15, 1)})
    assert (run[A].is_proven, run[A].proof, run[A].begun_by, run[A].ts) == (True, TableProof(2, 0), "image", t + 40)


def test_table_of_a_skipped_record_has_no_proof_from_there_on_also_after_a_restart(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    run = _Run(topic, store)
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    run.cut(t + 10, t + 20)
    assert run[A].is_proven
    run.cut(t + 20, t + 30, {A: TableDelta(1, 8, 1)}, lacking={A})
    for each in (run, _Run(topic, store)):
        each.cut(t + 30, t + 40, {A: TableDelta(1, 9, 1)})
        assert (each[A].unproven, each[A].ts) == (RECORD_SKIPPED, t + 30)
        assert each[B].unproven == NO_STATE


def test_record_of_which_nobody_can_tell_whose_it_is_takes_the_proofs_of_all_tables(store: SchemaStore) -> None:
    run, t = _Run(MemoryStates(), store), _from(store)
    both = LeftOut((IdRange(A, A), IdRange(B, B)), {A: (), B: ()})
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2), B: TableDelta(1, 3, 1)}, both)
    run.cut(t + 10, t + 20)
    assert [run[table].is_proven for table in (A, B)] == [True, True]
    run.cut(t + 20, t + 30, {A: TableDelta(1, 8, 1)}, lacking={NO_TABLE})
    assert [run[table].unproven for table in (A, B)] == [RECORD_SKIPPED, RECORD_SKIPPED]


def test_image_that_begins_anew_begins_the_proof_anew(store: SchemaStore) -> None:
    run, t = _Run(MemoryStates(), store), _from(store)
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    run.cut(t + 10, t + 20, {}, _pending(A, LOW))
    run.cut(t + 20, t + 30, {A: TableDelta(5, 9, 5)}, _pending(A))
    run.cut(t + 30, t + 40, {}, _pending(A, LOW, HIGH))
    run.cut(t + 40, t + 50)
    assert (run[A].proof, run[A].begun_ts) == (TableProof(5, 9), t + 20)


def test_image_that_nobody_saw_begin_proves_nothing(store: SchemaStore) -> None:
    run, t = _Run(MemoryStates(), store), _from(store)
    run.cut(t, t + 10, {}, _pending(A, LOW))
    assert run[A].unproven == NO_STATE
    run.cut(t + 10, t + 20, {}, _pending(A, WHOLE))
    run.cut(t + 20, t + 30)
    assert run[A].unproven == NO_STATE

    other = _Run(MemoryStates(), store)
    other.cut(t, t + 10, {}, _pending(A))
    other.cut(t + 10, t + 20, {}, _pending(A, LOW))
    other.cut(t + 20, t + 30, {}, _pending(A, HIGH))  # LOW is lost, and yet not all of it
    assert other[A].unproven == IMAGE_MIDWAY


def test_a_repeated_cut_counts_only_what_is_not_told_yet(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    run = _Run(topic, store)
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    run.cut(t + 10, t + 20, {A: TableDelta(1, 1, 1)})
    assert (run[A].after_ts, run[A].ts) == (t + 10, t + 20)
    again = _Run(topic, store)  # its checkpoint was not known
    planned = again.cut(t, t + 30, {A: TableDelta(1, 8, 1)})
    assert planned.states[A].after_ts == t + 20
    assert (again[A].proof, again[A].after_ts) == (TableProof(4, 15), t + 20)


def test_states_of_another_life_count_for_nothing_and_go(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    _Run(topic, store).cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    run = _Run(topic, store, life="2")
    run.cut(t + 10, t + 20)
    assert run[A].unproven == NO_STATE
    assert {decode_state(content).life for content in topic.records.values()} == {"2"}


def test_late_record_of_an_older_run_counts_for_nothing(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    old = _Run(topic, store)
    old.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    late = {key: content for key, content in topic.records.items() if decode_state(content).state.table_id == A}
    run = _Run(topic, store)
    run.cut(t + 10, t + 20, {A: TableDelta(1, 1, 1)})
    topic.records.update(late)
    again = _Run(topic, store)
    again.cut(t + 20, t + 30)
    assert again[A].proof == TableProof(3, 7)


def test_table_that_left_the_filter_while_nobody_ran_is_let_go(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    _Run(topic, store).cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    without = _Run(topic, store, filter={"rules": ["*.*", "!app.b"]})
    without.cut(t, t + 20)  # its state is ahead of the checkpoint
    assert A not in without.states.states
    back = _Run(topic, store)
    back.cut(t + 20, t + 30)
    assert back[A].unproven == NO_STATE


def test_ddl_that_adds_or_renames_a_column_goes_on_and_one_that_takes_a_column_ends_it(store: SchemaStore) -> None:
    run, t = _Run(MemoryStates(), store), _from(store)
    made = job(Ts(t + 5), DdlType.CREATE_TABLE, schema="app", schema_id=2, table_id=20, table_info=table_info(20, "n"))
    assert store.apply(made) is not None
    table, columns = TableId(20), table_info(20, "n")["cols"]
    run.cut(t, t + 10, {table: TableDelta(1, 5, 1)})
    assert (run[table].proof, run[table].begun_by, run[table].begun_ts) == (TableProof(1, 5), "create", t + 5)
    carried = run[table].columns
    added = [*columns, column(9, "late")]
    assert store.apply(_altered(t + 15, table, DdlType.ADD_COLUMN, added, "n")) is not None
    run.cut(t + 10, t + 20, {table: TableDelta(1, 2, 1)})
    assert (run[table].proof, run[table].columns) == (TableProof(2, 7), carried)
    renamed = [columns[0], {**columns[1], "name": {"O": "new", "L": "new"}}, added[2]]
    assert store.apply(_altered(t + 25, table, DdlType.MODIFY_COLUMN, renamed, "n")) is not None
    run.cut(t + 20, t + 30)
    assert (run[table].is_proven, run[table].columns[1]) == (True, (carried[1][0], "new"))
    assert store.apply(_altered(t + 35, table, DdlType.DROP_COLUMN, [columns[0], {**added[2], "offset": 1}], "n"))
    planned = run.cut(t + 30, t + 40)
    assert table not in planned.states
    assert (run[table].unproven, run[table].ts) == ("ddl: drop column, column new", t + 35)


def test_truncate_begins_an_empty_table_and_a_rename_into_the_filter_proves_nothing(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    run = _Run(topic, store)
    cut = job(Ts(t + 5), DdlType.TRUNCATE_TABLE, schema="app", schema_id=2, table_id=A, table_info=table_info(30, "b"))
    moved = job(Ts(t + 6), DdlType.RENAME_TABLE, schema="app", schema_id=2, table_id=14, table_info=table_info(14, "c"))
    assert store.apply(cut) is not None and store.apply(moved) is not None
    run.cut(t, t + 10)
    assert A not in run.states.states
    assert (run[TableId(30)].is_proven, run[TableId(30)].proof) == (True, TableProof())
    assert run[TableId(14)].unproven == RENAMED
    assert {decode_state(content).state.table_id for content in topic.records.values()} == {14, 30, B}


def test_cut_whose_states_are_not_taken_is_not_told(store: SchemaStore) -> None:
    topic, t = MemoryStates(), _from(store)
    run = _Run(topic, store)
    run.cut(t, t + 10, {A: TableDelta(2, 6, 2)}, _pending(A))
    topic.is_broken = True
    with pytest.raises(ConnectionError):
        run.cut(t + 10, t + 20, {A: TableDelta(1, 1, 1)})
    topic.is_broken = False
    again = _Run(topic, store)
    assert again.cut(t + 10, t + 20).states[A].after_ts == t + 10
    assert again[A].proof == TableProof(2, 6)


def test_record_reads_back_as_it_was_written() -> None:
    state = CarriedState(
        table_id=A,
        table='s."t"',
        after_ts=Ts(5),
        ts=Ts(7),
        proof=TableProof(-1, (1 << 64) - 1),
        columns=((1, "a"), (2, "ü")),
        begun_ts=Ts(3),
        begun_by="create",
        image=((b"\x00", b"\xff"),),
    )
    record = StateRecord(namespace="n", changefeed_id="c", life="l", run="r", state=state)
    assert decode_state(encode_state(record)) == record
    assert decode_state(encode_state(replace(record, state=state.lost(Ts(9), "why")))).state.unproven == "why"


def test_record_of_the_proofs_topic_tells_states_as_far_as_it_has_room() -> None:
    def state(number: int) -> CarriedState:
        columns = tuple((at, f"column_{at}") for at in range(100))
        return CarriedState(
            table_id=TableId(number), table="s.t", after_ts=Ts(1), ts=Ts(2), columns=columns, image=((b"a", b"b"),)
        )

    first = ProofWindow(after_ts=Ts(0), upto_ts=Ts(1), states={A: state(A).lost(Ts(1), "why"), B: state(B)})
    last = ProofWindow(after_ts=Ts(1), upto_ts=Ts(2), states={A: state(A)})
    content, _ = follow_up(None, NAME, join_windows(first, last))
    read = decode_proof(content).window
    assert read.states == {A: replace(state(A), image=()), B: replace(state(B), image=())} and read.states_total == 2
    assert check_chain([content]).findings == []

    many = ProofWindow(after_ts=Ts(0), upto_ts=Ts(1), states={TableId(n): state(n) for n in range(500)})
    content, _ = follow_up(None, NAME, many)
    read = decode_proof(content).window
    assert len(content) < PROOF_BYTES_MAX and 0 < len(read.states) < read.states_total == 500
    assert list(read.states) == sorted(read.states)


def test_column_keeps_its_texts_only_where_tidb_changes_it_in_place() -> None:
    def version(number: int = 2, **kind: Any) -> ColumnVersion:
        table = table_info(1, "t", columns=[column(1, "id", not_null=True, flag=2), column(number, "v", **kind)])
        return table_version(table, schema_id=1, schema="s", version=Ts(1)).columns[1]

    text, enum, decimal, char, bigint = 15, 247, 246, 254, 8
    same: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"tp": 3}, {"tp": bigint}),
        ({"tp": text, "flen": 5, "charset": "utf8mb4"}, {"tp": text, "flen": 50, "charset": "utf8mb4"}),
        ({"tp": enum, "elems": ["a"]}, {"tp": enum, "elems": ["a", "b"]}),
        ({"tp": decimal, "flen": 10, "decimal": 2}, {"tp": decimal, "flen": 12, "decimal": 2}),
    ]
    other: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"tp": 3}, {"tp": 3, "number": 7}),
        ({"tp": 3}, {"tp": 3, "flag": 32}),
        ({"tp": 3}, {"tp": text, "charset": "utf8mb4"}),
        ({"tp": text, "charset": "utf8mb4"}, {"tp": text}),
        ({"tp": text, "charset": "utf8mb4"}, {"tp": char, "charset": "utf8mb4"}),
        ({"tp": char, "flen": 3}, {"tp": char, "flen": 4}),
        ({"tp": enum, "elems": ["a", "b"]}, {"tp": enum, "elems": ["b", "a"]}),
        ({"tp": decimal, "flen": 10, "decimal": 2}, {"tp": decimal, "flen": 10, "decimal": 3}),
        ({"tp": 12, "decimal": 0}, {"tp": 12, "decimal": 3}),
        ({"tp": 12, "decimal": 0}, {"tp": 7, "decimal": 0}),
        ({"tp": 16, "flen": 3}, {"tp": 16, "flen": 9}),
    ]
    assert [keeps_texts(version(**before), version(**after)) for before, after in same] == [True] * len(same)
    assert [keeps_texts(version(**before), version(**after)) for before, after in other] == [False] * len(other)


def test_illegal_rules_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="state-proofs"):
        load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json", {"state-proofs": ["[bad"]})
    with pytest.raises(BusError, match="state-proofs"):
        load_changefeed("iceberg://?warehouse=file:///tmp/w&mode=append", {"state-proofs": ["a.*"]})
