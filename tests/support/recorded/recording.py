"""Readers of ``tests/data``, and the fold of the recorded write requests into committed row changes.

The fold obeys the rule in ``tests/data/tidb/README.md`` and shares no code with the product: it is an oracle's source.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import zstandard

TIDB_DATA = Path(__file__).parents[2] / "data" / "tidb"
KV_PATH = TIDB_DATA / "kv.jsonl.zst"

Op = Literal["put", "delete"]


@dataclass(frozen=True, slots=True, order=True)
class CommittedChange:
    """One version of one key. ``old_value`` is the version before it; empty: there was none, or it was a delete."""

    commit_ts: int
    start_ts: int
    key: bytes
    op: Op
    value: bytes
    old_value: bytes
    txn_source: int


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a zstd-compressed JSON lines file."""
    with path.open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8"):
            yield json.loads(line)


def oracle(name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of ``tests/data/tidb/{name}.jsonl.zst``."""
    return read_jsonl(TIDB_DATA / f"{name}.jsonl.zst")


@cache
def committed_changes(path: Path = KV_PATH) -> tuple[CommittedChange, ...]:
    """Return every committed version of every key (rows, indexes, meta), ordered by (commit_ts, start_ts, key)."""
    fold = _Fold()
    for record in read_jsonl(path):
        fold.take(record)
    return tuple(fold.changes())


def row_table_id(key: bytes) -> int | None:
    """Return the physical table id of a row key (``t…_r…``); None for any other key."""
    if len(key) < 19 or key[:1] != b"t" or key[9:11] != b"_r":
        return None
    return int.from_bytes(key[1:9], "big") - (1 << 63)


class _Fold:
    """Locks by transaction and key, and the versions that commits make of them."""

    def __init__(self) -> None:
        self._locks: dict[int, dict[bytes, tuple[str, bytes, int]]] = {}
        self._versions: dict[bytes, dict[int, tuple[int, Op, bytes, int]]] = {}

    def take(self, record: dict[str, Any]) -> None:
        match record["kind"]:
            case "prewrite" | "flush":
                self._prewrite(record)
            case "commit":
                self._commit(record["start_ts"], record["commit_ts"], _keys(record))
            case "rollback":
                self._drop(record["start_ts"], _keys(record))
            case "resolve_lock":
                start_ts = record["start_ts"]
                # Without keys the request means the region's locks; a transaction ends one way, so all of them do.
                keys = _keys(record) or list(self._locks.get(start_ts, {}))
                if record.get("commit_ts"):
                    self._commit(start_ts, record["commit_ts"], keys)
                else:
                    self._drop(start_ts, keys)

    def changes(self) -> Iterator[CommittedChange]:
        ordered = sorted(
            (commit_ts, start_ts, key, op, value, source)
            for key, versions in self._versions.items()
            for commit_ts, (start_ts, op, value, source) in versions.items()
        )
        last = dict[bytes, bytes]()
        for commit_ts, start_ts, key, op, value, source in ordered:
            yield CommittedChange(commit_ts, start_ts, key, op, value, last.get(key, b""), source)
            last[key] = value

    def _prewrite(self, record: dict[str, Any]) -> None:
        start_ts, source = record["start_ts"], record.get("txn_source", 0)
        locks = self._locks.setdefault(start_ts, {})
        keys = []
        for mutation in record["muts"]:
            key = bytes.fromhex(mutation["key"])
            keys.append(key)
            locks[key] = mutation["op"], bytes.fromhex(mutation.get("value") or ""), source
        if record.get("one_pc_commit_ts"):
            self._commit(start_ts, record["one_pc_commit_ts"], keys)

    def _commit(self, start_ts: int, commit_ts: int, keys: list[bytes]) -> None:
        locks = self._locks.get(start_ts, {})
        for key in keys:
            lock = locks.pop(key, None)
            if lock is None:
                continue  # a commit that repeats keys which a resolve_lock had committed
            op, value, source = lock
            if op in {"Put", "Insert"}:
                self._versions.setdefault(key, {})[commit_ts] = start_ts, "put", value, source
            elif op == "Del":
                self._versions.setdefault(key, {})[commit_ts] = start_ts, "delete", b"", source

    def _drop(self, start_ts: int, keys: list[bytes]) -> None:
        for key in keys:
            self._locks.get(start_ts, {}).pop(key, None)


def _keys(record: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(key) for key in record.get("keys") or []]
