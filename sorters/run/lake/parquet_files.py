"""Parquet files of rows, of about a size."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_BYTES = 128 << 20
"""Of a row group, as Iceberg's own writers have it."""
_COMPRESSION = "zstd"


def write_parquet(rows: pa.Table, next_path: Callable[[], Path], size_bytes: int) -> list[Path]:
    """Write rows, in their order, to one file after the other, and return these: one that has reached ``size_bytes`` is
    followed by another one. So a file is larger by a row group at most, which is no larger than that in memory. No
    rows make one file.
    """
    paths, at = list[Path](), 0
    group_bytes = min(GROUP_BYTES, size_bytes)
    group = max(1, rows.num_rows * group_bytes // max(rows.nbytes, group_bytes))
    while at < rows.num_rows or not paths:
        path = next_path()
        paths.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pq.ParquetWriter(sink, rows.schema, compression=_COMPRESSION, store_schema=False) as writer,
        ):
            while at < rows.num_rows and sink.tell() < size_bytes:
                writer.write_table(rows.slice(at, group), row_group_size=group)
                at += group
    return paths
