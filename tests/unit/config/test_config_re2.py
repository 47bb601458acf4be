"""Regular expressions of users: Go's syntax, whatever Python's ``re`` would make of it."""

import pickle
import re

import pytest

from schemas.config.filter.re2 import Expression, byte_literal, literal


@pytest.mark.parametrize(
    ("source", "text", "is_found"),
    [
        (r"a$", "a\n", False),
        (r"(?m)a$", "a\nb", True),
        (r"(?m:^b)$", "a\nb", True),
        (r"^\d$", "٣", False),
        (r"^\w$", "é", False),
        (r"^\W$", "é", True),
        (r"^\s$", "\v", False),
        (r"\bé", "aé", True),
        (r"\B", "", True),
        (r"\Aa\z", "a", True),
        (r"[[:alpha:]_]+\.", "a_.", True),
        (r"[]a]", "]", True),
        (r"[^]]", "]", False),
        (r"[\w-]", "-", True),
        (r"[\]]", "]", True),
        (r"\Q.*\E", "xx", False),
        (r"\x41\x{e9}\101", "AéA", True),
        (r"(?i)k", "\u212a", True),
        (r"a.b", "a\nb", False),
        (r"(?s)a.b", "a\nb", True),
        (r"(?i)(?s)A.b", "a\nB", True),
        (r"a{,3}", "a{,3}", True),
        (r"a{x", "a{x", True),
        (r"(?P<n>a)(?<m>b)", "ab", True),
        (r"(?i:a)b", "Ab", True),
        (r"(?i:a)b", "AB", False),
        (r"x|(?:y|z)+?", "z", True),
        (r"a(?i)b", "aB", True),
        (r"^\p{Han}+$", "表", True),
        (r"[[:^digit:]]", "1", False),
        (r"[^\D]", "1", True),
        (r"^a.b$", "a\udcffb", True),
    ],
)
def test_expression_searched_finds_what_go_finds(source: str, text: str, is_found: bool) -> None:
    assert Expression(source).search(text) is is_found


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(?=a)", "look-around, atomic and conditional groups are not RE2"),
        ("(?!a)", "look-around, atomic and conditional groups are not RE2"),
        ("(?<=a)", "look-around, atomic and conditional groups are not RE2"),
        ("(?>a)", "look-around, atomic and conditional groups are not RE2"),
        ("(?(1)a)", "look-around, atomic and conditional groups are not RE2"),
        (r"(a)\1", "back-references are not RE2"),
        ("a++", "bad repetition operator: ++"),
        ("a{2}{3}", "bad repetition operator: {2}{3}"),
        ("a{1001}", "invalid repetition size: {1001}"),
        (r"\Z", r"invalid escape sequence: \Z"),
        (r"\u0041", r"invalid escape sequence: \u"),
        ("[a", "missing ]"),
        ("a)", "unexpected )"),
        ("(a", "missing )"),
        ("*a", "no argument for repetition operator: *"),
        ("a\\", "trailing \\"),
        (r"\x{110000}", "invalid escape sequence"),
        (r"\pL{1000}", "pattern too large"),
    ],
)
def test_expression_that_re2_does_not_take_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        Expression(source)
    assert f"regular expression `{source}` is illegal" in str(caught.value)


def test_expression_refused_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="illegal"):
        Expression("(secret")
    assert capfd.readouterr().err == ""


def test_expression_pickled_matches_the_same() -> None:
    expression = Expression("^AB$", ignore_case=True)
    again = pickle.loads(pickle.dumps(expression))
    assert again == expression
    assert again.search("ab")
    assert not pickle.loads(pickle.dumps(Expression("^AB$"))).search("ab")


@pytest.mark.parametrize("text", ["".join(map(chr, range(128))), "表–\u212a", "a\\E*"])
def test_literal_any_text_matches_itself_alone_and_in_a_class(text: str) -> None:
    assert Expression(literal(text)).fullmatch(text)
    assert all(Expression(f"[{literal(char)}]").fullmatch(char) for char in text)


def test_expression_of_bytes_counts_bytes() -> None:
    every = bytes(range(256))
    assert Expression(byte_literal(every)).fullmatch(every)
    assert Expression(rb"[\x00-\xff]").fullmatch(b"\xff")
    assert not Expression(rb"[\x00-\xff]").fullmatch("é".encode())
