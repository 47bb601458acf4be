"""The schema store against a model that replays all DDL up to the row's ts, for every row that could be asked about."""

import pickle
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ddl.schema_store import NoSchema, SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord, decode_ddl_record, encode_ddl_record
from schemas.tidb.table import TableVersion
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

CREATE, DROP, TRUNCATE, ADD_COLUMN, RENAME, RECOVER = 3, 4, 11, 5, 14, 25
DROP_SCHEMA, RECOVER_SCHEMA = 2, 63
SCHEMA = 2
START = 10


@dataclass(frozen=True)
class Step:
    """A DDL at ``ts``: what it leaves, by table id (None: gone)."""

    ts: int
    record: DdlRecord
    after: dict[int, str | None]


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Draw a valid run of DDL over a few tables; several may share a ts, as jobs of one transaction could."""
    alive, dropped, steps = {100: "t100"}, dict[int, str](), list[Step]()
    next_id, ts = 101, START
    for number in range(draw(st.integers(0, 12))):
        ts += draw(st.integers(0 if steps else 1, 3))
        kinds = [CREATE, DROP_SCHEMA] + ([DROP, TRUNCATE, ADD_COLUMN, RENAME] if alive else [])
        kind = draw(st.sampled_from(kinds + ([RECOVER] if dropped else [])))
        if kind == DROP_SCHEMA:  # and, in the next breath, FLASHBACK DATABASE: nothing else is there to be done
            for what, after_it in ((DROP_SCHEMA, dict.fromkeys(alive)), (RECOVER_SCHEMA, dict[int, str | None](alive))):
                ts += what == RECOVER_SCHEMA
                named = {"id": SCHEMA, "db_name": {"O": "d", "L": "d"}} if what == RECOVER_SCHEMA else None
                args = {"recover_info": {"LoadTablesOnExecute": True}}
                record = job(ts, what, schema_id=SCHEMA, db_info=named, raw_args=args)
                payload = {**record.payload, "id": 1000 * what + number}
                steps.append(Step(ts, DdlRecord(kind="job", ts=Ts(ts), start_ts=Ts(ts - 1), payload=payload), after_it))
            continue
        if kind == CREATE:
            table_id, name, after = next_id, f"t{next_id}", {next_id: f"t{next_id}"}
            next_id += 1
        elif kind == RECOVER:
            table_id = draw(st.sampled_from(sorted(dropped)))
            name = dropped.pop(table_id)
            after = {table_id: name}
        else:
            table_id = draw(st.sampled_from(sorted(alive)))
            name = alive[table_id]
            after = {table_id: name}
        new_id = table_id
        effect: dict[int, str | None] = dict(after)
        if kind == DROP:
            dropped[table_id] = alive.pop(table_id)
            effect = {table_id: None}
        elif kind == TRUNCATE:
            del alive[table_id]
            new_id, effect = next_id, {table_id: None, next_id: name}
            alive[next_id] = name
            next_id += 1
        elif kind == RENAME:
            name = f"r{number}"
            alive[table_id], effect = name, {table_id: name}
        else:
            alive[table_id] = name
        record = job(ts, kind, schema_id=SCHEMA, table_id=table_id, table_info=table_info(new_id, name))
        record = DdlRecord(kind="job", ts=Ts(ts), start_ts=Ts(ts - 1), payload={**record.payload, "id": number})
        steps.append(Step(ts, record, effect))
    return steps


def fed(steps: list[Step]) -> SchemaStore:
    store = snapshot(("d", SCHEMA, [table_info(100, "t100")]), ts=START)
    for step in steps:
        store.apply(decode_ddl_record(encode_ddl_record(step.record)))
    return store


def model(steps: list[Step], table_id: int, commit_ts: int) -> str | None:
    name = "t100" if table_id == 100 else None
    for step in steps:
        if step.ts < commit_ts:
            name = step.after.get(table_id, name)
    return name


def ids(steps: list[Step]) -> set[int]:
    return {100, *(table_id for step in steps for table_id in step.after)}


@given(histories())
def test_store_any_history_answers_as_a_replay_up_to_each_row(steps: list[Step]) -> None:
    store = fed(steps)
    for table_id in ids(steps):
        for commit_ts in range(START + 1, START + 45):
            answer = store.lookup(TableId(table_id), Ts(commit_ts))
            name = answer.table if isinstance(answer, TableVersion) else None
            assert name == model(steps, table_id, commit_ts)
            assert name is not None or isinstance(answer, NoSchema)


@given(histories(), st.data())
def test_store_with_repeats_pickled_and_collected_answers_the_same_above_gc(
    steps: list[Step], data: st.DataObject
) -> None:
    repeated = list(steps)
    for _ in range(data.draw(st.integers(0, 3))):
        end = data.draw(st.integers(0, len(repeated)))
        repeated[end:end] = repeated[data.draw(st.integers(0, end)) : end]
    gc_ts = data.draw(st.integers(START, START + 40))
    store: SchemaStore = pickle.loads(pickle.dumps(fed(repeated)))
    store.gc(Ts(gc_ts))
    for table_id in ids(steps):
        for commit_ts in range(gc_ts + 1, START + 45):
            version = store.table_at(TableId(table_id), Ts(commit_ts))
            assert (version.table if version else None) == model(steps, table_id, commit_ts)


@given(histories())
@settings(max_examples=50)
def test_pullable_tables_any_ts_are_those_whose_next_row_has_a_schema(steps: list[Step]) -> None:
    store = fed(steps)
    for ts in range(START, START + 40):
        pullable = {pid: stored.table for pid, stored in store.pullable_tables_at(Ts(ts)).items()}
        expected = {table_id: model(steps, table_id, ts + 1) for table_id in ids(steps)}
        assert pullable == {table_id: name for table_id, name in expected.items() if name is not None}


@settings(max_examples=60)
@given(histories(), st.integers(0, 12), st.integers(0, 40))
def test_a_copy_can_be_fed_and_collected_under_readers(steps: list[Step], kept: int, gc_ts: int) -> None:
    kept = min(kept, len(steps))
    before, alone = fed(steps[:kept]), fed(steps[:kept])
    copied = before.copy()
    for step in steps[kept:]:
        copied.apply(decode_ddl_record(encode_ddl_record(step.record)))
    assert vars(copied)["_physical"] == vars(fed(steps))["_physical"]
    copied.gc(Ts(gc_ts))
    for state in ("_physical", "_logical", "_current", "_truncated", "_superseded"):
        assert vars(before)[state] == vars(alone)[state], state
    assert before.changes == alone.changes
    assert before.snapshot_ts == alone.snapshot_ts
