"""No pattern of a user stops a sorter: what takes a backtracking engine longer than anybody waits ends at once."""

import subprocess
import sys

import pytest

LIMIT_S = 60.0
"""For a child process that needs a second for its imports; the ways to try are 2**60 and more."""
NAME = "a" * 63 + "!"
"""As long as a name of TiDB may be, and one character that no pattern takes."""
RULE = """
from sorters.core.filter.table_filter import TableFilter
print(TableFilter([{rule!r}]).matches({name!r}, "t"))
"""
IGNORE_SQL = """
from schemas.config.sink.sink import EventFilterRule
from sorters.core.filter.event_filter import EventFilter
rules = [EventFilterRule(matcher=("*.*",), ignore_sql=({pattern!r},))]
print(EventFilter(rules).ignores_ddl("create table", {text!r}, "d", "t"))
"""
LIKE = """
from sorters.core.filter.value_expression.comparison import like_expression
print(like_expression({pattern!r}, chr(92), by_byte={by_byte}).fullmatch({text!r}))
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(RULE.format(rule="/^(a+)+$/.*", name=NAME), id="rule"),
        pytest.param(RULE.format(rule="/^(?:a|a?)+$/.*", name=NAME), id="rule of alternatives"),
        pytest.param(RULE.format(rule="*a" * 24 + "*b.*", name=NAME), id="wild rule"),
        pytest.param(IGNORE_SQL.format(pattern="^(a*)*$", text=NAME), id="ignore-sql"),
        pytest.param(LIKE.format(pattern="%a" * 24 + "%b", by_byte=False, text=NAME.encode()), id="like"),
        pytest.param(LIKE.format(pattern="%a" * 24 + "%b", by_byte=True, text=NAME.encode()), id="like by byte"),
    ],
)
def test_pattern_that_makes_backtracking_hang_is_answered(script: str) -> None:
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert (child.returncode, child.stdout) == (0, "False\n"), child.stderr
