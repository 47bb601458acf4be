"""A dump of the region server's tables in dumpling's layout, and what loads one: a file a statement, in order of names.

    metadata                          Pos: the ts of the dump
    SCHEMA-schema-create.sql          CREATE DATABASE
    SCHEMA.TABLE-schema.sql           CREATE TABLE
    SCHEMA.TABLE.000000000.sql        INSERT INTO … VALUES, one row a line

Source: pingcap/tidb ``dumpling/export`` (``metadata.go``, ``writer.go``).
"""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from compose.stack.mariadb import LocalMariaDb
from tests.support.database.apply import run_sql
from tests.support.upstream.upstream_rows import Rows

DATA_FILE = re.compile(r"[^.]+\.[^.]+\.\d+\.sql")


def write_dump(folder: Path, ts: int, rows: Rows) -> None:
    """Write tables of sysbench's shape, by ``schema.table``, as they stood at ``ts``."""
    template: Mapping[str, str] = json.loads(
        files("producers.region_server").joinpath("templates/sbtest1.json").read_text()
    )
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(f"SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {ts}\n\tGTID:\n")
    for name, table in rows.items():
        schema, _, bare = name.partition(".")
        (folder / f"{schema}-schema-create.sql").write_text(f"CREATE DATABASE IF NOT EXISTS `{schema}`;\n")
        (folder / f"{name}-schema.sql").write_text(template["create"].format(name=bare) + ";\n")
        values = ",\n".join(f"({number},{k},'{c}','{pad}')" for number, (k, c, pad) in sorted(table.items()))
        if values:
            (folder / f"{name}.000000000.sql").write_text(f"INSERT INTO `{bare}` VALUES\n{values};\n")


def dumped_ts(folder: Path) -> int:
    """Return the ts of a dump: what `--start-ts` is given."""
    position = re.search(r"Pos: (\d+)", (folder / "metadata").read_text())
    assert position is not None
    return int(position[1])


def load_dump(folder: Path, server: LocalMariaDb) -> None:
    """Load a dump as a loader does: databases, tables, rows."""
    for file in sorted(folder.glob("*-schema-create.sql")):
        run_sql(server, file.read_text())
    for file in sorted(folder.glob("*.*-schema.sql")):
        run_sql(server, f"USE `{file.name.partition('.')[0]}`", file.read_text())
    for file in sorted(folder.iterdir()):
        if DATA_FILE.fullmatch(file.name):
            run_sql(server, f"USE `{file.name.partition('.')[0]}`", file.read_text())
