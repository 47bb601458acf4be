"""Joins canal packets of one row to packets of several: the head once, then the length of all entries and them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.proto import canal_pb2 as pb
from sorters.core.columnar.spans import IntArray, Spans, spans_of
from sorters.core.encode.wire.avro_varint import uvarints
from sorters.core.encode.wire.protobuf_fields import int_field, lengths_of, tag
from sorters.core.encode.wire.segments import join

ROWS_PER_PACKET: Final = 2048
"""TiCDC's Kafka sink encodes what has gathered, up to so many rows, and puts those of a partition into one packet
(pingcap/tiflow ``cdc/sink/dmlsink/mq/worker.go``, ``batchSize``)."""
PACKET_HEAD: Final = int_field(pb.Packet.VERSION_FIELD_NUMBER, 1) + int_field(pb.Packet.TYPE_FIELD_NUMBER, pb.MESSAGES)
"""Of a packet, before its body."""
_BODY_TAG: Final = tag(pb.Packet.BODY_FIELD_NUMBER)
_LENGTH_BYTES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class CanalJoiner:
    """See :class:`sorters.core.encode.wire.protocol.Joiner`. Keys are null and stay so."""

    rows_per_message: int = ROWS_PER_PACKET
    same_key: bool = False
    head_bytes: int = len(PACKET_HEAD) + len(_BODY_TAG) + _LENGTH_BYTES_MAX

    def added_bytes(self, keys: Any, values: Any) -> IntArray:
        """Return how much longer each row makes a packet: int64, one a row."""
        return _bodies(values).length

    def join(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Join the packets of each list."""
        each = pa.ListArray.from_arrays(values.offsets, _bodies(values.values).to_arrow())
        bodies = pc.binary_join(each, b"")
        prefix = uvarints(lengths_of(bodies).astype(np.uint64), PACKET_HEAD + _BODY_TAG)
        return pa.nulls(len(values), pa.binary()), join(len(values), [prefix, bodies])


def _bodies(values: Any) -> Spans:
    """Return what stands behind the head and the length of each packet."""
    whole = spans_of(values)
    at = whole.start + len(PACKET_HEAD) + len(_BODY_TAG)
    still = np.ones(len(whole), np.bool_)
    for _ in range(_LENGTH_BYTES_MAX):
        more = still & (whole.buffer[at] >= 0x80) if len(at) else still
        at = at + still
        still = more
    return Spans(whole.buffer, at, whole.end)
