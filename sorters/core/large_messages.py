"""Rows whose message is larger than its topic takes: found, and encoded anew if the changefeed says so.

Sources: PingCAP's docs on large messages, and pingcap/ticdc ``pkg/sink/codec`` for what they leave open.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.errors import Action, BusError
from schemas.tidb.table import TableVersion
from sorters.core.columnar.mounted import MountedColumns
from sorters.core.columnar.spans import IntArray
from sorters.core.encode.protocol import EncodedRows, HandleKeyEncoder, LargeRow


class MessageTooLargeError(BusError):
    """An encoded row is larger than ``max-message-bytes`` or its topic allow."""

    code, action = "sink.message_too_large", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeMessages:
    """``large-message-handle-option``, unless it is ``none``; picklable."""

    encoder: HandleKeyEncoder


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NamedRows:
    """What an error says of the rows of a batch."""

    table: TableVersion
    """Whole, also where column selectors leave something out of what is mounted."""
    keys: Any
    """``pyarrow.BinaryArray`` of TiKV keys, one a row."""
    commit_ts: IntArray


def within_limit(
    encoded: EncodedRows,
    mounted: MountedColumns,
    named: NamedRows,
    limit: int,
    large: LargeMessages | None,
    encoded_at_ms: int,
) -> EncodedRows:
    """Return the messages, none of them larger than ``limit``.

    Args:
        encoded: one message for each row of ``mounted``, whose rows are numbered from 0.
        limit: key, value and overhead of a message, in bytes.
        large: how to encode rows anew that are too large; None: they are an error.

    Raises:
        MessageTooLargeError: a row is too large, and stays so.
    """
    rows = _too_large(encoded, limit)
    if not len(rows):
        return encoded
    said = "message is larger than allowed"
    if large is not None and len(mounted.table.handle_columns) < len(named.table.handle_columns):
        said += ", and a column selector leaves out some of the handle key, which it could be sent with instead"
    elif large is not None:
        said = "message with the handle key alone is larger than allowed"
        anew = _encode_anew(mounted, rows, large, encoded_at_ms)
        encoded = _with_rows(encoded, rows, anew)
        rows = _too_large(encoded, limit)
    if len(rows):
        sizes = _sizes(encoded)
        row = int(sizes.argmax())
        raise MessageTooLargeError(
            said,
            table=named.table.name,
            key=named.keys[row].as_py().hex(),
            commit_ts=int(named.commit_ts[row]),
            bytes=int(sizes[row]) + MESSAGE_OVERHEAD_BYTES,
            bytes_max=limit,
        )
    return encoded


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


def _encode_anew(mounted: MountedColumns, rows: IntArray, large: LargeMessages, encoded_at_ms: int) -> EncodedRows:
    taken = (part.take(np.flatnonzero(np.isin(part.rows, rows))) for part in mounted.parts)
    chosen = replace(mounted, count=len(rows), parts=tuple(part for part in taken if len(part)))
    encoder = large.encoder.for_large(LargeRow())
    return encoder.encode_rows(chosen, topic="", encoded_at_ms=encoded_at_ms, schema_ids={})


def _with_rows(encoded: EncodedRows, rows: IntArray, anew: EncodedRows) -> EncodedRows:
    """Return the messages with those of ``rows`` replaced; both are ascending."""
    place = np.arange(len(encoded.rows))
    place[rows] = len(encoded.rows) + np.arange(len(rows))
    order = pa.array(place)
    keys, values = (
        pa.concat_arrays(sides).take(order) for sides in ((encoded.keys, anew.keys), (encoded.values, anew.values))
    )
    return EncodedRows(encoded.rows, keys, values)
