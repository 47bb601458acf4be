"""One number as protobuf and Avro write it: seven bits a byte, the lowest first, the top bit where more follow.

Columns of them: :mod:`sorters.core.encode.wire.avro_varint`. Sources: protobuf.dev, "Encoding"; the Avro specification.
"""

from typing import Final

_BITS_64: Final = (1 << 64) - 1
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(0x80))


def uvarint(value: int) -> bytes:
    """Encode one number; a negative one as its two's complement in 64 bits.

    >>> uvarint(300).hex(), len(uvarint(-1))
    ('ac02', 10)
    """
    bits = value & _BITS_64
    if bits < 0x80:
        return _ONE_BYTE[bits]
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def long_bytes(value: int) -> bytes:
    """Encode one int or long of Avro (as int64).

    >>> long_bytes(-65).hex()
    '8101'
    """
    return uvarint(value << 1 ^ value >> 63)
