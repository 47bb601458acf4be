"""Topic expressions: which are legal for which protocol, and which topic they give."""

import pytest

from schemas.config.sink.topic_rule import topic_expression_fault
from sorters.core.route.topic_expression import substitute


@pytest.mark.parametrize(
    ("expression", "topic"),
    [
        ("{schema}", "hello"),
        ("{schema}_{table}", "hello_world_"),
        ("prefix_{schema}_middle_{table}_suffix", "prefix_hello_middle_world__suffix"),
        ("{table}", "world_"),
        ("hard-coded.topic", "hard-coded.topic"),
    ],
)
def test_topic_expression_example_of_the_reference_gives_the_topic(expression: str, topic: str) -> None:
    assert substitute(expression, "hello", "world!") == topic


@pytest.mark.parametrize(
    ("schema", "table", "topic"),
    [
        ("a.b", "c-d", "a.b_c-d"),
        ("表", "t", "__t"),
        ("{table}", "t", "_table__t"),  # a name is never an expression
        ("s" * 200, "t" * 200, "s" * 200 + "_" + "t" * 48),
    ],
)
def test_topic_expression_odd_name_gives_a_legal_topic(schema: str, table: str, topic: str) -> None:
    assert substitute("{schema}_{table}", schema, table) == topic


@pytest.mark.parametrize(("schema", "topic"), [(".", "_"), ("..", "__"), ("...", "...")])
def test_topic_expression_dots_only_become_underlines(schema: str, topic: str) -> None:
    assert substitute("{schema}", schema, "") == topic


@pytest.mark.parametrize("expression", ["topic", "{schema}", "{table}", "a{schema}b{table}c", "{schema}{table}"])
def test_topic_rule_legal_expression_has_no_fault(expression: str) -> None:
    assert topic_expression_fault(expression, needs_table=False) is None


@pytest.mark.parametrize(
    "expression",
    ["{scheme}", "{table}{schema}", "{schema}{schema}", "{table}{table}", "{schema", "a b", "a/b{schema}", "{}", "ü"],
)
def test_topic_rule_illegal_expression_names_it_and_what_is_allowed(expression: str) -> None:
    fault = topic_expression_fault(expression, needs_table=False)
    assert fault is not None
    assert f"`{expression}`" in fault
    assert "allowed are letters" in fault


@pytest.mark.parametrize("expression", ["topic", "{schema}{table}", "a.{schema}-b_{table}c"])
def test_topic_rule_avro_takes_a_name_or_both_placeholders(expression: str) -> None:
    assert topic_expression_fault(expression, needs_table=True) is None


@pytest.mark.parametrize("expression", ["{schema}", "{table}", "x{schema}y"])
def test_topic_rule_avro_without_both_placeholders_is_refused(expression: str) -> None:
    fault = topic_expression_fault(expression, needs_table=True)
    assert fault is not None
    assert "avro needs a topic per table" in fault
