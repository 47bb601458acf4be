"""TiDB's EncodeBytes: groups of 8 bytes, zero-padded, each followed by 0xFF minus the padding; order-preserving."""

from schemas.errors import CorruptDataError

_GROUP = 8


def encode_bytes(raw: bytes) -> bytes:
    """Return the memcomparable form, as region bounds and ranges of requests have it.

    >>> encode_bytes(bytes((1, 2, 3))).hex()
    '0102030000000000fa'
    """
    out = bytearray()
    for at in range(0, len(raw) + 1, _GROUP):
        part = raw[at : at + _GROUP]
        out += part.ljust(_GROUP, b"\0")
        out.append(0xFF - (_GROUP - len(part)))
    return bytes(out)


def decode_bytes(encoded: bytes) -> bytes:
    """Undo :func:`encode_bytes`.

    Raises:
        CorruptDataError: not whole groups, a wrong marker, or padding that is not zero.
    """
    out = bytearray()
    for at in range(0, len(encoded), _GROUP + 1):
        part, marker = encoded[at : at + _GROUP], encoded[at + _GROUP : at + _GROUP + 1]
        used = _GROUP - (0xFF - marker[0]) if marker else -1
        if used < 0 or any(part[used:]):
            break
        out += part[:used]
        if used < _GROUP:
            if at + _GROUP + 1 == len(encoded):
                return bytes(out)
            break
    raise CorruptDataError("bytes are not memcomparable-encoded", bytes=encoded.hex())
