"""Snappy's raw blocks and LZ4's frames taken apart by their descriptions; no library that could have made them.

Sources: google/snappy ``format_description.txt``; lz4/lz4 ``doc/lz4_Block_format.md`` and ``doc/lz4_Frame_format.md``.
"""


def unsnappy(data: bytes) -> bytes:
    """Decode one raw block."""
    length, at = _uvarint(data)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            count = (tag >> 2) + 1
            if count > 60:
                width = count - 60
                count = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            out += data[at : at + count]
            at += count
            continue
        if tag & 3 == 1:
            count, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            count, offset = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
            at += width
        _repeat(out, offset, count)
    assert len(out) == length
    return bytes(out)


def unlz4(data: bytes) -> bytes:
    """Decode one frame; checksums are passed over."""
    assert data[:4] == bytes.fromhex("04224d18")
    flags = data[4]
    assert flags >> 6 == 1
    at = 7 + (8 if flags & 8 else 0)
    out = bytearray()
    while size := int.from_bytes(data[at : at + 4], "little"):
        at += 4
        stored, size = size >> 31, size & 0x7FFFFFFF
        block = data[at : at + size]
        if stored:
            out += block
        else:
            _lz4_block(block, out)
        at += size + (4 if flags & 16 else 0)
    assert at + 4 + (4 if flags & 4 else 0) == len(data)
    return bytes(out)


def _lz4_block(block: bytes, out: bytearray) -> None:
    at = 0

    def more(count: int) -> int:
        nonlocal at
        while count >= 15:
            byte = block[at]
            at += 1
            count += byte
            if byte != 255:
                break
        return count

    while at < len(block):
        token = block[at]
        at += 1
        count = more(token >> 4)
        out += block[at : at + count]
        at += count
        if at == len(block):
            return
        offset = int.from_bytes(block[at : at + 2], "little")
        at += 2
        _repeat(out, offset, more(token & 15) + 4)


def _repeat(out: bytearray, offset: int, count: int) -> None:
    for _ in range(count):  # byte by byte: what is copied may be what has just been written
        out.append(out[-offset])


def _uvarint(data: bytes) -> tuple[int, int]:
    value = shift = at = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
