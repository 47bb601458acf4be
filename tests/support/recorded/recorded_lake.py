"""The recording as lake tables: what is landed for them, and what they have to hold by TiDB's own SELECT."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import groupby
from typing import Any

from schemas.changes import Op
from tests.support.lakes.lake import Lake, Row
from tests.support.rawlog.raw_log import Change, RawLog
from tests.support.recorded.recorded_sink import checks_by_ts
from tests.support.recorded.recording import committed_changes, oracle, row_table_id
from tests.support.topics.materialise import plain

VECTOR_V1 = ("d1.t_v1", "c_vec")
"""TiCDC, and so we, decode a VECTOR of a row in the old format as an empty one (README of the recording)."""


def quiet_points() -> dict[int, list[dict[str, Any]]]:
    """Return the checks of each quiet point by the ts of its last: nobody wrote between them."""
    named = [(ts, check) for ts, checks in checks_by_ts().items() for check in checks if check.get("point")]
    points = {}
    for _, group in groupby(named, key=lambda each: each[1]["point"]):
        checks = list(group)
        points[checks[-1][0]] = [check for _, check in checks]
    return points


def land(log: RawLog, after_ts: int, upto_ts: int) -> None:
    """Land the rows of user tables within ``(after, upto]``; what a lossy DDL rewrote TiKV does not deliver."""
    by_table: dict[int, list[Change]] = {}
    for change in committed_changes():
        table = row_table_id(change.key)
        if table is not None and after_ts < change.commit_ts <= upto_ts and not change.txn_source >> 8:
            op = Op.PUT if change.op == "put" else Op.DELETE
            row = Change(change.commit_ts, change.key, change.value, change.old_value, change.start_ts, op)
            by_table.setdefault(table, []).append(row)
    for number, (table, changes) in enumerate(by_table.items()):
        log.rows(table, changes, number % log.partitions)
    log.advance(upto_ts)


def differences(lake: Lake, name: str, result: Mapping[str, Any], ts: int, *, append: bool) -> list[str]:
    """Return how a lake table at the tag of a ts differs from what TiDB's SELECT gave; of mode ``append`` the changes
    are replayed.
    """
    schema, _, table = name.partition(".")
    if lake.metadata(schema, table) is None:
        return [] if not result["rows"] else [f"{name} is not there"]
    held = lake.rows(schema, table, ts)
    chosen = [
        (column, kind)
        for column, kind in zip(result["columns"], result["types"], strict=True)
        if (name, column) != VECTOR_V1 and (not held or column in held[0])  # virtual columns are in no row
    ]
    selected = [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
    if append:
        held = list(_replayed(name, held, selected, dict(chosen)))
    have = Counter(tuple(cell(row[column], kind) for column, kind in chosen) for row in held)
    want = Counter(tuple(cell(row[column], kind) for column, kind in chosen) for row in selected)
    return [f"{ts} {name}: {row} is missing" for row in want - have] + [f"{ts} {name}: {row} is" for row in have - want]


def cell(value: Any, kind: str) -> Any:
    """Return a cell of a lake table, or of a SELECT, as something that compares equal when they mean the same."""
    if value is not None and kind.removeprefix("UNSIGNED ") in ("DATETIME", "TIMESTAMP", "DATE"):
        # A reader has moments; what no calendar has is NULL.
        text = str(value).removesuffix("+00:00").rstrip("0").rstrip(".") if "." in str(value) else str(value)
        text = text.removesuffix("+00:00")
        year, month, day = text[:10].split("-")
        return None if year == "0000" or "00" in (month, day) else text
    if isinstance(value, Decimal | int) and kind.endswith("BIT"):
        return int(value)
    return plain(value, kind)


def _replayed(name: str, changes: Sequence[Row], selected: Sequence[Row], kinds: Mapping[str, str]) -> Iterator[Row]:
    """Yield the newest change of each key, since the table was emptied last.

    A column that came after the change is NULL in it, and here has what TiDB reads there: its default.
    """
    keys = _keys().get(name, [])  # a table that nobody has written to has none
    emptied_ts, newest = _emptied().get(name, 0), dict[tuple[Any, ...], Row]()
    for row in sorted(changes, key=lambda row: (row["_tidb_commit_ts"], row["_tidb_op"] != "D")):
        key = tuple(cell(row[column], kinds[column]) for column in keys)
        if row["_tidb_op"] == "D":
            newest.pop(key, None)
        elif row["_tidb_commit_ts"] > emptied_ts:
            newest[key] = row
    if not newest:
        return
    by_key = {tuple(cell(row[column], kinds[column]) for column in keys): row for row in selected}
    versions = _columns()[name]
    now = next(ids for _, ids in reversed(versions) if set(kinds) <= set(ids))
    for key, row in newest.items():
        then = next(ids for after_ts, ids in reversed(versions) if after_ts < row["_tidb_commit_ts"])
        later = [column for column in kinds if now[column] not in then.values()]
        assert all(row[column] is None for column in later), (name, row, later)
        yield {**row, **{column: by_key.get(key, row)[column] for column in later}}


@cache
def _keys() -> dict[str, list[str]]:
    """Return the columns of each table's key."""
    return {f"{line['schema']}.{line['table']}": line["handle_columns"] for line in oracle("mounted")}


@cache
def _emptied() -> dict[str, int]:
    """Return when each table was truncated last."""
    events = ((line["commit_ts"], event) for line in oracle("ddl_events") for event in line.get("events", ()))
    return {f"{event['schema']}.{event['table']}": ts for ts, event in events if event["type"] == "truncate table"}


@cache
def _columns() -> dict[str, list[tuple[int, dict[str, int]]]]:
    """Return the versions of each table: above which ts they hold, and the ids of their columns by name."""
    versions: dict[str, list[tuple[int, dict[str, int]]]] = {}
    for line in oracle("table_versions"):
        ids = {column["name"]: column["id"] for column in line["columns"] if column["state"] == "public"}
        versions.setdefault(f"{line['schema']}.{line['table']}", []).append((line["valid_after_commit_ts"], ids))
    return {name: sorted(each, key=lambda version: version[0]) for name, each in versions.items()}
