"""Hashes and deltas of rows by columns equal those of their scalar twins, on random tables and rows of all types."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import Op
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.state_proof.row_text import TableProof, row_hash, value_text
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import join_rows
from sorters.core.cut.state_plan import TableStatePlan
from sorters.core.mount.scalar import mount_row
from sorters.core.state_proof.deltas import StateDeltas, StateLedger, TableDelta, read_deltas, row_deltas
from sorters.core.state_proof.proof_columns import kind_of, proof_columns
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.random_rows import TABLE_ID, random_change, random_table

SEEDS = st.integers(min_value=0, max_value=2**31)


def _table(rng: random.Random) -> TableVersion:
    """A random table; a BIT says how long it is, as TiDB's always do."""
    table = random_table(rng)
    columns = tuple(replace(column, flen=64) if column.tp is MysqlType.BIT else column for column in table.columns)
    return replace(table, columns=columns, all_columns=columns)


def _scalar(table: TableVersion, change: CommittedChange) -> tuple[int, int]:
    """What a change makes of the count and the XOR, mounted and hashed row by row."""
    mounted = mount_row(
        table,
        key=change.key,
        op=Op.PUT if change.op == "put" else Op.DELETE,
        value=change.value,
        old_value=change.old_value,
        commit_ts=Ts(change.commit_ts),
        start_ts=Ts(change.start_ts),
    )
    if mounted is None:
        return 0, 0
    sides = (mounted.pre_columns, mounted.columns)
    specs = [(spec.offset, kind_of(spec)) for spec in proof_columns(table)]
    old, new = (
        None if side is None else row_hash([value_text(kind, side[offset]) for offset, kind in specs]) for side in sides
    )
    proof = TableProof().changed(old, new)
    return proof.rows, proof.xor


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([1, 5, 80]))
def test_columns_hash_as_rows_do(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = _table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    columns = tuple(column.id for column in proof_columns(table))
    counts, xors = row_deltas(row_changes(TABLE_ID, changes), table, columns)
    assert list(zip(counts.tolist(), xors.tolist(), strict=True)) == [_scalar(table, change) for change in changes]


class _OneVersion(SchemaStore):
    """Knows one version of one table, which was always there."""

    def __init__(self, table: TableVersion) -> None:
        super().__init__()
        self._table = table

    def boundaries_of(self, physical_id: TableId) -> np.ndarray:
        return np.array([0], np.int64)

    def lookup(self, physical_id: TableId, commit_ts: Ts) -> TableVersion:
        return self._table


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(min_value=1, max_value=60), st.integers(min_value=1, max_value=4))
def test_repeats_and_tasks_change_nothing(seed: int, count: int, tasks: int) -> None:
    """However rows are spread over tasks, and however often each comes, the cut comes to the same."""
    rng = random.Random(seed)
    table = _table(rng)
    distinct = [random_change(rng, table, number, damage=False) for number in range(count)]
    after_ts = 1000 + rng.randrange(count + 1)
    plan = {TableId(TABLE_ID): TableStatePlan(Ts(after_ts), tuple(column.id for column in proof_columns(table)))}
    repeated = [change for change in distinct for _ in range(rng.choice([1, 1, 2, 3]))]
    rng.shuffle(repeated)
    total = StateDeltas()
    for task in range(tasks):
        ledger = StateLedger(plan, may_repeat=True)
        share = repeated[task::tasks]
        if share:
            ledger.take(row_changes(TABLE_ID, share), _OneVersion(table))
        total += read_deltas(ledger.close().as_plain())
    expected = TableDelta()
    for change in distinct:
        if change.commit_ts > after_ts:
            expected += TableDelta(*_scalar(table, change), 1)
    assert total.settled().get(TableId(TABLE_ID), TableDelta()) == expected

    once = StateLedger(plan, may_repeat=False)
    once.take(join_rows([row_changes(TABLE_ID, [change]) for change in distinct]), _OneVersion(table))
    assert read_deltas(once.close().as_plain()).settled().get(TableId(TABLE_ID), TableDelta()) == expected


def test_chunk_that_comes_twice_where_none_may_shows_in_the_count() -> None:
    rng = random.Random(3)
    table = _table(rng)
    rows = [replace(random_change(rng, table, number, damage=False), op="put", old_value=b"") for number in range(40)]
    rows = [replace(row, value=row.value or rows[0].value) for row in rows]
    distinct = row_changes(TABLE_ID, [row for row in rows if row.value])
    plan = {TableId(TABLE_ID): TableStatePlan(Ts(0), tuple(column.id for column in proof_columns(table)))}
    counted = []
    for times in (1, 2):
        ledger = StateLedger(plan, may_repeat=False)
        for _ in range(times):
            ledger.take(distinct, _OneVersion(table))
        counted.append(ledger.close().settled()[TableId(TABLE_ID)])
    once, twice = counted
    assert (once.rows, twice.rows, twice.xor) == (len(distinct), 2 * len(distinct), 0)
