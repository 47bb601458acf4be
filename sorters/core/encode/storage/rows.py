"""The encoder of storage sinks: lines of data files and schema files, for the processors that write them
(:mod:`schemas.sink.storage_rows`).
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts
from schemas.sink.storage_rows import FolderForm, encode_folder, encode_schema_file
from schemas.tidb.table import TableVersion
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.simple.encoder import physical_table_id
from sorters.core.encode.storage.schema import ddl_file, table_file
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    Partitions,
    RowEncoder,
    SchemaIds,
    in_row_order,
)
from sorters.core.encode.wire.row_heads import HeadedJoiner, headed_rows
from sorters.core.encode.wire.segments import join
from sorters.core.mount.mounted import MountedColumns, MountedPart

ROWS_PER_MESSAGE = 4096
"""With rows of 200 bytes 800 KB: a processor copies it into a file at once."""


class LineFormat(Protocol):
    """CSV or canal-json."""

    def file_head(self, table: TableVersion) -> str:
        """Return the first line of each file, '' if there is none."""
        ...

    def lines(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
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

    def lines(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        """Return what each row adds to its file."""
        alone = MountedColumns(table=part.table, count=int(part.rows.max(initial=-1)) + 1, parts=(part,))
        values = self.encoder.encode_rows(alone, encoded_at_ms=encoded_at_ms).values
        return pc.binary_join_element_wise(values, self.terminator.encode(), b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageEncoder(RowEncoder):
    """A storage sink's protocol and the parts of its settings that say which folder a row goes to."""

    format: LineFormat
    start_ts: Ts
    """The changefeed's: the version of tables that have not changed since."""
    separate_partitions: bool = True
    output_column_id: bool = False
    use_table_id_as_path: bool = False
    """Folders and schema files stand by table ids; there are none of schemas."""

    @property
    def joiner(self) -> HeadedJoiner:
        return HeadedJoiner(ROWS_PER_MESSAGE)

    @property
    def takes_alike_tables(self) -> bool:
        return True

    @property
    def ddl_partitions(self) -> Partitions:
        return Partitions.FIRST

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch, one row a message. ``encoded_at_ms`` stands in canal-json's lines."""
        head = self.format.file_head(mounted.table)
        return in_row_order(mounted, [self._part(part, head, encoded_at_ms) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage | None:
        """Encode the schema file that a DDL writes; None: of a schema, where folders are tables' ids."""
        stored = event.post or event.pre
        if self.use_table_id_as_path and (stored is None or not event.table):
            return None
        table_id = stored.table_id if self.use_table_id_as_path and stored is not None else None
        file = ddl_file(event, output_column_id=self.output_column_id, table_id=table_id)
        return EncodedMessage(None, encode_schema_file(file))

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode the schema file of a table as it is found."""
        table_id = table.table_id if self.use_table_id_as_path else None
        file = table_file(table, self._version(table), output_column_id=self.output_column_id, table_id=table_id)
        return EncodedMessage(None, encode_schema_file(file))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a watermark, for people: machines read the position."""
        return EncodedMessage(None, b'{"watermark":%d}' % ts)

    def _version(self, table: TableVersion) -> Ts:
        return max(table.version, self.start_ts)

    def _part(self, part: MountedPart, head: str, encoded_at_ms: int) -> Messages:
        lines = self.format.lines(part, encoded_at_ms)
        is_separate = self.separate_partitions and bool(part.table.partitions)
        physical_id = physical_table_id(part)

        def folder(table: TableVersion) -> FolderForm:
            version = self._version(table)
            if self.use_table_id_as_path:
                return FolderForm("", "", version, table.table_id if part.alike is not None else physical_id, head)
            return FolderForm(table.schema, table.table, version, physical_id if is_separate else None, head)

        folders = part.of_table(lambda table: encode_folder(folder(table)))
        return join(len(part), [folders]), headed_rows(part, part.names.keys.to_arrow(), lines)
