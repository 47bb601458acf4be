"""CSV lines of TiCDC's storage sink: operation, table, schema, more of the row where asked for, and its columns.

Source: pingcap/tiflow ``pkg/sink/codec/csv/csv_message.go``, and the reference's section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.table import TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.numbers import integer_text
from sorters.core.encode.storage.csv_values import CsvForm
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedPart, RowKind

_META = "ticdc-meta$"
_LETTERS = {RowKind.INSERT: b"I", RowKind.UPDATE: b"U", RowKind.DELETE: b"D"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLines:
    """``[sink.csv]`` and ``[sink] terminator``; writes one line a row, two of an update with its old value."""

    form: CsvForm = field(default_factory=CsvForm)
    terminator: str = "\r\n"
    include_commit_ts: bool = False
    output_old_value: bool = False
    output_field_header: bool = False

    extension = "csv"

    def file_head(self, table: TableVersion) -> str:
        """Return the first line of each file, '' if it has no header."""
        if not self.output_field_header:
            return ""
        names = [f"{_META}operation", f"{_META}table", f"{_META}schema"]
        names += [f"{_META}commit-ts"] if self.include_commit_ts else []
        names += [f"{_META}is-update"] if self.output_old_value else []
        names += [column.name for column in table.columns]
        return self.form.delimiter.join(names) + self.terminator

    def lines(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        """Return what each row adds to its file: ``pyarrow.BinaryArray``."""
        if part.is_scalar:
            return pa.array(self._rows(part), pa.binary())
        if part.kind is RowKind.UPDATE and self.output_old_value:
            before = self._columns(part, b"D", part.old_columns())
            return pc.binary_join_element_wise(before, self._columns(part, b"I", part.new_columns()), b"")
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        return self._columns(part, _LETTERS[part.kind], columns)

    def _head(self, part: MountedPart, letter: bytes) -> Segment:
        """What stands before the commit_ts; every field ends with the delimiter."""
        return part.of_table(
            lambda table: b"".join(
                self.form.text(text) + self._delimiter for text in (letter, table.table.encode(), table.schema.encode())
            )
        )

    def _is_update(self, part: MountedPart) -> bytes:
        if not self.output_old_value:
            return b""
        return (b"true" if part.kind is RowKind.UPDATE else b"false") + self._delimiter

    @property
    def _delimiter(self) -> bytes:
        return self.form.delimiter.encode()

    def _columns(self, part: MountedPart, letter: bytes, columns: Sequence[Column]) -> BinaryArray:
        segments: list[Segment] = [self._head(part, letter)]
        if self.include_commit_ts:
            segments += [integer_text(part.commit_ts), self._delimiter]
        segments.append(self._is_update(part))
        for number, column in enumerate(columns):
            segments += [self._delimiter if number else b"", self.form.column(column)]
        return join(len(part), [*segments, self.terminator.encode()])

    # The scalar twin.

    def _rows(self, part: MountedPart) -> list[bytes]:
        if part.kind is RowKind.UPDATE and self.output_old_value:
            assert part.old_rows is not None and part.new_rows is not None
            pairs = zip(part.old_rows, part.new_rows, strict=True)
            return [
                self._line(part, at, b"D", old) + self._line(part, at, b"I", new) for at, (old, new) in enumerate(pairs)
            ]
        rows = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert rows is not None
        return [self._line(part, at, _LETTERS[part.kind], row) for at, row in enumerate(rows)]

    def _line(self, part: MountedPart, at: int, letter: bytes, row: Sequence[Value]) -> bytes:
        commit_ts = b"%d%s" % (int(part.commit_ts[at]), self._delimiter) if self.include_commit_ts else b""
        fields = (self.form.value(spec, row[spec.offset]) for spec in part.table.columns)
        head = self._head(part, letter)
        assert isinstance(head, bytes), "rows go one by one where they are of one table"
        return head + commit_ts + self._is_update(part) + self._delimiter.join(fields) + self.terminator.encode()
