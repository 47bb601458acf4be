"""MySQL's binary decimal, behind TiDB's precision and fraction bytes.

Nine decimal digits take four bytes, big-endian; the leading group of the integer part and the trailing one of the
fraction take fewer. A negative number has all bytes inverted; then the first bit is flipped, so that bytes compare as
numbers do. Source: pingcap/tidb ``pkg/types/mydecimal.go``, ``ToBin``/``FromBin``.
"""

from schemas.errors import CorruptDataError

_GROUP_DIGITS = 9
_GROUP_BYTES = 4
_PART_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DIGITS_MAX = 81


def decimal_size(precision: int, fraction: int) -> int:
    """Return how many bytes the digits take, without the two leading bytes."""
    groups_int, rest_int = divmod(precision - fraction, _GROUP_DIGITS)
    groups_frac, rest_frac = divmod(fraction, _GROUP_DIGITS)
    return (groups_int + groups_frac) * _GROUP_BYTES + _PART_BYTES[rest_int] + _PART_BYTES[rest_frac]


def decode_decimal(data: bytes, at: int = 0) -> tuple[str, int]:
    """Read precision, fraction and digits.

    Returns:
        The text, with exactly ``fraction`` digits after the point, and the offset after it.

    Raises:
        CorruptDataError: the data ends early, or precision and fraction cannot be.

    >>> decode_decimal(bytes.fromhex("0e04810dfb38d204d2"))[0]
    '1234567890.1234'
    """
    if at + 2 > len(data):
        raise CorruptDataError("decimal ends early", at=at, size=len(data))
    precision, fraction = data[at], data[at + 1]
    if not fraction <= precision <= _DIGITS_MAX or precision == 0:
        raise CorruptDataError("decimal has a bad precision", precision=precision, fraction=fraction, at=at)
    end = at + 2 + decimal_size(precision, fraction)
    if end > len(data):
        raise CorruptDataError("decimal ends early", at=at, size=len(data))
    raw = bytearray(data[at + 2 : end])
    negative = not raw[0] & 0x80
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    whole, part = _digits(raw, precision - fraction, fraction)
    sign = "-" if negative and (whole.strip("0") or part.strip("0")) else ""
    text = sign + (whole.lstrip("0") or "0")
    return (f"{text}.{part}" if fraction else text), end


def encode_decimal(text: str, precision: int, fraction: int) -> bytes:
    """Return precision, fraction and digits of a plain decimal text (no exponent).

    Raises:
        ValueError: the text is no plain decimal or does not fit.
    """
    negative, unsigned = text.startswith("-"), text.lstrip("+-")
    whole, _, part = unsigned.partition(".")
    digits = precision - fraction
    whole = whole.lstrip("0").rjust(digits, "0")
    if not (whole + part + "0").isdecimal() or len(whole) > digits or len(part) > fraction:
        raise ValueError(f"{text!r} does not fit DECIMAL({precision},{fraction})")
    out = bytearray()
    lead = digits % _GROUP_DIGITS
    part = part.ljust(fraction, "0")
    starts = [whole[:lead], *(whole[i : i + _GROUP_DIGITS] for i in range(lead, digits, _GROUP_DIGITS))]
    for group in (*starts, *(part[i : i + _GROUP_DIGITS] for i in range(0, fraction, _GROUP_DIGITS))):
        if group:
            out += int(group).to_bytes(_PART_BYTES[len(group)], "big")
    if negative and (whole + part).strip("0"):
        out = bytearray(byte ^ 0xFF for byte in out)
    out[0] ^= 0x80
    return bytes((precision, fraction)) + bytes(out)


def _digits(raw: bytearray, whole_digits: int, part_digits: int) -> tuple[str, str]:
    at, out = 0, []
    lead, tail = whole_digits % _GROUP_DIGITS, part_digits % _GROUP_DIGITS
    widths = [lead, *[_GROUP_DIGITS] * (whole_digits // _GROUP_DIGITS)]
    widths += [*[_GROUP_DIGITS] * (part_digits // _GROUP_DIGITS), tail]
    for width in widths:
        size = _PART_BYTES[width]
        if width:
            digits = str(int.from_bytes(raw[at : at + size], "big"))
            if len(digits) > width:  # TiDB's ErrBadNumber
                raise CorruptDataError("decimal has a digit group that is too large", group=digits, digits=width)
            out.append(digits.rjust(width, "0"))
        at += size
    joined = "".join(out)
    return joined[:whole_digits], joined[whole_digits:]
