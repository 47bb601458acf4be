"""JSON escaping: the columnar form equals the one for single values, and that one Go's rules."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorters.core.columnar.escape import CANAL, JSON_TEXT, Escaper

VALUES = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(alphabet='ab"\\<>&\n\x00\u2028é', max_size=20).map(str.encode),
)


@pytest.mark.parametrize(
    ("raw", "canal", "json_text"),
    [
        (b'q"\\', b'q\\"\\\\', b'q\\"\\\\'),
        (b"\b\t\n\f\r\x00\x1f\x7f", b"\\u0008\\t\\n\\u000c\\r\\u0000\\u001f\x7f", b"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f"),
        (b"<&>", b"\\u003c\\u0026\\u003e", b"<&>"),
        ("\u2028\u2029".encode(), b"\\u2028\\u2029", b"\\u2028\\u2029"),
        (b"a\xff\xe4\xb8b", b"a\\ufffd\\ufffd\\ufffdb", b"a\\ufffd\\ufffd\\ufffdb"),
        ("\ufffdé".encode(), "\ufffdé".encode(), "\ufffdé".encode()),
    ],
)
def test_escape_of_one_value_follows_go(raw: bytes, canal: bytes, json_text: bytes) -> None:
    assert CANAL.value(raw) == canal
    assert JSON_TEXT.value(raw) == json_text


def test_escape_of_a_blob_reads_its_bytes_as_latin_1() -> None:
    assert CANAL.value(b"\x00\xff<", blob=True) == "\\u0000ÿ\\u003c".encode()


@settings(deadline=None)
@given(values=st.lists(st.none() | VALUES, max_size=12), start=st.integers(0, 3), blob=st.booleans())
@pytest.mark.parametrize("escaper", [CANAL, JSON_TEXT], ids=["canal", "json"])
def test_escape_of_a_column_equals_escapes_of_its_values(
    escaper: Escaper, values: list[bytes | None], start: int, blob: bool
) -> None:
    column = pa.array(values, pa.binary())[start:]
    expected = [None if value is None else escaper.value(value, blob=blob) for value in values[start:]]
    assert escaper.column(column, blob=blob).to_pylist() == expected


@settings(deadline=None)
@given(value=st.text())
def test_escape_is_undone_by_a_json_parser(value: str) -> None:
    raw = value.encode("utf-8", "surrogatepass")
    escaped = b'"' + CANAL.value(raw) + b'"'
    assert json.loads(escaped) == raw.decode("utf-8", "surrogateescape").translate(
        dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")
    )
