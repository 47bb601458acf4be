"""Settings for Java's servers, with letters that Latin-1 has and has not."""

import pytest

from compose.stack.java_text import escaped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.dirs=/data/log\n", "log.dirs=/data/log\n"),
        ("/home/jürgen", r"/home/j\u00fcrgen"),
        ("/数据/€", r"/\u6570\u636e/\u20ac"),
        ("/😀", r"/\ud83d\ude00"),
        (r"C:\new", r"C:\\new"),
    ],
)
def test_text_for_java_is_ascii_with_escapes(text: str, expected: str) -> None:
    assert escaped(text) == expected
