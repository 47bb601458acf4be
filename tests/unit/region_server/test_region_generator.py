"""What the generator writes must read back as TiDB's own data, by the readers of real data."""

import json
from collections import Counter
from collections.abc import Callable
from importlib.resources import files

import pytest

from producers.region_server.core.store import ddl_writes
from producers.region_server.core.store.commands import Commit
from producers.region_server.core.store.row_shapes import SHAPES, json_value, text_pool
from producers.region_server.core.store.txn_status import TS_MAX, StatusQuestion, check_txn_status, is_expired
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer
from schemas.ddl.job import decode_ddl_job_row, parse_ddl_job
from schemas.errors import ConfigError
from schemas.ids import PHYSICAL_SHIFT_BITS, TableId, Ts
from schemas.tidb.binary_json import json_text
from schemas.tidb.keys import decode_meta_hash_key, decode_row_key, row_key
from schemas.tidb.row_v2 import decode_row_v2
from tests.support.recorded.recording import TIDB_DATA, oracle, read_jsonl

POOL = text_pool(lambda n: "7" * n, size=4096)


def _is_row(key: bytes) -> bool:
    return key[:1] == b"t" and key[9:11] == b"_r"


def template(name: str) -> dict[str, object]:
    path = files("producers.region_server") / "templates" / f"{name}.json"
    loaded: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_template_of_a_shape_is_the_table_that_a_real_tidb_made(name: str) -> None:
    recorded = next(read_jsonl(TIDB_DATA.parent / "rows" / f"{name}.jsonl.zst"))
    assert template(name)["table_info"] == recorded["table_info"]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_rows_of_a_shape_have_the_columns_of_its_table_and_change_with_the_sequence(name: str) -> None:
    shape, table = SHAPES[name], template(name)["table_info"]
    assert isinstance(table, dict)
    ids = {column["id"] for column in table["cols"]}
    for number in (1, 2, 9_999, 1_000_000):
        values = [shape.value(number, sequence, POOL) for sequence in (1, 2)]
        assert values[0] != values[1]
        assert shape.value(number, 1, POOL) == values[0]
        columns = set(decode_row_v2(values[0]))
        assert columns <= ids
        key = decode_row_key(shape.key(TableId(77), number))
        assert key.table_id == 77
        # What is not in the row is in the key: the id, or the four primary key columns of order_line.
        assert len(ids - columns) == (4 if name == "order_line" else 1)
    keys = {shape.key(TableId(77), number) for number in range(1, 5000)}
    assert len(keys) == 4999


def test_json_value_reads_back() -> None:
    assert json.loads(json_text(json_value({"b": "é" * 70, "a": -5}))) == {"a": -5, "b": "é" * 70}


def test_ddl_transactions_have_the_keys_and_fields_that_a_real_tidb_wrote() -> None:
    # The recording's CREATE TABLE t_nopk: same keys in the same transaction, same fields in the job.
    start_ts = 470615985205805056
    recorded = [r for r in oracle("kv") if r["kind"] == "prewrite" and r["start_ts"] == start_ts]
    theirs = {bytes.fromhex(m["key"]): bytes.fromhex(m["value"]) for r in recorded for m in r["muts"]}
    table = json.loads(theirs[ddl_writes.table_mutation(114, {"id": 118}).key])
    query = "CREATE TABLE t_nopk (a INT, b VARCHAR(20), UNIQUE KEY ub(b))"
    plan = ddl_writes.DdlPlan(
        job_id=119, schema_id=114, schema_name="d1", schema_version=59, query=query, table=table
    )  # fmt: skip
    ours = {mutation.key: mutation.value for mutation in ddl_writes.finish_job(plan, Ts(start_ts))}
    shared = ours.keys() & theirs.keys()
    assert len(shared) == 3  # the table, the diff, the job; TiDB writes SchemaVersionKey in a transaction of its own
    job_key = row_key(ddl_writes.DDL_JOB_TABLE_ID, 119)
    assert {key: ours[key] for key in shared - {job_key}} == {key: theirs[key] for key in shared - {job_key}}
    job_table = template("tidb_ddl_job")["table_info"]
    assert isinstance(job_table, dict)
    jobs = [
        decode_ddl_job_row(value, job_table, start_ts=Ts(start_ts), commit_ts=Ts(9))
        for value in (ours[job_key], theirs[job_key])
    ]
    assert jobs[0] is not None
    assert jobs[1] is not None
    incidental = {"start_ts", "trace_info", "seq_num", "session_vars"}
    for payload in (jobs[0].payload, jobs[1].payload):
        for name in incidental:
            payload.pop(name, None)
    assert jobs[0].payload == jobs[1].payload


def run_generator(**options: object) -> tuple[RegionServer, Generator]:
    with RegionServer() as server:
        generator = Generator(server, GeneratorOptions(rows_per_s=0, **options))  # type: ignore[arg-type]
        server.spawn(generator.run()).result(60)
    return server, generator


def test_generator_writes_its_tables_by_ddl_and_exactly_so_many_rows() -> None:
    server, generator = run_generator(rows_max=1234, tables=3, shapes=("sbtest1", "wide10"), rollback_share=0.0)
    assert generator.rows_committed == 1234
    versions = Counter[int]()
    jobs, schemas = [], set()
    job_table = template("tidb_ddl_job")["table_info"]
    for region in server.store.regions:
        assert not region.data.locks
        for key, newest in region.data.writes.items():
            field = decode_meta_hash_key(key)
            if field is not None and field[0] == b"DBs":
                schemas.add(json.loads(newest.value)["db_name"]["O"])
            write = newest if _is_row(key) else None
            while write is not None:
                table_id = decode_row_key(key).table_id
                versions[table_id] += 1
                if table_id == ddl_writes.DDL_JOB_TABLE_ID and write.value:
                    assert isinstance(job_table, dict)
                    job = decode_ddl_job_row(write.value, job_table, start_ts=write.start_ts, commit_ts=write.commit_ts)
                    jobs += [parse_ddl_job(job)] if job else []
                write = write.previous
    assert schemas == {"mysql", "gen"}
    assert sorted(job.query for job in jobs)[0] == "CREATE DATABASE `gen`"
    assert len(jobs) == 4
    del versions[ddl_writes.DDL_JOB_TABLE_ID]
    assert sum(versions.values()) == 1234
    assert len(versions) == 3


def versions_of(server: RegionServer, generator: Generator) -> int:
    """Count all versions of the generator's rows; none of them may be locked any more."""
    count = 0
    for region in server.store.regions:
        assert not region.data.locks
        for key, newest in region.data.writes.items():
            write = newest if _is_row(key) and decode_row_key(key).table_id in generator.table_ids else None
            while write is not None:
                count, write = count + 1, write.previous
    return count


def end_expired(server: RegionServer) -> Counter[str]:
    """End every open transaction at one key, as who meets its lock there when its time is up; count what it came to."""
    ended = Counter[str]()
    for start_ts, primary in server.store.open_transactions().items():
        region = server.store.regions.of_key(primary)
        ask = StatusQuestion(primary=primary, lock_ts=start_ts, current_ts=TS_MAX)
        status = check_txn_status(region.data, ask)
        server.store.applied(region, status.changes)
        if status.lock is None:
            ended["rolled back"] += 1
            continue
        assert status.lock.txn.use_async_commit
        # All its keys are locked, so it is committed; of which the other keys hear first here.
        others = status.lock.txn.secondaries
        commit_ts = status.lock.txn.min_commit_ts
        server.store.apply(Commit(start_ts=start_ts, commit_ts=commit_ts, keys=others[:1] or [primary]))
        ended["committed"] += 1
    return ended


def run_disturbed(rests: Callable[[RegionServer], None], **options: object) -> tuple[RegionServer, Generator]:
    """Run a generator; call ``rests`` each time it lets streams go on, as if it had to wait long for them."""
    with RegionServer() as server:
        go_on = server.let_streams_go_on

        async def disturbed(backlog_bytes: int = 0) -> None:
            rests(server)
            await go_on()

        server.let_streams_go_on = disturbed  # type: ignore[method-assign]
        generator = Generator(server, GeneratorOptions(rows_per_s=0, tables=1, **options))  # type: ignore[arg-type]
        server.spawn(generator.run()).result(60)
    return server, generator


@pytest.mark.parametrize("rollback_share", [0.0, 0.5])
def test_generator_when_others_end_its_transactions_while_it_waits_then_it_takes_them_as_they_ended(
    rollback_share: float,
) -> None:
    ended = Counter[str]()
    server, generator = run_disturbed(
        lambda server: ended.update(end_expired(server)),
        rows_max=20_000, async_commit_share=0.3, rollback_share=rollback_share,
    )  # fmt: skip
    assert ended["rolled back"] > 50
    assert ended["committed"] > 30
    assert versions_of(server, generator) == generator.rows_committed < 20_000


def test_generator_keeps_its_transactions_alive_for_minutes_of_a_wait() -> None:
    alive = Counter[bool]()

    def look(server: RegionServer) -> None:
        in_a_minute = Ts(server.oracle.tso() + (60_000 << PHYSICAL_SHIFT_BITS))
        for region in server.store.regions:
            alive.update(not is_expired(lock, in_a_minute) for lock in region.data.locks.values())

    run_disturbed(look, rows_max=3_000)
    assert set(alive) == {True}


def test_generator_rolls_back_no_async_commit_transaction_for_its_locks_have_committed_it() -> None:
    options = {"one_pc_share": 0.0, "pessimistic_share": 0.0, "async_commit_share": 1.0, "rollback_share": 1.0}
    _, generator = run_generator(rows_max=300, **options)
    assert generator.rows_committed == 300


def test_generator_with_the_same_seed_writes_the_same_rows() -> None:
    def rows(server: RegionServer) -> dict[bytes, bytes]:
        return {k: w.value for region in server.store.regions for k, w in region.data.writes.items() if _is_row(k)}

    first, second, other = (rows(run_generator(rows_max=300, tables=1, seed=seed)[0]) for seed in (5, 5, 6))
    job = {key for key in first if decode_row_key(key).table_id == ddl_writes.DDL_JOB_TABLE_ID}
    assert {key: first[key] for key in first.keys() - job} == {key: second[key] for key in second.keys() - job}
    assert first != other


@pytest.mark.parametrize(
    "wrong",
    [{"shapes": ("nope",)}, {"tables": 0}, {"rows_per_s": -1}, {"update_share": 0.8, "delete_share": 0.3}],
)
def test_generator_options_that_make_no_sense_are_config_errors(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GeneratorOptions(**wrong)  # type: ignore[arg-type]
