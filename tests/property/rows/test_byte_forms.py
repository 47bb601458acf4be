"""Binary values in open-protocol: base64, and Go's strconv.Quote inside JSON; columns against single values."""

import base64
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.go_quote import quoted, quoted_column

VALUES = st.lists(st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode), max_size=8)


@given(values=VALUES, cut=st.integers(0, 3))
def test_base64_of_a_column_equals_the_standard_library(values: list[bytes | None], cut: int) -> None:
    array = pa.array(values, pa.binary()).slice(cut)
    expected = [None if value is None else base64.b64encode(value) for value in values[cut:]]
    assert base64_texts(array).to_pylist() == expected


@given(values=VALUES, cut=st.integers(0, 3))
def test_quoted_column_equals_quoted_values(values: list[bytes | None], cut: int) -> None:
    array = pa.array(values, pa.binary()).slice(cut)
    assert quoted_column(array).to_pylist() == [None if value is None else quoted(value) for value in values[cut:]]


@given(value=st.binary(max_size=20))
def test_quoted_value_unquoted_is_the_value(value: bytes) -> None:
    text = json.loads(b'"' + quoted(value) + b'"')
    # Python's literals read every form of Go's but one: \u and \U stand for characters, \x for bytes.
    pieces, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            pieces += text[at].encode()
            at += 1
        elif text[at + 1] == "x":
            pieces.append(int(text[at + 2 : at + 4], 16))
            at += 4
        elif text[at + 1] in "uU":
            width = 4 if text[at + 1] == "u" else 8
            pieces += chr(int(text[at + 2 : at + 2 + width], 16)).encode()
            at += 2 + width
        else:
            pieces += {"a": b"\a", "b": b"\b", "t": b"\t", "n": b"\n", "v": b"\v", "f": b"\f", "r": b"\r"}.get(
                text[at + 1], text[at + 1].encode()
            )
            at += 2
    assert bytes(pieces) == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        # The reference's example, and Go's documentation of strconv.Quote; each backslash is doubled by JSON.
        (b"\x89PNG\r\n\x1a\n", rb"\\x89PNG\\r\\n\\x1a\\n"),
        (b'"\\', rb"\\\"\\\\"),
        ("中文 é☺".encode(), "中文 é☺".encode()),
        (b"<&>", rb"\u003c\u0026\u003e"),
        (b"\x00\x7f", rb"\\x00\\x7f"),
        ("\u00a0\u2028\ufeff".encode(), rb"\\u00a0\\u2028\\ufeff"),
        ("\U000e0001".encode(), rb"\\U000e0001"),
        (b"\xe4\xb8", rb"\\xe4\\xb8"),
        (b"\xed\xa0\x80\xc0\x80", rb"\\xed\\xa0\\x80\\xc0\\x80"),
    ],
)
def test_quoted_value_is_gos_quote_within_json(value: bytes, said: bytes) -> None:
    assert quoted(value) == said
    assert quoted_column(pa.array([b"x", value, None], pa.binary())).to_pylist() == [b"x", said, None]
