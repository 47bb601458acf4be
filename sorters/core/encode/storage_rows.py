"""The encoder of storage sinks: lines of data files and schema files, for the processors that write them
(:mod:`schemas.storage_rows`).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.ids import Ts
from schemas.storage_rows import HEAD_BYTES, HEADS, FolderForm, encode_folder, encode_schema_file
from schemas.tidb.table import TableVersion
from sorters.core.columnar.mounted import MountedColumns, MountedPart
from sorters.core.columnar.spans import BoolArray, IntArray, gather, spans_of
from sorters.core.encode.canal_json import CanalJsonEncoder
from sorters.core.encode.protocol import (
    DdlMessage,
    EncodedRows,
    Message,
    Messages,
    Partitions,
    RowEncoder,
    SchemaIds,
    in_row_order,
)
from sorters.core.encode.row_heads import headed_rows, keyed_bytes
from sorters.core.encode.simple_encoder import physical_table_id
from sorters.core.encode.storage_schema import ddl_file, table_file

ROWS_PER_MESSAGE = 4096
"""With rows of 200 bytes 800 KB: a processor copies it into a file at once."""


class LineFormat(Protocol):
    """CSV or canal-json."""

    def file_head(self, table: TableVersion) -> str:
        """Return the first line of each file, '' if there is none."""
        ...

    def lines(self, part: MountedPart, encoded_at_ms: int) -> Any:
        """Return what each row adds to its file: ``pyarrow.BinaryArray``, terminators included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalJsonLines:
    """One canal-json message a line."""

    encoder: CanalJsonEncoder
    terminator: str = "\r\n"

    def file_head(self, table: TableVersion) -> str:
        """There is none."""
        return ""

    def lines(self, part: MountedPart, encoded_at_ms: int) -> Any:
        """Return what each row adds to its file."""
        alone = MountedColumns(table=part.table, count=int(part.rows.max(initial=-1)) + 1, parts=(part,))
        values = self.encoder.encode_rows(alone, encoded_at_ms=encoded_at_ms).values
        return pc.binary_join_element_wise(values, self.terminator.encode(), b"")


@dataclass(frozen=True, slots=True)
class StorageJoiner:
    """See :class:`sorters.core.encode.protocol.Joiner`. Rows of one message have one key: their folder."""

    rows_per_message: int = ROWS_PER_MESSAGE
    head_bytes: int = 0
    same_key: bool = True

    def added_bytes(self, keys: Any, values: Any) -> IntArray:
        """Return how much longer each row makes a message, or more: the key is counted for each."""
        return keyed_bytes(keys, values)

    def join(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Put heads, keys and lines of each list side by side; the key is the first one's."""
        starts = keys.offsets.to_numpy()
        firsts = keys.values.take(pa.array(starts[:-1]))
        places = values.offsets.to_numpy().astype(np.int64)
        counts = np.diff(places)
        joined = np.zeros(len(values.values), np.bool_)
        joined[places[0] : places[-1]] = np.repeat(counts > 1, counts)
        pieces = _pieces(values.values, joined)
        # Row r of n that begin at row s: its pieces 3(s+r), +1 and +2 go to 3s+r, 3s+n+r and 3s+2n+r.
        first, count = np.repeat(places[:-1], counts), np.repeat(counts, counts)
        row = np.arange(places[0], places[-1], dtype=np.int64)
        order = np.empty(3 * len(row), np.int64)
        for kind in range(3):
            order[3 * (first - places[0]) + kind * count + (row - first)] = 3 * row + kind
        offsets = pa.array(((places - places[0]) * 3).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, pieces.take(pa.array(order)))
        return firsts, pc.binary_join(lists, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageEncoder(RowEncoder):
    """A storage sink's protocol and the parts of its settings that say which folder a row goes to."""

    format: LineFormat
    start_ts: Ts
    """The changefeed's: the version of tables that have not changed since."""
    separate_partitions: bool = True
    output_column_id: bool = False

    @property
    def joiner(self) -> StorageJoiner:
        return StorageJoiner()

    @property
    def ddl_partitions(self) -> Partitions:
        return Partitions.FIRST

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch, one row a message. ``encoded_at_ms`` stands in canal-json's lines."""
        head = self.format.file_head(mounted.table)
        return in_row_order(mounted, [self._part(part, head, encoded_at_ms) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> Message:
        """Encode the schema file that a DDL writes."""
        return Message(None, encode_schema_file(ddl_file(event, output_column_id=self.output_column_id)))

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int = 0) -> Message:
        """Encode the schema file of a table as it is found."""
        file = table_file(table, self._version(table), output_column_id=self.output_column_id)
        return Message(None, encode_schema_file(file))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> Message:
        """Encode a watermark, for people: machines read the position."""
        return Message(None, b'{"watermark":%d}' % ts)

    def _version(self, table: TableVersion) -> Ts:
        return max(table.version, self.start_ts)

    def _part(self, part: MountedPart, head: str, encoded_at_ms: int) -> Messages:
        lines, table = self.format.lines(part, encoded_at_ms), part.table
        is_separate = self.separate_partitions and bool(table.partitions)
        form = FolderForm(
            table.schema, table.table, self._version(table), physical_table_id(part) if is_separate else None, head
        )
        folder = pa.repeat(pa.scalar(encode_folder(form), pa.binary()), len(part))
        return folder, headed_rows(part, part.names.keys.to_arrow(), lines)


def _pieces(values: Any, joined: BoolArray) -> Any:
    """Cut each value into head, key and line: three times as many values over the same bytes.

    What is not joined with others, a watermark for one, is no row or need not be cut: it is all line.
    """
    spans = spans_of(values)
    rows = np.flatnonzero(joined)
    heads = gather(spans.buffer, spans.start[rows], HEAD_BYTES).reshape(-1).view(HEADS)
    cuts = np.repeat(spans.start[:, None], 3, axis=1)
    cuts[rows, 1] += HEAD_BYTES
    cuts[rows, 2] += HEAD_BYTES + heads["key"]
    offsets = np.append(cuts.reshape(-1), spans.end[-1:]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), 3 * len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(spans.buffer)])
