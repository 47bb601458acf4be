"""Table filters against a naive oracle: each rule as one regular expression over ``schema`` NUL ``table``."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.filter.table_filter import TableFilter

NAMES = st.text(alphabet="abAB1_([", min_size=1, max_size=4)
WILD_TOKENS = st.sampled_from(["a", "b", "A", "1", "_", "*", "?", "[ab]", "[!a]", "[a-z]", r"\-", r"\(", r"\["])
WILD = st.lists(WILD_TOKENS, min_size=1, max_size=4).map("".join)
QUOTED = st.text(alphabet="abA1_.*", min_size=1, max_size=3).map(lambda name: f'"{name}"')
REGEX = st.sampled_from(["/a/", "/^a/", "/b$/", "/^[ab]+$/", "/a.b/", "/(a|b)1/"])
RULES = st.lists(st.tuples(st.booleans(), st.one_of(WILD, QUOTED, REGEX), st.one_of(WILD, QUOTED, REGEX)), max_size=6)


def oracle_pattern(pattern: str) -> str:
    if pattern.startswith("/"):
        body = pattern[1:-1]
        start = "" if body.startswith("^") else ".*"
        end = "" if body.endswith("$") else ".*"
        return start + "(?:" + body.removeprefix("^").removesuffix("$") + ")" + end
    if pattern.startswith('"'):
        return re.escape(pattern[1:-1])
    return pattern.replace("[!", "[^").replace("*", ".*").replace("?", ".")


@given(RULES, NAMES, NAMES, st.booleans())
def test_table_filter_any_rules_decide_as_the_last_matching_regular_expression(
    rules: list[tuple[bool, str, str]], schema: str, table: str, case_sensitive: bool
) -> None:
    expected = False
    for positive, schema_pattern, table_pattern in rules:
        expression = oracle_pattern(schema_pattern) + "\0" + oracle_pattern(table_pattern)
        flags = re.DOTALL if case_sensitive else re.DOTALL | re.IGNORECASE
        if re.fullmatch(expression, f"{schema}\0{table}", flags):
            expected = positive
    texts = [("" if positive else "!") + f"{a}.{b}" for positive, a, b in rules]
    assert TableFilter(texts, case_sensitive).matches(schema, table) is expected


@given(RULES, NAMES, NAMES)
def test_table_filter_schema_without_match_has_no_matching_table(
    rules: list[tuple[bool, str, str]], schema: str, table: str
) -> None:
    table_filter = TableFilter([("" if positive else "!") + f"{a}.{b}" for positive, a, b in rules])
    if table_filter.matches(schema, table):
        assert table_filter.matches_schema(schema)
