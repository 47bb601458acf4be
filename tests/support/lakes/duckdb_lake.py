"""DuckDB as a reader of lake tables, in a process of its own.

It and its extensions come by pip, once, into the cache; where they cannot be had, tests skip and say so.
"""

import json
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compose.stack.jars import cache_dir
from tests.support.lakes.lake import Lake

VERSION = "1.5.5"
_PACKAGES = ("duckdb", "duckdb-extension-avro", "duckdb-extension-iceberg")
_TIMEOUT_S = 300
_READER = """
import json, sys
import duckdb, pyarrow as pa
folder, metadata, *snapshots = json.loads(sys.argv[1])
connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
for name in ("avro", "iceberg"):
    path = f"{folder}/duckdb_extension_{name}/extensions/v{duckdb.__version__}/{name}.duckdb_extension"
    connection.execute(f"LOAD '{path}'")
for snapshot, file in snapshots:
    query = f"SELECT * FROM iceberg_scan(?, snapshot_from_id={int(snapshot)}::UBIGINT)"
    table = connection.execute(query, [metadata]).fetch_arrow_table()
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
"""


def duckdb_or_skip() -> Path:
    """Return the folder of its packages, fetching them where needed, or skip the test."""
    folder = cache_dir() / f"duckdb-{VERSION}"
    if not (folder / "whole").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        command += [f"{name}=={VERSION}" for name in _PACKAGES]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if ran.returncode != 0:
            warnings.warn(f"NOT TESTED, lake tables by DuckDB: {ran.stderr[-500:]}", stacklevel=1)
            pytest.skip("no DuckDB with its Iceberg extension")
        (folder / "whole").touch()
    return folder


def assert_duckdb_reads_the_same(lake: Lake, schema: str, table: str, scratch: Path) -> int:
    """Hold what DuckDB reads of a table at each tag, and of main, against what pyiceberg does; return how many rows."""
    folder, opened = duckdb_or_skip(), lake.table(schema, table)
    snapshots = {ref.snapshot_id: str(scratch / f"{ref.snapshot_id}.arrow") for ref in opened.refs().values()}
    said = json.dumps([str(folder), opened.metadata_location.removeprefix("file:"), *snapshots.items()])
    environment = {**os.environ, "PYTHONPATH": str(folder), "TZ": "UTC"}
    subprocess.run([sys.executable, "-c", _READER, said], env=environment, check=True, timeout=_TIMEOUT_S)
    count = 0
    for snapshot, file in snapshots.items():
        with pa.OSFile(file) as source:
            rows = pa.ipc.open_file(source).read_all().to_pylist()
        wanted = opened.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        assert _in_order(rows) == _in_order(wanted)
        count += len(rows)
    return count


def _in_order(rows: list[dict[str, Any]]) -> list[list[str]]:
    return sorted([f"{name} {_shown(value)}" for name, value in sorted(row.items())] for row in rows)


def _shown(value: object) -> str:
    return repr(value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value)
