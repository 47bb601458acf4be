"""Binary values as text: each byte is read as the character of ISO-8859-1 that has its number."""

from schemas.changes import BinaryArray
from sorters.core.columnar.escape import byte_map, data_of, map_codes

_ASCII_END = 0x80
_UTF8_OF_LATIN = byte_map([chr(byte).encode() for byte in range(256)])


def latin_texts(array: BinaryArray) -> BinaryArray:
    r"""Return the UTF-8 of the values of a ``pyarrow.BinaryArray`` read so; nulls stay null.

    >>> import pyarrow as pa
    >>> latin_texts(pa.array([b"a\xff", None], pa.binary())).to_pylist()
    [b'a\xc3\xbf', None]
    """
    data = data_of(array)
    if not len(data) or data.max() < _ASCII_END:
        return array
    return map_codes(array, data, *_UTF8_OF_LATIN)
