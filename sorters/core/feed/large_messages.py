"""Rows whose message is larger than its topic takes: found, and encoded anew if the changefeed says so.

Sources: PingCAP's docs on large messages, and pingcap/ticdc ``pkg/sink/codec`` for what they leave open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.errors import Action, BusError
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import IntArray
from sorters.core.encode.wire.protocol import EncodedRows, HandleKeyEncoder, LargeRow
from sorters.core.feed.claim_check import ClaimCheck, StoreClaim
from sorters.core.mount.mounted import MountedColumns

WHAT_HELPS = (
    "max-message-bytes of the sink URI with max.message.bytes of the topic, or sink.kafka-config.large-message-handle "
    "with a large-message-handle-option that the protocol has, or a column selector"
)

WHAT_HELPS_BEFORE_A_PROCESSOR = (
    "filter.rules without the table: no server takes a statement as long as this row's, and none of TiDB's rows should "
    "make one"
)


class SinkMessageTooLargeError(BusError):
    """An encoded row is larger than ``max-message-bytes`` or its topic allow."""

    code, action = "sink.message_too_large", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeMessages:
    """``large-message-handle-option``, unless it is ``none``; picklable."""

    encoder: HandleKeyEncoder
    claim_check: ClaimCheck | None = None
    """None: ``handle-key-only``."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NamedRows:
    """What errors and stored messages say of the rows of a batch."""

    table: TableVersion
    """Whole, also where column selectors leave something out of what is mounted."""
    topic: str
    keys: Any
    """``pyarrow.BinaryArray`` of TiKV keys, one a row."""
    commit_ts: IntArray
    positions: Any
    """``pyarrow.BinaryArray``, one a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a topic takes, and what becomes of rows beyond it."""

    limit: int
    """Key, value and overhead of a message, in bytes."""
    large: LargeMessages | None
    """None: they are an error."""
    store_claim: StoreClaim | None
    """Stores whole messages; None: they are named and not stored."""
    what_helps: str = WHAT_HELPS

    def within_limit(
        self, encoded: EncodedRows, mounted: MountedColumns, named: NamedRows, encoded_at_ms: int
    ) -> EncodedRows:
        """Return the messages, none of them larger than the limit; what they name is stored.

        Args:
            encoded: one message for each row of ``mounted``, whose rows are numbered from 0.

        Raises:
            SinkMessageTooLargeError: a row is too large, and stays so; nothing of the batch is stored then.
            BusError: a whole message cannot be stored.
        """
        rows = _too_large(encoded, self.limit)
        if not len(rows):
            return encoded
        text = "message is larger than allowed"
        if self.large is None:
            raise self._error(text, encoded, named)
        if len(mounted.table.handle_columns) < len(named.table.handle_columns):
            text += ", and a column selector leaves out some of the handle key, which it could be sent with instead"
            raise self._error(text, encoded, named)
        claim_check = self.large.claim_check
        names = (
            [claim_check.file_name(named.topic, named.positions[row].as_py()) for row in rows] if claim_check else []
        )
        anew = _encode_anew(mounted, rows, self.large, names, encoded_at_ms)
        fitting = _with_rows(encoded, rows, anew)
        if len(_too_large(fitting, self.limit)):
            raise self._error("message with the handle key alone is larger than allowed", fitting, named)
        if claim_check is not None and self.store_claim is not None:
            for name, row in zip(names, rows.tolist(), strict=True):
                content = claim_check.content(encoded.keys[row].as_py(), encoded.values[row].as_py())
                self.store_claim(name, content)
        return fitting

    def _error(self, text: str, encoded: EncodedRows, named: NamedRows) -> SinkMessageTooLargeError:
        """Name the largest of the messages."""
        sizes = _sizes(encoded)
        row = int(sizes.argmax())
        return SinkMessageTooLargeError(
            text,
            table=named.table.name,
            topic=named.topic,
            key=named.keys[row].as_py().hex(),
            commit_ts=int(named.commit_ts[row]),
            bytes=int(sizes[row]) + MESSAGE_OVERHEAD_BYTES,
            bytes_max=self.limit,
            what_helps=self.what_helps,
        )


def are_too_large(encoded: EncodedRows, limit: int) -> bool:
    """Tell whether a message is larger than the limit."""
    return bool(len(_too_large(encoded, limit)))


def _too_large(encoded: EncodedRows, limit: int) -> IntArray:
    """Return the rows whose message is larger than ``limit``, ascending."""
    room = limit - MESSAGE_OVERHEAD_BYTES
    if encoded.keys.nbytes + encoded.values.nbytes <= room:
        return np.zeros(0, np.int64)
    return np.flatnonzero(_sizes(encoded) > room)


def _sizes(encoded: EncodedRows) -> IntArray:
    keys, values = (
        pc.fill_null(pc.binary_length(side), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        for side in (encoded.keys, encoded.values)
    )
    sizes: npt.NDArray[np.int64] = keys + values
    return sizes


def _encode_anew(
    mounted: MountedColumns, rows: IntArray, large: LargeMessages, names: Sequence[str], encoded_at_ms: int
) -> EncodedRows:
    """Encode ``rows`` with their handle key, each with the location of its file, of ``names``, if they are stored."""
    if large.claim_check is None:
        encoder = large.encoder.for_large(LargeRow())
        return encoder.encode_rows(_only(mounted, rows), topic="", encoded_at_ms=encoded_at_ms, schema_ids={})
    each = []
    for row, name in zip(rows, names, strict=True):
        encoder = large.encoder.for_large(LargeRow(large.claim_check.location(name)))
        single = _only(mounted, np.array([row], np.int64))
        each.append(encoder.encode_rows(single, topic="", encoded_at_ms=encoded_at_ms, schema_ids={}))
    keys, values = ([getattr(single, side) for single in each] for side in ("keys", "values"))
    return EncodedRows(rows, pa.concat_arrays(keys), pa.concat_arrays(values))


def _only(mounted: MountedColumns, rows: IntArray) -> MountedColumns:
    taken = (part.take(np.flatnonzero(np.isin(part.rows, rows))) for part in mounted.parts)
    return replace(mounted, count=len(rows), parts=tuple(part for part in taken if len(part)))


def _with_rows(encoded: EncodedRows, rows: IntArray, anew: EncodedRows) -> EncodedRows:
    """Return the messages with those of ``rows`` replaced; both are ascending."""
    source = np.arange(len(encoded.rows))
    source[rows] = len(encoded.rows) + np.arange(len(rows))
    order = pa.array(source)
    keys, values = (
        pa.concat_arrays(sides).take(order) for sides in ((encoded.keys, anew.keys), (encoded.values, anew.values))
    )
    return EncodedRows(encoded.rows, keys, values)
