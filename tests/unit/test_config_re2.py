"""RE2 syntax in Python: where the two differ, the answer is RE2's (each was asked of google-re2 1.1)."""

import re

import pytest

from schemas.config.filter.re2 import translate


@pytest.mark.parametrize(
    ("source", "text", "found"),
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
    ],
)
def test_translate_expression_finds_what_re2_finds(source: str, text: str, found: bool) -> None:
    assert (re.search(translate(source), text) is not None) is found


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(?=a)", "look-around and back-references are not RE2"),
        ("(?!a)", "look-around and back-references are not RE2"),
        ("(?<=a)", "look-around and back-references are not RE2"),
        ("(?>a)", "look-around and back-references are not RE2"),
        ("(?(1)a)", "look-around and back-references are not RE2"),
        ("(?P=n)", "look-around and back-references are not RE2"),
        (r"(a)\1", r"back-reference `\1` is not RE2"),
        ("a++", "`++` repeats a repetition"),
        ("a{2}{3}", "repeats a repetition"),
        ("a{1001}", "repeats more than 1000 times"),
        ("a(?i)b", "`(?i)` must stand at the start here, or be written as `(?i:…)`"),
        (r"\Z", r"escape `\Z` is not supported"),
        (r"\pL", r"escape `\p` is not supported"),
        (r"\u0041", r"escape `\u` is not supported"),
        ("[[:^digit:]]", "POSIX class `[:^digit:]` is unknown or negated"),
        (r"[\D]", r"`\D` inside a class is not supported"),
        ("[a", "a class has no closing ]"),
        ("a)", "unexpected )"),
        ("(a", "unterminated subpattern"),
        ("*a", "nothing to repeat"),
        ("a\\", "ends in a backslash"),
        (r"\x{110000}", "is no character"),
    ],
)
def test_translate_what_re2_or_python_lacks_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        translate(source)
    assert f"regular expression `{source}` is illegal" in str(caught.value)
