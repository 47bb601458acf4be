"""Data files of lake tables are of about the size that the table says."""

from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sorters.run.lake.parquet_files import write_parquet


def _written(tmp_path: Path, rows: pa.Table, size_bytes: int) -> list[Path]:
    numbers = count()
    return write_parquet(rows, lambda: tmp_path / "data" / f"{next(numbers)}.parquet", size_bytes)


def test_rows_go_in_order_to_files_that_have_reached_their_size(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 400_000)  # which no codec makes smaller
    rows = pa.table({"id": np.arange(len(numbers)), "v": numbers})
    files = _written(tmp_path, rows, 1 << 20)
    sizes = [path.stat().st_size for path in files]
    assert len(files) > 2
    assert all(1 << 20 <= size < 3 << 20 for size in sizes[:-1])
    assert pa.concat_tables(pq.read_table(path) for path in files).equals(rows)


def test_rows_below_the_size_are_one_file_with_one_group(tmp_path: Path) -> None:
    rows = pa.table({"id": np.arange(1_000)})
    (file,) = _written(tmp_path, rows, 512 << 20)
    assert pq.ParquetFile(file).num_row_groups == 1
    assert pq.read_table(file).equals(rows)


def test_no_rows_are_a_file(tmp_path: Path) -> None:
    (file,) = _written(tmp_path, pa.table({"id": pa.array([], pa.int64())}), 1 << 20)
    assert pq.read_table(file).num_rows == 0
