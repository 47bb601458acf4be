"""``large-message-handle-compression``: messages are compressed one by one, whatever Kafka's producer does then.

LZ4 is the frame format, Snappy the raw block, as Go's libraries read them. canal-json and simple compress the value of
every message, DDL events and watermarks too, debezium also the key; open-protocol compresses each row's value within
its framing, and does so itself. Other protocols do not read the setting.

Source: pingcap/tiflow ``pkg/sink/codec``, where ``common.Compress`` is called.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Self, cast

import pyarrow as pa

from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.encode.wire.protocol import (
    BootstrapEncoder,
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Encoder,
    HandleKeyEncoder,
    LargeRow,
    Partitions,
    RowEncoder,
    SchemaIds,
    SchemaText,
)
from sorters.core.mount.mounted import MountedColumns


class Compression(Enum):
    """A form of compression."""

    NONE = "none"
    LZ4 = "lz4"
    SNAPPY = "snappy"

    def of(self, content: bytes) -> bytes:
        """Compress one value."""
        return content if self is Compression.NONE else _codec(self.value).compress(content, asbytes=True)

    def column(self, array: Any) -> Any:
        """Compress each value of a ``pyarrow.BinaryArray``; nulls stay null.

        One by one: a codec takes one content a call, and that call costs far more than the loop around it.
        """
        if self is Compression.NONE:
            return array
        compress = _codec(self.value).compress
        values = (
            None if content is None else compress(content, asbytes=True)
            for content in (item.as_buffer() for item in array)
        )
        return pa.array(values, pa.binary())


@cache
def _codec(name: str) -> Any:
    return pa.Codec(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedEncoder(RowEncoder):
    """A protocol whose messages are compressed whole."""

    inner: Encoder
    compression: Compression
    with_keys: bool = False
    """Compress keys too."""

    @property
    def takes_alike_tables(self) -> bool:
        return self.inner.takes_alike_tables

    @property
    def ddl_partitions(self) -> Partitions:
        return self.inner.ddl_partitions

    @property
    def watermark_partitions(self) -> Partitions:
        return self.inner.watermark_partitions

    def for_large(self, large: LargeRow) -> Self:
        """Return the encoder of rows that are too large; the inner one is a :class:`HandleKeyEncoder` then."""
        return replace(self, inner=cast(HandleKeyEncoder, self.inner).for_large(large))

    def schemas(self, table: TableVersion, topic: str) -> tuple[SchemaText, ...]:
        """See :meth:`Encoder.schemas`."""
        return self.inner.schemas(table, topic)

    def topic_part(self, table: TableVersion, topic: str, schema_ids: SchemaIds) -> bytes:
        """See :meth:`Encoder.topic_part`."""
        return self.inner.topic_part(table, topic, schema_ids)

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str, encoded_at_ms: int, schema_ids: SchemaIds
    ) -> EncodedRows:
        """See :meth:`Encoder.encode_rows`."""
        plain = self.inner.encode_rows(mounted, topic=topic, encoded_at_ms=encoded_at_ms, schema_ids=schema_ids)
        keys = self.compression.column(plain.keys) if self.with_keys else plain.keys
        return EncodedRows(plain.rows, keys, self.compression.column(plain.values))

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage | None:
        """See :meth:`Encoder.encode_ddl`."""
        return self._message(self.inner.encode_ddl(event, encoded_at_ms=encoded_at_ms))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage | None:
        """See :meth:`Encoder.encode_watermark`."""
        return self._message(self.inner.encode_watermark(ts, encoded_at_ms=encoded_at_ms))

    def _message(self, message: EncodedMessage | None) -> EncodedMessage | None:
        if message is None:
            return None
        key = self.compression.of(message.key) if self.with_keys and message.key is not None else message.key
        return EncodedMessage(key, self.compression.of(message.value))


@dataclass(frozen=True, slots=True)
class CompressedBootstraps:
    """Bootstraps that are compressed as the other messages are."""

    inner: BootstrapEncoder
    compression: Compression

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int) -> EncodedMessage:
        """See :class:`BootstrapEncoder`."""
        message = self.inner.encode_bootstrap(table, encoded_at_ms=encoded_at_ms)
        return EncodedMessage(message.key, self.compression.of(message.value))
