"""The position of an output record: where it stands in a partition's order, and what tells a repeat from a new record.

Every output record carries one Kafka header, ``tidebus-position``: bytes that compare as the records are ordered.

====================  =====  ==========================================================================
commit_ts             8      big-endian
class                 1      0 row, 1 DDL, 2 watermark, 3 bootstrap: in this order at one ts
start_ts              8      big-endian (0 for a watermark and a bootstrap)
op                    1      rows: 1 delete, 2 update, 3 insert; else 0
key                   rest   rows: the raw TiKV key (table id included); DDL: sequence number, 4 bytes big-endian;
                             bootstrap: table id, 8 bytes big-endian
====================  =====  ==========================================================================

Two records of one changefeed with the same position are the same record. One that holds several rows (open-protocol)
carries the position of its last row.

The format, for readers in other languages: docs/formats/position.md.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from schemas.errors import CorruptDataError
from schemas.ids import Ts

POSITION_HEADER = "tidebus-position"
_HEAD = struct.Struct(">QBQB")
POSITION_CLASS_AT = 8
"""Where the class stands in a header, for readers of whole columns."""


class PositionClass(IntEnum):
    """Rows, then DDL, then the watermark at one ts, and then the schemas that this ts left (simple)."""

    ROW = 0
    DDL = 1
    WATERMARK = 2
    BOOTSTRAP = 3


class RowOp(IntEnum):
    """DELETE before PUT, and an update before an insert, as TiCDC's sorter has it."""

    NONE = 0
    DELETE = 1
    UPDATE = 2
    INSERT = 3


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Field order is the order of records."""

    commit_ts: Ts
    position_class: PositionClass
    start_ts: Ts = Ts(0)
    op: RowOp = RowOp.NONE
    key: bytes = b""

    def encode(self) -> bytes:
        """Return the header's bytes; comparing them compares positions."""
        return _HEAD.pack(self.commit_ts, self.position_class, self.start_ts, self.op) + self.key


def decode_position(header: bytes) -> Position:
    """Read a ``tidebus-position`` header.

    Raises:
        CorruptDataError: shorter than its fixed part, or an unknown class or op.
    """
    try:
        commit_ts, position_class, start_ts, op = _HEAD.unpack_from(header)
        return Position(Ts(commit_ts), PositionClass(position_class), Ts(start_ts), RowOp(op), header[_HEAD.size :])
    except (struct.error, ValueError) as error:
        raise CorruptDataError("position header does not decode", header=header.hex(), reason=error) from error
