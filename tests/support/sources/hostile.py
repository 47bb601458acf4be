"""What nobody should send: bytes bent from valid ones, JSON of any shape, and what must come of them."""

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from schemas.errors import BusError

NOT_JSON = ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000, '"\\ud800"', "\x00", "[1e999]"]
"""Texts that exhaust a parser, or that are no value of any field."""
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, 1e308, float("inf"), float("nan"), -0.0])
LEAVES = st.none() | st.booleans() | NUMBERS | st.integers() | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


@st.composite
def bent(draw: st.DrawFn, valid: bytes) -> bytes:
    """Return bytes with up to four places changed, cut off, or with lengths that cannot be."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.integers(0, 4)):
            case 0 if data:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at:]
            case 2:
                data[at:at] = draw(st.binary(max_size=12))
            case 3:
                data[at : at + 4] = struct.pack(">I", draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])))
            case 4:
                data[at : at + 10] = b"\xff" * draw(st.integers(1, 10)) + b"\x01"
    return bytes(data)


def only_coded(decode: Callable[[bytes], Any], value: bytes) -> None:
    """Decode; what is refused has a code of its own and a short text."""
    try:
        decode(value)
    except BusError as error:
        assert error.code != BusError.code
        assert len(str(error)) < 4_000
