"""DuckDB as a reader of lake tables, in a process of its own.

It and its extensions come by pip, once, into the cache; where they cannot be had, tests skip and say so.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
_CONNECTED = """
import json, sys
import duckdb
folder, *said = json.loads(sys.argv[1])
connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
connection.execute("SET enable_progress_bar = false")  # it goes to stdout, among the moments
for name in ("avro", "iceberg"):
    path = f"{folder}/duckdb_extension_{name}/extensions/v{duckdb.__version__}/{name}.duckdb_extension"
    connection.execute(f"LOAD '{path}'")
"""
_READER = f"""{_CONNECTED}
import pyarrow as pa
metadata, *snapshots = said
for snapshot, file in snapshots:
    query = f"SELECT * FROM iceberg_scan(?, snapshot_from_id={{int(snapshot)}}::UBIGINT)"
    table = connection.execute(query, [metadata]).fetch_arrow_table()
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
"""
_POLLER = f"""{_CONNECTED}
import glob, re, threading, urllib.request
where, schema, tables, column = said
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()

def located(table):
    if where.startswith("http"):
        with urllib.request.urlopen(f"{{where}}/v1/namespaces/{{schema}}/tables/{{table}}", timeout=60) as answer:
            return json.load(answer)["metadata-location"].removeprefix("file:")
    files = glob.glob(f"{{where}}/{{schema}}/{{table}}/metadata/v*.metadata.json")
    return max(files, key=lambda file: int(re.search(r"v(\\d+)[.]metadata", file)[1]))

def total(files, refs, ref):
    scans = ("coalesce((SELECT sum({{}}) FROM iceberg_scan(?, snapshot_from_id={{}}::UBIGINT)), 0)" for _ in files)
    scans = [scan.format(column, each[ref]["snapshot-id"]) for scan, each in zip(scans, refs)]
    return int(connection.execute("SELECT " + " + ".join(scans), files).fetchone()[0])

while not ends.is_set():
    files = [located(table) for table in tables]
    if located(tables[0]) != files[0]:
        continue  # it moved meanwhile: this was no moment
    refs = [json.load(open(file))["refs"] for file in files]
    tags = [{{name for name in each if name.startswith("wm_")}} for each in refs]
    newest = max(set.intersection(*tags), default=None, key=lambda name: int(name[3:]))
    at_tag = None if newest is None else total(files, refs, newest)
    moment = refs[0]["main"]["snapshot-id"], total(files, refs, "main"), all(each == tags[0] for each in tags)
    print(json.dumps([*moment, newest, at_tag]), flush=True)
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


@dataclass(frozen=True, slots=True)
class Moment:
    """What a reader sees of some tables that are written meanwhile, none of which moved while it looked them up."""

    main: int
    """The snapshot of the first of them."""
    total: int
    """The sum of a column over main of all."""
    has_same_tags: bool
    tag: str | None
    """The newest that all have."""
    total_at_tag: int | None


@contextmanager
def duckdb_polls(
    where: str, schema: str, tables: Sequence[str], column: str, scratch: Path
) -> Iterator[Callable[[], list[Moment]]]:
    """Let DuckDB read tables again and again, in a process of its own; yield what ends it and says what it saw.

    Args:
        where: the folder of a catalog of files, or the address of a REST catalog.
    """
    folder, file = duckdb_or_skip(), scratch / "moments.jsonl"
    said = json.dumps([str(folder), where, schema, list(tables), column])
    with file.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _POLLER, said], env=_environment(folder), stdin=subprocess.PIPE, stdout=out
        )

    def seen() -> list[Moment]:
        process.communicate(timeout=_TIMEOUT_S)
        assert process.returncode == 0, "DuckDB could read the tables at every moment"
        return [Moment(*json.loads(line)) for line in file.read_text().splitlines()]

    try:
        yield seen
    finally:
        process.kill()
        process.wait()


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "TZ": "UTC"}


def assert_duckdb_reads_the_same(lake: Lake, schema: str, table: str, scratch: Path) -> int:
    """Hold what DuckDB reads of a table at each tag, and of main, against what pyiceberg does; return how many rows."""
    folder, opened = duckdb_or_skip(), lake.table(schema, table)
    snapshots = {ref.snapshot_id: str(scratch / f"{ref.snapshot_id}.arrow") for ref in opened.refs().values()}
    said = json.dumps([str(folder), opened.metadata_location.removeprefix("file:"), *snapshots.items()])
    subprocess.run([sys.executable, "-c", _READER, said], env=_environment(folder), check=True, timeout=_TIMEOUT_S)
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
