"""Rows to the branch of a lake table without a Spark job: this process writes Parquet files by columns.

    keys ─▶ files that may hold them ─▶ positions of their rows ─▶ delete files ┐
    new rows ───────────────────────────────────────────────────▶ data file ────┴▶ one snapshot of the branch

A job turns each row to Spark's form and back, and a MERGE sorts both sides, which the rows of a commit never earn back
(docs/decisions/2026-11-23-lake-tables.md). Spark does what is too much for one process, or laid out by partitions or an
order, or stands on no local file system.
"""

import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sorters.core.lake.columns import OP
from sorters.core.lake.positions import (
    Positions,
    columns_of_fields,
    delete_rows,
    deleted_positions,
    key_bounds,
    matching_positions,
    with_field_ids,
)
from sorters.run.lake.parquet_files import write_parquet
from sorters.run.lake.properties import FILE_SIZE
from sorters.run.lake.table import LakeTable

LOOKED_THROUGH_MAX = 10_000_000
"""Rows of data files whose keys this process reads for a commit: some seconds of one core."""
FILES_MAX = 1_000
"""Data files that it looks into for a commit."""
_BATCH_ROWS = 1 << 18
_SIZE_BYTES = 512 << 20
"""Of a data file where the table does not say it: Iceberg's default."""


@dataclass(frozen=True, slots=True)
class _DataFile:
    """A data file that may hold rows which a commit replaces, and its delete files."""

    path: str
    deletes: tuple[str, ...]


class LakeFiles:
    """Writes to one branch of tables."""

    def __init__(self, jvm: Any, branch: str) -> None:
        self._jvm, self._branch = jvm, branch

    def append(self, table: LakeTable, groups: Iterable[pa.Table]) -> bool:
        """Add rows, each group as a data file or several; False: it is Spark's to do."""
        if not self._is_ours(table.java):
            return False
        append, count = table.java.newAppend(), 0
        for rows in groups:
            written = self._data_files(table.java, rows)
            if written is None:
                return False
            for file in written:
                append.appendFile(file)
            count += len(written)
        if count:
            append.toBranch(self._branch).commit()
        return True

    def merge(self, table: LakeTable, groups: Iterable[pa.Table], keys: Sequence[str]) -> bool:
        """Write the last change of each key: delete, update or insert its row; False: it is Spark's to do. No key is in
        two groups.
        """
        table.java.refresh()
        if not self._is_ours(table.java):
            return False
        delta, fields, is_empty = table.java.newRowDelta(), set(_field_ids(table.java)), True
        deleted: dict[str, list[Positions]] = {}
        for rows in groups:
            if fields - set(rows.column_names):
                return False  # of a field that no column has, a row keeps its value, which is not at hand
            wanted = rows.select(list(keys))
            files = self._files_with(table.java, wanted)
            if files is None:
                return False
            for file in files:
                positions = self._positions(table.java, file, wanted)
                if positions is None:
                    return False
                if len(positions):
                    deleted.setdefault(file.path, []).append(positions)
            new = rows.filter(pc.not_equal(rows.column(OP), "D")).drop_columns([OP])
            if new.num_rows:
                written = self._data_files(table.java, new)
                if written is None:
                    return False
                for file in written:
                    delta.addRows(file)
                is_empty = False
        for path, parts in deleted.items():  # one delete file each, whatever the groups
            delta.addDeletes(self._delete_file(table.java, path, np.sort(np.concatenate(parts))))
        if deleted or not is_empty:
            delta.toBranch(self._branch).commit()
        return True

    def drop_upto(self, table: LakeTable, sequence: int) -> int:
        """Take data files away that were there at a sequence number, whatever they hold; return how many."""
        table.java.refresh()
        delete, count = table.java.newDelete(), 0
        with closing(table.java.newScan().useRef(self._branch).planFiles()) as tasks:
            for task in tasks.iterator():
                if int(task.file().dataSequenceNumber()) <= sequence:
                    delete.deleteFile(task.file())
                    count += 1
        if count:
            delete.toBranch(self._branch).commit()
        return count

    @staticmethod
    def _is_ours(table: Any) -> bool:
        return (
            table.spec().isUnpartitioned() and table.sortOrder().isUnsorted() and _local(table.location()) is not None
        )

    def _files_with(self, table: Any, keys: pa.Table) -> list[_DataFile] | None:
        """Return the data files of the branch that may hold rows of these keys; None: they are too much, or deleted
        from in a way that this process does not write.
        """
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        scan = table.newScan().useRef(self._branch)
        for name, least, most in key_bounds(keys):
            scan = scan.filter(expressions.greaterThanOrEqual(name, least)).filter(
                expressions.lessThanOrEqual(name, most)
            )
        files, rows = list[_DataFile](), 0
        with closing(scan.planFiles()) as tasks:
            for task in tasks.iterator():
                file, deletes = task.file(), list(task.deletes())
                rows += int(file.recordCount())
                if rows > LOOKED_THROUGH_MAX or len(files) >= FILES_MAX or not all(map(_is_plain, [file, *deletes])):
                    return None
                files.append(_DataFile(str(file.location()), tuple(str(each.location()) for each in deletes)))
        return files

    def _positions(self, table: Any, file: _DataFile, keys: pa.Table) -> Positions | None:
        """Return where rows of these keys stand in a file; None: it does not say which column is which field."""
        ids = _field_ids(table)
        with pq.ParquetFile(_path(file.path)) as parquet:
            names = columns_of_fields(parquet.schema_arrow, [ids[name] for name in keys.column_names])
            if names is None:
                return None
            gone = deleted_positions((pq.read_table(_path(path)) for path in file.deletes), file.path)
            batches: Iterator[pa.RecordBatch] = parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False)
            return matching_positions((batch.select(names) for batch in batches), keys, gone=gone)

    def _data_files(self, table: Any, rows: pa.Table) -> list[Any] | None:
        """Write new rows; return what Iceberg calls data files, or None: its file system is not this machine's."""
        size_bytes = int(table.properties().get(FILE_SIZE) or _SIZE_BYTES)
        written = self._written(table, with_field_ids(rows, _field_ids(table)), size_bytes=size_bytes)
        if written is None:
            return None
        config = self._jvm.org.apache.iceberg.MetricsConfig.forTable(table)
        builder = self._jvm.org.apache.iceberg.DataFiles.builder
        return [self._finished(builder(table.spec()).withInputFile(file), file, config) for file in written]

    def _delete_file(self, table: Any, path: str, positions: Positions) -> Any:
        written = self._written(table, delete_rows(path, positions), "-deletes", size_bytes=sys.maxsize)
        assert written is not None  # the data file that it is of was read by this machine
        (written,) = written
        config = self._jvm.org.apache.iceberg.MetricsConfig.forPositionDelete(table)
        builder = self._jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofPositionDeletes()
        builder = builder.withInputFile(written).withReferencedDataFile(path)
        return self._finished(builder, written, config)

    def _finished(self, builder: Any, written: Any, config: Any) -> Any:
        metrics = self._jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(written, config)
        parquet = self._jvm.org.apache.iceberg.FileFormat.PARQUET
        return builder.withFormat(parquet).withMetrics(metrics).build()

    def _written(self, table: Any, rows: pa.Table, ending: str = "", *, size_bytes: int) -> list[Any] | None:
        locations = list[str]()

        def next_path() -> Path:
            locations.append(str(table.locationProvider().newDataLocation(f"{uuid.uuid4().hex}{ending}.parquet")))
            return _path(locations[-1])

        if _local(table.locationProvider().newDataLocation("any.parquet")) is None:
            return None
        paths = write_parquet(rows, next_path, size_bytes)
        written = [table.io().newInputFile(location) for location in locations]
        if all(file.exists() for file in written):
            return written
        for path in paths:
            path.unlink()  # what Hadoop means by this path is elsewhere
        return None


def _field_ids(table: Any) -> dict[str, int]:
    return {str(field.name()): int(field.fieldId()) for field in table.schema().columns()}


def _local(location: str) -> Path | None:
    """Return the path of a local file or folder; None: it is another file system's."""
    path = "/" + location.removeprefix("file:").lstrip("/")
    return Path(path) if location.startswith(("/", "file:/")) else None


def _path(location: str) -> Path:
    path = _local(location)
    assert path is not None
    return path


def _is_plain(file: Any) -> bool:
    """Tell whether a file is one of rows, or of positions: Parquet, and local."""
    is_known = str(file.content().name()) in ("DATA", "POSITION_DELETES")
    return is_known and str(file.format().name()) == "PARQUET" and _local(str(file.location())) is not None
