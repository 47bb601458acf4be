"""What an upstream's tables hold at a ts: read from the region server's store by a decoder of rows alone."""

from typing import Any

from producers.region_server.core.store.mvcc import LockKind, Write
from producers.region_server.kv.store import ClusterStore
from schemas.ids import TableId

Rows = dict[str, dict[int, tuple[Any, ...]]]
"""Columns k, c and pad by id, by table."""


def upstream_at(store: ClusterStore, tables: dict[TableId, str], ts: int) -> Rows:
    """Return what the region server's store holds at ``ts`` of tables of sysbench's shape."""
    held: Rows = {name: {} for name in tables.values()}
    for region in store.regions:
        for key, newest in region.data.writes.items():
            if key[:1] != b"t" or key[9:11] != b"_r":
                continue
            name = tables.get(TableId(int.from_bytes(key[1:9], "big") ^ (1 << 63)))
            version: Write | None = newest
            while version is not None and (version.commit_ts > ts or version.op not in (LockKind.PUT, LockKind.DELETE)):
                version = version.previous
            if name is not None and version is not None and version.op is LockKind.PUT:
                handle = int.from_bytes(key[11:19], "big") - (1 << 63)
                held[name][handle] = decoded(version.value or b"")
    return held


def decoded(value: bytes) -> tuple[Any, ...]:
    """Return the columns k, c and pad of a row in format v2: 128, flags, two counts, ids, ends, data."""
    not_null = int.from_bytes(value[2:4], "little")
    ids, at = list(value[6 : 6 + not_null]), 6 + not_null
    ends = [int.from_bytes(value[at + 2 * n : at + 2 * n + 2], "little") for n in range(not_null)]
    data = value[at + 2 * not_null :]
    cells = {column: data[start:end] for column, start, end in zip(ids, [0, *ends], ends, strict=False)}
    return int.from_bytes(cells[2], "little", signed=True), cells[3].decode(), cells[4].decode()
