"""Rows/s of `tidebus verify`: two schemas of one MariaDB compared, and with differences; and of row hashes in Python.

``python -m tests.bench.sinks.verify`` prints one JSON line. Source and destination are one server here, so it computes
each row's hash twice; ``rows_per_cpu_s`` is rows compared by the CPU time of server and client. ``narrowed_s`` is the
time of a comparison that names 20 keys, beside one that finds nothing. The table is sysbench's: some 200 bytes a row.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from compose.stack.mariadb import LocalMariaDb
from consumers.verify.core.outcome import TableOutcome, Verdict
from schemas.ids import Ts
from schemas.state_proof.column_kind import column_kind
from schemas.state_proof.row_text import TableProof, row_hash, value_text
from tests.support.database.apply import run_sql
from tests.support.database.verify import MariaDbSource, pair, table_check

ROWS = int(os.environ.get("VERIFY_ROWS", "1000000"))
RANGE_ROWS = 50_000
PYTHON_ROWS = 200_000
DIFFERENT = 20
FEED = "bench"
TABLE = "id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL"


def main() -> int:
    """Fill both schemas, compare them, plant differences, compare again; print the figure."""
    load_before = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder, LocalMariaDb(data=Path(folder), say=_say) as server:
        _fill(server)
        same, same_s, cpu_s = _compared(server)
        assert same.verdict is Verdict.SAME, same
        assert same.source_proof.rows == ROWS
        run_sql(server, f"UPDATE d.t SET k = k + 1 WHERE id % {ROWS // DIFFERENT} = 0")
        different, narrowed_s, _ = _compared(server)
        assert len(different.differences) == DIFFERENT, different
    figure = {
        "bench": "verify",
        "rows": ROWS,
        "rows_per_s": round(ROWS / same_s),
        "rows_per_cpu_s": round(ROWS / cpu_s),
        "seconds": round(same_s, 2),
        "narrowed_s": round(narrowed_s, 2),
        "python_rows_per_s": round(_python_rows_per_s()),
        "load_before": load_before,
    }
    print(json.dumps(figure), flush=True)
    return 0


def _compared(server: LocalMariaDb) -> tuple[TableOutcome, float, float]:
    assert server.child is not None
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    check = table_check(MariaDbSource(server), FEED, range_rows=RANGE_ROWS)
    began_at, cpu = time.monotonic(), _cpu_s(processes)
    outcome = check.check(pair("t"))
    return outcome, time.monotonic() - began_at, _cpu_s(processes) - cpu


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _fill(server: LocalMariaDb) -> None:
    position = (Ts(5)).to_bytes(8, "big") + b"\2" + bytes(9)
    run_sql(
        server,
        "CREATE DATABASE u",
        "CREATE DATABASE d",
        "CREATE DATABASE tidebus",
        "CREATE TABLE tidebus.position (feed VARCHAR(9), part INT, position VARBINARY(64))",
        "CREATE TABLE tidebus.changefeed (feed VARCHAR(9), ddl_state VARCHAR(16))",
        f"INSERT INTO tidebus.position VALUES ('{FEED}', 0, x'{position.hex()}')",
        f"CREATE TABLE u.t ({TABLE})",
        f"INSERT INTO u.t SELECT seq, seq * 7919 % 1000003, concat(md5(seq), md5(seq + 1), md5(seq + 2)), md5(-seq)"
        f" FROM u.seq_1_to_{ROWS}",
        f"CREATE TABLE d.t ({TABLE})",
        "INSERT INTO d.t SELECT * FROM u.t",
    )


def _python_rows_per_s() -> float:
    """As the client library does it, on rows of the same shape."""
    kinds = [column_kind(kind) for kind in ("bigint", "bigint", "char(120)", "char(60)")]
    rows: list[tuple[int | str, ...]] = [(number, number * 7, "c" * 96, "p" * 32) for number in range(PYTHON_ROWS)]
    began_at, proof = time.process_time(), TableProof()
    for row in rows:
        texts = [value_text(kind, value) for kind, value in zip(kinds, row, strict=True)]
        proof = proof.changed(None, row_hash(texts))
    assert proof.rows == PYTHON_ROWS
    return PYTHON_ROWS / (time.process_time() - began_at)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
