"""State proofs over the recording of a real TiDB: what is carried is what the tables hold, however runs end."""

import random
from collections import Counter

import pytest

from schemas.changes import Op, RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.row_text import TableProof, row_hash, value_text
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount.scalar import mount_row
from sorters.core.state_proof.deltas import StateDeltas
from sorters.core.state_proof.proof_columns import kind_of
from sorters.cut.cut_books import state_ledger
from sorters.run.proofs.state_proofs import StateProofs
from tests.support.rawlog.memory_states import MemoryStates
from tests.support.recorded.mounting import LOSSY_DDL_BITS, row_changes
from tests.support.recorded.recording import CommittedChange, committed_changes, row_table_id
from tests.support.recorded.schema_feed import schema_store

NAME = ("default", "a")
UNPROVEN = {
    "ddl: exchange partition": 1,
    "ddl: alter table remove partitioning": 1,
    "ddl: modify column, column grade": 1,
    "ddl: drop column, column c_data": 1,
}
"""Of the recording's tables, by the DDL that ended the proof of what there is at its end."""


class _Recording:
    """The recording's rows of user tables, and its schemas."""

    def __init__(self) -> None:
        self.schemas: SchemaStore = schema_store(committed_changes())
        assert self.schemas.snapshot_ts is not None
        self.start_ts = self.schemas.snapshot_ts
        self.rows: dict[TableId, list[CommittedChange]] = {}
        for change in committed_changes():
            table_id = row_table_id(change.key)
            if table_id is None or change.txn_source & LOSSY_DDL_BITS:
                continue
            if self.schemas.versions_of(TableId(table_id)):
                self.rows.setdefault(TableId(table_id), []).append(change)
        self.end_ts = Ts(max(change.commit_ts for rows in self.rows.values() for change in rows))

    def between(self, after_ts: Ts, upto_ts: Ts) -> dict[TableId, RowChanges]:
        chosen = {
            table: [change for change in rows if after_ts < change.commit_ts <= upto_ts]
            for table, rows in self.rows.items()
        }
        return {table: row_changes(table, rows) for table, rows in chosen.items() if rows}

    def proof_at(self, state: CarriedState, ts: Ts) -> TableProof:
        """What the rows that live at ``ts`` come to, each hashed by itself with the columns of the proof."""
        live: dict[bytes, CommittedChange] = {}
        for change in self.rows.get(state.table_id, ()):
            if change.commit_ts <= ts:
                live[change.key] = change
        proof = TableProof()
        table = self.schemas.table_at(state.table_id, Ts(ts + 1))
        assert table is not None
        by_id = {column.id: column for column in table.columns}
        for change in live.values():
            if change.op == "delete":
                continue
            row = mount_row(
                table, key=change.key, op=Op.PUT, value=change.value, old_value=b"", commit_ts=Ts(ts), start_ts=Ts(ts)
            )
            assert row is not None and row.columns is not None
            specs = [by_id[number] for number, _ in state.columns]
            texts = [value_text(kind_of(spec), row.columns[spec.offset]) for spec in specs]
            proof = proof.changed(None, row_hash(texts))
        return proof


@pytest.fixture(scope="module")
def recording() -> _Recording:
    return _Recording()


def _feed(**config: object) -> CompiledFeed:
    settings = {"state-proofs": ["*.*"], "force-replicate": True, **config}
    return compile_feed(load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json", settings), "default")


def _cut(after_ts: Ts, upto_ts: Ts, *, may_repeat: bool = False) -> Cut:
    return Cut(after_ts=after_ts, upto_ts=upto_ts, start=(0,), end=(1,), may_repeat=may_repeat, ddl_end=0)


def _deltas(recording: _Recording, cut: Cut) -> StateDeltas:
    ledger = state_ledger(cut)
    if ledger is None:
        return StateDeltas()
    for rows in recording.between(cut.after_ts, cut.upto_ts).values():
        for _ in range(2 if cut.may_repeat else 1):
            ledger.take(rows, recording.schemas)
    return ledger.close()


@pytest.mark.parametrize("seed", range(4))
def test_carried_proofs_are_what_tables_hold_whatever_cuts_and_kills(recording: _Recording, seed: int) -> None:
    rng = random.Random(seed)
    stamps = sorted({change.commit_ts for rows in recording.rows.values() for change in rows})
    borders = [Ts(ts) for ts in sorted({*rng.sample(stamps, min(rng.choice([3, 30]), len(stamps))), recording.end_ts})]
    topic, feed = MemoryStates(), _feed()
    states, at = StateProofs(topic, NAME, "life"), recording.start_ts
    for border in borders:
        while True:
            cut = states.plan(_cut(at, border, may_repeat=rng.random() < 0.3), recording.schemas, feed)
            deltas = _deltas(recording, cut)
            fate = rng.choice(["lives", "lives", "dies before it tells", "dies before the checkpoint"])
            if fate != "dies before it tells":
                states.tell(deltas)
            if fate == "lives":
                break
            states = StateProofs(topic, NAME, "life")
        at = border
    proven = [state for state in topic.read(NAME, "life")[0].values() if state.is_proven]
    assert {state.table_id: state.proof for state in proven} == {
        state.table_id: recording.proof_at(state, recording.end_ts) for state in proven
    }
    # Most tables of the recording are made in it, and none is carried that is gone.
    there = {table for table in recording.rows if recording.schemas.table_at(table, Ts(recording.end_ts + 1))}
    assert len(proven) > len(there) / 2 and sum(state.proof.rows for state in proven) > 100
    assert Counter(state.unproven for state in states.states.values()) == {"": len(proven), **UNPROVEN}
