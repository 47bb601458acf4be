"""What TiDB's own SELECTs returned while the recording was made."""

from collections.abc import Iterator
from typing import Any

from tests.support.recorded.recording import TIDB_DATA, oracle, read_jsonl


def checks() -> Iterator[dict[str, Any]]:
    """Yield the SELECT * of every check, by read_ts."""
    lines = [line for line in read_jsonl(TIDB_DATA / "sql.jsonl.zst") if line.get("check") and line.get("result")]
    return iter(sorted(lines, key=lambda line: int(line["read_ts"])))


def enum_names() -> dict[str, dict[str, list[str]]]:
    """Return the elements of each ENUM and SET column, by table and column."""
    names: dict[str, dict[str, list[str]]] = {}
    for version in oracle("table_versions"):
        for column in version["columns"]:
            if column.get("elems"):
                names.setdefault(f"{version['schema']}.{version['table']}", {})[column["name"]] = column["elems"]
    return names
