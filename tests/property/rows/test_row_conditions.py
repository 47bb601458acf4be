"""Value expressions over whole columns equal those over single rows, on random tables, rows and expressions."""

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.parse.origin import Origin
from schemas.config.sink.sink import EventFilterRule
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.filter.row_conditions import (
    ExpressionMisfitError,
    ExpressionRangeError,
    RowConditions,
    TableConditions,
)
from sorters.core.mount import mount
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.random_rows import random_change, random_table

ALWAYS, NEVER = 10**9, 0
COMPARE = ["=", "<>", "<", "<=", ">", ">=", "<=>"]
NUMBERS = INTEGER_TYPES | {MysqlType.BIT, MysqlType.FLOAT, MysqlType.DOUBLE, MysqlType.DECIMAL}
NUMBER_TEXTS = [
    "0",
    "1",
    "-1",
    "127",
    "255",
    "-32768",
    "9223372036854775807",
    "-9223372036854775808",
    "1.5",
    "1e3",
    "null",
]
NUMBER_TEXTS += ["18446744073709551615", "18446744073709551616", "-0.25", "'12'"]
TEXTS = ["''", "'a'", "'abc'", "' '", "'日本'", "'x'", "null"]
TIMES = ["'2020-02-29'", "'1999-12-31 23:59:59.5'", "timestamp '2038-01-19 03:14:07'", "'0000-00-00'", "null"]
NUMBER_FORMS = ["abs({})", "({}) / 3", "ifnull({}, 2)", "case when {0} > 1 then {0} end", "({}) & 255", "floor({})"]
TEXT_FORMS = [
    *("char_length({}) > 2", "upper({}) = 'ABC'", "left({}, 1) = 'a'", "{} regexp '[a-c]'", "length({}) % 2 = 1"),
    *("concat({}, 'x') = 'ax'", "if({0} is null, 'a', {0}) = 'a'", "{} collate utf8mb4_bin = 'a'", "crc32({}) % 2 = 0"),
]
TIME_FORMS = ["year({}) > 2000", "date({}) = '2020-02-29'", "dayofweek({}) in (1, 7)", "datediff({}, '2020-01-01') > 0"]
TIME_FORMS += ["unix_timestamp({}) > 1577836800", "unix_timestamp({}) % 2 = 1"]
JSON_FORMS = [
    *("{} -> '$.id' > 0", "{} ->> '$.k[0]' = 'abc'", "{} -> '$.k[1].d' < 0.5", "{} -> '$.n' is null", "{} <> 'x'"),
    *("{} -> '$[1]' in (1, 'a')", "{} ->> '$' like '%a%'", 'length({} ->> \'$."d\\\\"q"\') > 1', "{} -> '$.a' = true"),
]
FORMED = 0.4
"""Share of tests that are of a function."""
RULES = ("insert", "update_new", "update_old", "delete")


def one_test(rng: random.Random, table: TableVersion) -> str:
    """Return a test of a column or two."""
    spec = rng.choice(table.columns)
    name = f"`{spec.name}`"
    if spec.tp in NUMBERS:
        operand = rng.choice([name, name, f"{name} + 1", f"{name} % 7", f"-{name}", f"({name} * 3 - 1)"])
        operand = rng.choice([operand, operand, *(form.format(operand) for form in NUMBER_FORMS)])
        other = rng.choice([*NUMBER_TEXTS, *(f"`{column.name}`" for column in table.columns if column.tp in NUMBERS)])
        return rng.choice(
            [f"{operand} {rng.choice(COMPARE)} {other}", f"{operand} in ({', '.join(rng.sample(NUMBER_TEXTS, 3))})"]
        )
    if spec.tp in STRING_TYPES or spec.tp is MysqlType.ENUM:
        pattern = rng.choice(["'%'", "'_'", "'a%'", "'%x'", "'__%'"])
        if rng.random() < FORMED:
            return rng.choice(TEXT_FORMS).format(name)
        return rng.choice([f"{name} {rng.choice(COMPARE)} {rng.choice(TEXTS)}", f"{name} like {pattern}"])
    if spec.tp in DATETIME_TYPES:
        if rng.random() < FORMED:
            return rng.choice(TIME_FORMS).format(name)
        return rng.choice(
            [f"{name} {rng.choice(COMPARE)} {rng.choice(TIMES)}", f"{name} between '2000-01-01' and '2030-01-01'"]
        )
    if spec.tp is MysqlType.JSON and rng.random() < FORMED * 2:
        return rng.choice(JSON_FORMS).format(name)
    return f"{name} is {rng.choice(['', 'not '])}null"


def expression(rng: random.Random, table: TableVersion) -> str:
    text = one_test(rng, table)
    for _ in range(rng.randint(0, 4)):
        text = rng.choice(
            [
                f"{text} {rng.choice(['and', 'or', 'xor'])} {one_test(rng, table)}",
                f"not ({text})",
                f"({text}) is {rng.choice(['null', 'true', 'not false'])}",
            ]
        )
    return text


def bound(rng: random.Random, table: TableVersion) -> TableConditions | None:
    """Return random expressions that fit the table; a part of them do not, by collation or type."""
    texts: Any = {f"ignore_{event}_value_expr": expression(rng, table) for event in RULES}
    rule = EventFilterRule(matcher=("*.*",), **texts)
    try:
        return RowConditions([rule], Origin()).bound(table)
    except ExpressionMisfitError:
        return None


def ignored(
    conditions: TableConditions, table: TableVersion, changes: list[CommittedChange], small_rows: int
) -> list[bool] | tuple[str, str]:
    """Return by row whether it is ignored, or the error's code and key."""
    ignored_rows = np.zeros(len(changes), np.bool_)
    try:
        for part in mount(table, row_changes(table.table_id, changes), small_rows=small_rows).parts:
            mask = conditions.ignored(part)
            ignored_rows[part.rows] = False if mask is None else mask
    except ExpressionRangeError as error:
        return error.code, str(error)
    return ignored_rows.tolist()


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 3, 40]))
def test_conditions_over_columns_equal_those_over_rows(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    for _ in range(4):
        conditions = bound(rng, table)
        if conditions is not None:
            by_rows = ignored(conditions, table, changes, ALWAYS)
            assert ignored(conditions, table, changes, NEVER) == by_rows
            break
