"""What the two forms of simple have in common: rows without keys, messages to all partitions, schemas as messages."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from schemas.changes import BinaryArray
from schemas.ids import Ts
from schemas.tidb.keys import decode_row_key
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    LargeRow,
    Messages,
    RowEncoder,
    SchemaIds,
    in_row_order,
    no_keys,
)
from sorters.core.mount.mounted import MountedColumns, MountedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleEncoder(RowEncoder, ABC):
    """simple in one of its forms."""

    location: str = "UTC"
    """The time zone that TIMESTAMPs are shown in."""
    large: LargeRow | None = None
    """Set: every row is too large, and its message holds the handle key and this."""

    def for_large(self, large: LargeRow) -> Self:
        """Return the encoder of rows that are too large."""
        return replace(self, large=large)

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch; keys are null. ``encoded_at_ms`` is the wall time that stands in ``buildTs``."""
        return in_row_order(mounted, [self._part(part, encoded_at_ms) for part in mounted.parts])

    @abstractmethod
    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a DDL event with the table's schemas after and before it."""

    @abstractmethod
    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode the message that tells consumers a table's schema."""

    @abstractmethod
    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a watermark."""

    def _part(self, part: MountedPart, encoded_at_ms: int) -> Messages:
        if part.is_scalar:
            values = pa.array(self._rows(part, encoded_at_ms), pa.binary())
        else:
            values = self._columns(part, encoded_at_ms)
        return no_keys(len(part)), values

    @abstractmethod
    def _columns(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        """Encode rows by columns."""

    @abstractmethod
    def _rows(self, part: MountedPart, encoded_at_ms: int) -> list[bytes]:
        """Encode rows one by one: the scalar twin."""


def ddl_tables(event: DdlMessage) -> tuple[TableVersion | None, TableVersion | None]:
    """Return the table after and before a DDL; one that went is told as it was last.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    before = event.pre.decode() if event.pre is not None else None
    after = event.post.decode() if event.post is not None else before
    return after, before


def physical_table_id(part: MountedPart) -> int:
    """Return the id in the row keys: a partition's, if the table has partitions."""
    if part.table.partitions and len(part):
        return decode_row_key(part.names.keys[0]).table_id
    return part.table.table_id


def message_columns(table: TableVersion, large: LargeRow | None) -> Sequence[ColumnVersion]:
    """Return the columns that row messages hold, in table order: of a row that is too large the handle key's."""
    if large is None:
        return table.columns
    return [spec for spec in table.columns if spec.cdc_flag & CdcFlag.HANDLE_KEY]
