"""The table-filter grammar: every example of TiDB's documentation, and what must be refused."""

import pickle
import re

import pytest

from schemas.config.filter.filter_rule import parse_rule
from schemas.ddl.system_schemas import SYSTEM_SCHEMAS, is_system_schema
from schemas.errors import ConfigError
from sorters.core.filter.table_filter import TableFilter, fold


@pytest.mark.parametrize(
    ("rules", "schema", "table", "expected"),
    [
        (["foo.*"], "foo", "bar", True),
        (["foo.*"], "foo1", "bar", False),
        (["*.*", "!foo1.*"], "foo", "bar", True),
        (["*.*", "!foo1.*"], "foo1", "bar", False),
        (["/^foo/.*", r"!/^foo/./^sbtest-\d/"], "foo", "sbtest", True),
        (["/^foo/.*", r"!/^foo/./^sbtest-\d/"], "foo1", "sbtest-1", False),
        (["/^foo/.*", r"!/^foo/./^sbtest-\d/"], "fff", "bar", False),
        (["db*.*", "!*.cfg*", "*.cfgsample"], "db1", "tbl1", True),
        (["db*.*", "!*.cfg*", "*.cfgsample"], "db1", "cfg1", False),
        (["db*.*", "!*.cfg*", "*.cfgsample"], "db1", "cfgsample", True),
        (["db*.*", "!*.cfg*", "*.cfgsample"], "else", "cfgsample", True),
        (["*.*", "!foo[bar].*", "!bar?.*"], "foor", "a", False),
        (["*.*", "!foo[bar].*", "!bar?.*"], "foo[bar]", "b", True),
        (["*.*", "!foo[bar].*", "!bar?.*"], "ba", "c", True),
        (["*.*", "!foo[bar].*", "!bar?.*"], "bar?", "d", False),
        (["[!a-z].[^a-z]"], "!", "z", True),
        (["[!a-z].[^a-z]"], "!", "^", True),
        (["[!a-z].[^a-z]"], "!", "9", False),
        (["[!a-z].[^a-z]"], "a", "z", False),
    ],
)
def test_table_filter_example_of_the_reference_decides_as_stated(
    rules: list[str], schema: str, table: str, expected: bool
) -> None:
    assert TableFilter(rules).matches(schema, table) is expected


@pytest.mark.parametrize("rule", ["a.b.c", "a%b.c", "db", "db.", "[].*", '"db.*', "db\\"])
def test_table_filter_error_of_the_reference_is_refused_with_the_rule_in_the_text(rule: str) -> None:
    with pytest.raises(ConfigError, match="table-filter rule") as caught:
        TableFilter([rule])
    assert f"`{rule}`" in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("a.b.c", "unexpected `.` at character 4"),
        ("a%b.c", "unexpected `%` at character 2"),
        ("a-b.c", "quote names with special characters"),
        ("a b.c", "unexpected ` ` at character 2"),
        ("db", "no table part"),
        ("db.", "the table part is empty"),
        (".t", "unexpected `.` at character 1"),
        ("[].*", "class at character 1 is empty"),
        ("[a.*", "has no closing ]"),
        ("[z-a].*", "invalid character class range"),
        ('"db.*', 'has no closing "'),
        ("`db.*", "has no closing `"),
        ('"".t', "is empty"),
        ("/a.b", "no closing /"),
        ("db\\", "ends in a backslash"),
        (r"\d.t", "backslash before the letter or digit `d`"),
        ("/(?=a)/.t", "(look-around, atomic and conditional groups are not RE2)"),
        ("/(?<!a)/.t", "(look-around, atomic and conditional groups are not RE2)"),
        (r"/(a)\1/.t", r"invalid escape sequence: \1 (back-references are not RE2)"),
        ("/(a/.t", "illegal"),
        ("/a**/.t", "bad repetition operator: **"),
        ("/a{2000}/.t", "invalid repetition size: {2000}"),
        (r"/\pX/.t", r"invalid character class range: \pX"),
        ("@file", "@path"),
    ],
)
def test_filter_rule_illegal_says_why_and_where(rule: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_rule(rule)


def test_filter_rule_wild_of_too_many_wildcards_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^the pattern at character 4 is illegal: .*pattern too large"):
        parse_rule("!a." + "?" * 100_000)


def test_table_filter_pattern_too_large_without_case_alone_is_refused_with_the_rule_in_the_text() -> None:
    rule = "/(?:" + "ks" * 80 + "){1000}/.t"  # three letters are a k without case, and three an s
    assert not TableFilter([rule], case_sensitive=True).matches("k", "t")
    with pytest.raises(ConfigError, match=r"table-filter rule `/.*pattern too large"):
        TableFilter([rule])


@pytest.mark.parametrize("rule", ["", "  \t", "# a comment", "#a.b"])
def test_filter_rule_blank_or_comment_is_no_rule(rule: str) -> None:
    assert parse_rule(rule) is None


@pytest.mark.parametrize(
    ("rule", "schema", "table", "expected"),
    [
        (" a.b\t", "a", "b", True),  # blanks at both ends
        ('"a.b"."c d"', "a.b", "c d", True),
        ('"a""b".t', 'a"b', "t", True),
        ("`a``b`.t", "a`b", "t", True),
        ('"a*".t', "ab", "t", False),  # no wildcards in quotes
        (r"a\*.t", "a*", "t", True),
        (r"a\*.t", "ab", "t", False),
        (r"a\-b.t", "a-b", "t", True),
        (r"db.t\(1\)", "db", "t(1)", True),
        (r"db.t\(1\)*", "db", "t(1)x", True),  # a bracket that is escaped is itself beside a wildcard too
        (r"db.t\(1\)*", "db", "t1x", False),
        (r"db.a\[*", "db", "a[1", True),
        (r"db.a\[*", "db", "ab", False),
        (r"db.t\[a*[bc]", "db", "t[a1b", True),
        (r"db.t\[a*[bc]", "db", "ta", False),
        (r"db.\[?[0-9]", "db", "[x7", True),
        (r"\(\**.t", "(*a", "t", True),
        (r"\(\**.t", "a", "t", False),
        ("a*.t", "a\nb", "t", True),  # a run may hold a newline
        ("表?.t*", "表1", "t", True),
        ("a?.t", "a表", "t", True),  # one character, however many bytes
        (r"[\]x].t", "]", "t", True),
        ("[a-c]*.t", "bz", "t", True),
        ("/a/.t", "xay", "t", True),  # regular expressions are not anchored
        ("/^a$/.t", "a\n", "t", False),  # $ is the very end in RE2
        (r"/a\/b/.t", "a/b", "t", True),
        (r"/\d/.t", "٣", "t", False),  # \d is ASCII in RE2
        (r"/[[:digit:]]+/.t", "a1", "t", True),
        (r"/\Qa.b\E/.t", "a.b", "t", True),
        (r"/\Qa.b\E/.t", "axb", "t", False),
        ("/(?i)A/.t", "xa", "t", True),
        ("/(?:a|b){2}/.t", "ab", "t", True),
    ],
)
def test_table_filter_case_sensitive_pattern_matches_as_the_grammar_says(
    rule: str, schema: str, table: str, expected: bool
) -> None:
    assert TableFilter([rule], case_sensitive=True).matches(schema, table) is expected


@pytest.mark.parametrize("rule", ["Foo.Bar", '"FOO"."bAr"', "F*.b?R", "/^FOO$/./^bar$/", "[A-F]oo.b[A]r"])
def test_table_filter_default_ignores_case_and_sensitive_does_not(rule: str) -> None:
    assert TableFilter([rule]).matches("fOO", "BAR")
    assert not TableFilter([rule], case_sensitive=True).matches("fOO", "BAR")


def test_table_filter_only_negative_rules_match_nothing() -> None:
    assert not TableFilter(["!a.b"]).matches("c", "d")
    assert not TableFilter([]).matches("c", "d")


@pytest.mark.parametrize("schema", sorted(SYSTEM_SCHEMAS))
def test_table_filter_system_schema_is_excluded_in_any_case_whatever_the_rules(schema: str) -> None:
    for name in (schema, schema.upper(), schema.title()):
        assert is_system_schema(name)
        assert not TableFilter([f"{schema}.*", "*.*"]).matches(name, "t")
        assert not TableFilter(["*.*"]).matches_schema(name)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["*.*"], True),
        (["*.*", "!foo.bar"], True),
        (["*.*", "!foo.*"], False),
        (["*.*", "!foo.*", "foo.bar"], True),
        (["bar.*"], False),
        (["!foo.*"], False),
        (["*.*", "!/foo/.*"], False),
        (["FOO.a"], True),
    ],
)
def test_table_filter_schema_match_walks_from_the_last_rule(rules: list[str], expected: bool) -> None:
    assert TableFilter(rules).matches_schema("foo") is expected


def test_table_filter_pickled_decides_the_same() -> None:
    again = pickle.loads(pickle.dumps(TableFilter(["a*.*", r"!/x\d/.*"])))
    assert again.matches("AB", "t")
    assert not again.matches("ax1", "t")


@pytest.mark.parametrize(("name", "expected"), [("ABC", "abc"), ("ΟΔΟΣ", "οδοσ"), ("İ", "i"), ("ÄÖ", "äö")])
def test_fold_lowers_letter_by_letter_as_go_does(name: str, expected: str) -> None:
    assert fold(name) == expected
