"""Row checksums as messages carry them: the object of simple, its record in Avro, and avro's extension fields.

Each form comes for a whole part and, as its scalar twin, for one row. Sources: PingCAP's docs of the row checksum;
pingcap/ticdc ``pkg/sink/codec/simple`` and ``pkg/sink/codec/avro`` for rows that have none: simple leaves it out, avro
writes the defaults of its schema.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.varint import long_bytes
from sorters.core.columnar.numbers import integer_text
from sorters.core.encode.simple.schema import NULL, PRESENT
from sorters.core.encode.wire.avro_varint import lengths, longs
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.checksums import RowChecksums

_AVRO_DEFAULTS = b"\x00\x00\x00"
_AVRO_BOOLEAN = (b"\x00", b"\x01")


def json_members(sums: RowChecksums | None) -> list[Segment]:
    """Return simple's member ``checksum`` with the comma before it; nothing in rows that have none."""
    if sums is None:
        return []
    parts: list[Segment] = [
        *(b',"checksum":{"version":', integer_text(sums.version), b',"corrupted":', _either(sums, b"false", b"true")),
        *(b',"current":', integer_text(sums.current), b',"previous":', integer_text(sums.previous), b"}"),
    ]
    return _or_literal(sums, parts, b"")


def json_member(sums: RowChecksums | None, row: int) -> bytes:
    """Return the member for one row."""
    if sums is None or not sums.present[row]:
        return b""
    return b',"checksum":{"version":%d,"corrupted":%s,"current":%d,"previous":%d}' % (
        sums.version[row],
        b"true" if sums.corrupted[row] else b"false",
        sums.current[row],
        sums.previous[row],
    )


def avro_unions(sums: RowChecksums | None) -> list[Segment]:
    """Return simple's union of null and ``Checksum`` in Avro."""
    if sums is None:
        return [NULL]
    current, previous = (longs(side.astype(np.int64)) for side in (sums.current, sums.previous))
    present = longs(sums.version.astype(np.int64), PRESENT)
    parts: list[Segment] = [present, _either(sums, *_AVRO_BOOLEAN), current, previous]
    return _or_literal(sums, parts, NULL)


def avro_union(sums: RowChecksums | None, row: int) -> bytes:
    """Return the union for one row."""
    if sums is None or not sums.present[row]:
        return NULL
    numbers = (long_bytes(int(side[row])) for side in (sums.current, sums.previous))
    return b"".join([PRESENT, long_bytes(int(sums.version[row])), _AVRO_BOOLEAN[int(sums.corrupted[row])], *numbers])


def avro_extensions(sums: RowChecksums | None, *, previous: bool = False) -> list[Segment]:
    """Return the values of avro's ``CHECKSUM_FIELDS``, of rows or of those before them."""
    if sums is None:
        return [_AVRO_DEFAULTS]
    text = integer_text(sums.previous if previous else sums.current)
    version = longs(sums.version.astype(np.int64))
    parts: list[Segment] = [lengths(text), text, _either(sums, *_AVRO_BOOLEAN), version]
    return _or_literal(sums, parts, _AVRO_DEFAULTS)


def avro_extension(sums: RowChecksums | None, row: int, *, previous: bool = False) -> bytes:
    """Return the values for one row."""
    if sums is None or not sums.present[row]:
        return _AVRO_DEFAULTS
    text = b"%d" % (sums.previous if previous else sums.current)[row]
    mark = _AVRO_BOOLEAN[int(sums.corrupted[row])]
    return long_bytes(len(text)) + text + mark + long_bytes(int(sums.version[row]))


def _either(sums: RowChecksums, sound: bytes, corrupted: bytes) -> BinaryArray:
    words = (pa.scalar(word, pa.binary()) for word in (corrupted, sound))
    return pc.if_else(pa.array(sums.corrupted), *words)


def _or_literal(sums: RowChecksums, parts: list[Segment], literal: bytes) -> list[Segment]:
    if sums.present.all():
        return parts
    return [pc.if_else(pa.array(sums.present), join(len(sums.present), parts), pa.scalar(literal, pa.binary()))]
