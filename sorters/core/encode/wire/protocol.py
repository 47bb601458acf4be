"""What a sink protocol is to the sorter: :class:`Encoder`, and the messages that come out.

A protocol is a description over the columnar core: which columns, in which form, between which literals. The sorter
asks for the schemas to register, gives their ids back, and then encodes batches; nothing here talks to a registry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from schemas.changes import BinaryArray
from schemas.ddl.schema_change import StoredTable
from schemas.errors import Action, BusError
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import IntArray
from sorters.core.mount.mounted import MountedColumns, MountedPart

SchemaKey = tuple[str, TableId, Ts]
"""What names a schema: its subject, and the ``table_id`` and ``version`` of a :class:`TableVersion`. Less does not: one
DDL job may have made several tables of a subject, and TiDB's ``update_timestamp`` stays where a table is renamed."""
SchemaIds = Mapping[SchemaKey, int]
"""To the id that the registry gave."""


class EncodeRefusedError(BusError):
    """The protocol cannot say this value (an ENUM 0 in Avro); fields name table, key, commit_ts and column."""

    code, action = "sink.encode_refused", Action.STOP_CHANGEFEED


class SchemaMissingError(BusError):
    """Rows came to the encoder before their schema was registered: the driver's bug."""

    code, action = "sink.schema_missing", Action.CRASH


class Partitions(Enum):
    """Which partitions of a topic get a message that belongs to no row."""

    NONE = "none"
    FIRST = "first"
    ALL = "all"


class DdlMessage(Protocol):
    """What encoders read of a DDL event."""

    @property
    def schema(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def ddl_type(self) -> int: ...
    @property
    def commit_ts(self) -> Ts: ...
    @property
    def pre(self) -> StoredTable | None:
        """The table before it; None when it came with this DDL, and for schemas."""
        ...

    @property
    def post(self) -> StoredTable | None:
        """The table after it; None when it went, and for schemas."""
        ...


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema to register before rows of a table version can be encoded."""

    subject: str
    table_id: TableId
    version: Ts
    text: str

    @property
    def key(self) -> SchemaKey:
        """What names it among :data:`SchemaIds`."""
        return self.subject, self.table_id, self.version


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message that belongs to no row."""

    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """Messages by row of the batch; a row that was in no part of the mounted batch has none.

    ``rows`` are row numbers, ascending; ``keys`` and ``values`` are ``pyarrow.BinaryArray`` of the same length, null
    for a message without key, or without value.
    """

    rows: IntArray
    keys: BinaryArray
    values: BinaryArray


class Joiner(Protocol):
    """Joins messages of one row to messages of several."""

    @property
    def rows_per_message(self) -> int: ...
    @property
    def head_bytes(self) -> int:
        """What a message has beside its rows."""
        ...

    @property
    def same_key(self) -> bool:
        """Only rows whose messages have the same key are joined."""
        ...

    def added_bytes(self, keys: BinaryArray, values: BinaryArray) -> IntArray:
        """Return how much longer each row makes a message: int64, one a row."""
        ...

    def join(self, keys: BinaryArray, values: BinaryArray) -> tuple[BinaryArray, BinaryArray]:
        """Join the messages of each list; both are ``pyarrow.ListArray`` of binary with the same offsets."""
        ...


class Encoder(Protocol):
    """One protocol with its options; stateless, picklable."""

    @property
    def joiner(self) -> Joiner | None:
        """None: a message holds one row."""
        ...

    @property
    def takes_alike_tables(self) -> bool:
        """Whether a part's rows may be of several tables (:attr:`MountedPart.alike`)."""
        ...

    @property
    def ddl_partitions(self) -> Partitions: ...
    @property
    def watermark_partitions(self) -> Partitions: ...

    def schemas(self, table: TableVersion, topic: str) -> tuple[SchemaText, ...]:
        """Return the schemas that rows of this table version need in this topic."""
        ...

    def topic_part(self, table: TableVersion, topic: str, schema_ids: SchemaIds) -> bytes:
        """Return what messages of a table hold that hangs on its topic: where that is the same, messages are.

        Raises:
            SchemaMissingError: ``schema_ids`` lacks a schema.
        """
        ...

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str, encoded_at_ms: int, schema_ids: SchemaIds
    ) -> EncodedRows:
        """Encode a batch.

        Args:
            topic: of rows of ``mounted.table``; tables that are alike (:attr:`MountedPart.alike`) name their own, and
                what their messages hold of it.
            schema_ids: likewise of ``mounted.table``.

        Raises:
            EncodeRefusedError: the protocol has no form for a value.
            SchemaMissingError: ``schema_ids`` lacks a schema.
            CorruptDataError: a value that was not looked at before does not decode.
        """
        ...

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage | None:
        """Return a DDL message; None: the protocol has none."""
        ...

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage | None:
        """Return a watermark message; None: the protocol has none."""
        ...


class RowEncoder:
    """What most protocols share and others override: a message holds one row, a part one table's rows, what belongs to
    no row goes to every partition of a topic, and no schema is registered."""

    __slots__ = ()

    @property
    def joiner(self) -> Joiner | None:
        """See :class:`Encoder`."""
        return None

    @property
    def takes_alike_tables(self) -> bool:
        """See :class:`Encoder`."""
        return False

    @property
    def ddl_partitions(self) -> Partitions:
        """See :class:`Encoder`."""
        return Partitions.ALL

    @property
    def watermark_partitions(self) -> Partitions:
        """See :class:`Encoder`."""
        return Partitions.ALL

    def schemas(self, table: TableVersion, topic: str) -> tuple[SchemaText, ...]:
        """See :class:`Encoder`."""
        return ()

    def topic_part(self, table: TableVersion, topic: str, schema_ids: SchemaIds) -> bytes:
        """See :class:`Encoder`."""
        return b""


@dataclass(frozen=True, slots=True)
class LargeRow:
    """What to say of a row whose whole message is beyond the limit: its handle key, and where the rest is."""

    location: str | None = None
    """Of the whole message (``claim-check``); None: the reader asks the upstream for the row (``handle-key-only``)."""


class HandleKeyEncoder(Encoder, Protocol):
    """A protocol that can send a row's handle key in place of the row."""

    def for_large(self, large: LargeRow) -> Encoder:
        """Return the encoder of rows that are too large: their messages hold the handle key's columns and ``large``."""
        ...


@runtime_checkable
class CompanionEncoder(Protocol):
    """What a protocol has beside whose DDL and watermarks name schemas of a registry."""

    def companion_schemas(self) -> tuple[SchemaText, ...]:
        """Return these schemas: the same for all tables and topics; none if there are no such messages."""
        ...

    def with_companions(self, schema_ids: SchemaIds) -> Encoder:
        """Return the encoder that knows the ids of these schemas."""
        ...


class BootstrapEncoder(Protocol):
    """What a protocol has beside whose rows name a schema that a message of its own brings (simple)."""

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int) -> EncodedMessage:
        """Return the message that tells consumers a table's schema."""
        ...


Messages = tuple[BinaryArray, BinaryArray]
"""Keys and values of one part: ``pyarrow.BinaryArray`` each."""


def in_row_order(mounted: MountedColumns, messages: Sequence[Messages]) -> EncodedRows:
    """Bring the messages of a batch's parts into row order."""
    if len(mounted.parts) == 1:
        rows = mounted.parts[0].rows
    else:
        rows = np.sort(np.concatenate([np.zeros(0, np.int64), *(part.rows for part in mounted.parts)]))
    keys = mounted.in_row_order([keys for keys, _ in messages])
    return EncodedRows(rows, keys, mounted.in_row_order([values for _, values in messages]))


def refused(part: MountedPart, row: int, column: str, why: str) -> EncodeRefusedError:
    """Return the error for a row of a part; the caller raises it."""
    key = part.names.keys[row].hex()
    return EncodeRefusedError(why, table=part.names.table, key=key, commit_ts=int(part.commit_ts[row]), column=column)


def no_keys(count: int) -> BinaryArray:
    """Return null keys."""
    return pa.nulls(count, pa.binary())
