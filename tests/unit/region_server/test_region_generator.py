"""What the generator writes must read back as TiDB's own data, by the readers of real data."""

import json
from collections import Counter
from importlib.resources import files

import pytest

from producers.region_server.core.store import ddl_writes
from producers.region_server.core.store.row_shapes import SHAPES, json_value, text_pool
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer
from schemas.ddl.job import decode_ddl_job_row, parse_ddl_job
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts
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
