"""Value expressions: what parses, what each table takes, and what rows they are true of.

Truths of integers and texts are held against SQLite, an implementation of its own; examples of student rows are those
of TiCDC's own tests (pingcap/tiflow ``pkg/filter/expr_filter_test.go``).
"""

import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.config.filter.expression_tokens import ExpressionTextError
from schemas.config.filter.value_expression import parse_expression
from schemas.config.parse.origin import ExpressionParseError
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from schemas.tidb.time_zone import load_zone
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.route_check import check_routes
from sorters.core.filter.row_conditions import ExpressionColumnNotFoundError, ExpressionMisfitError
from sorters.core.filter.value_expression.expression import bind
from sorters.core.filter.value_expression.parts import MisfitError, OutOfRangeError
from tests.support.control.changefeed_config import CANAL, refused
from tests.support.database.expression_cases import CASES, OF_TIDB
from tests.support.recorded.ddl_jobs import column, snapshot, table_info

TEXT: dict[str, Any] = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
COLUMNS = [
    column(1, "a"),
    column(2, "b"),
    column(3, "u", tp=8, flag=32),
    column(4, "s", **TEXT),
    column(5, "r", tp=5),
    column(6, "d", tp=246, flen=10, decimal=2),
    column(7, "t", tp=12, decimal=3),
    column(8, "day", tp=10),
    column(9, "e", tp=247, charset="utf8mb4", collation="utf8mb4_bin", elems=["new", "done"]),
    column(10, "ci", **{**TEXT, "collation": "utf8mb4_general_ci"}),
    column(11, "j", tp=245),
    column(12, "raw", tp=15),
    column(13, "g", **{**TEXT, "collation": "gbk_bin"}),
    column(14, "bits", tp=16, flen=8),
    column(15, "other_ci", **{**TEXT, "collation": "utf8mb4_unicode_ci"}),
    column(16, "dur", tp=11),
]


def table() -> TableVersion:
    placed = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    info = table_info(112, "t", columns=placed, pk_is_handle=False)
    return table_version(info, schema_id=1, schema="d", version=Ts(1))


TABLE = table()
OFFSET = {spec.name: spec.offset for spec in TABLE.columns}


def value_of(expression: str, **values: Any) -> Any:
    row: list[Any] = [None] * len(COLUMNS)
    for name, value in values.items():
        row[OFFSET[name]] = value
    return bind(parse_expression(expression), TABLE).of(row)


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("a >= 20 or s = 'female'", {"a": 20, "s": b"male"}, 1),
        ("a >= 20 or s = 'female'", {"a": 18, "s": b"male"}, 0),
        ("a >= 20 or s = 'female'", {"a": 3, "s": b"female"}, 1),
        ("a >= 32 and a < 48", {"a": 48}, 0),
        ("a >= 20 or s = 'x'", {"s": b"male"}, None),
        ("a is null and s is not null", {"s": b""}, 1),
        ("not a = 1", {"a": 2}, 1),
        ("!a = 1", {"a": 0}, 1),
        ("a xor b", {"a": 5, "b": 0}, 1),
        ("a xor b", {"a": 5}, None),
        ("a <=> null", {}, 1),
        ("a <=> b", {"a": 1}, 0),
        ("a is true", {"a": 7}, 1),
        ("a is not false", {}, 1),
        ("a in (1, null, 3)", {"a": 3}, 1),
        ("a in (1, null, 3)", {"a": 2}, None),
        ("a not in (1, 3)", {"a": 2}, 1),
        ("a between 1 and 3 and b = 1", {"a": 3, "b": 1}, 1),
        ("a not between 1 and 3", {"a": 4}, 1),
        ("a % 2 = 0", {"a": -4}, 1),
        ("a mod b is null", {"a": 4, "b": 0}, 1),
        ("a % 3 = -1", {"a": -4}, 1),
        ("a div 2 = -3", {"a": -7}, 1),
        ("-a * 2 + 1 = 5 - 10", {"a": 3}, 1),
        ("a", {"a": 1}, 1),
        # TiCDC ignores a row where the expression's integer is 1, not where it is any other number but 0
        ("a", {"a": 5}, 0),
        ("a = '20'", {"a": 20}, 1),
        ("u > 9223372036854775807", {"u": 1 << 63}, 1),
        ("u > a", {"u": 1 << 63, "a": -1}, 1),
        ("r = 1.5", {"r": 1.5}, 1),
        ("r > 1e2", {"r": 100.5}, 1),
        ("d = 1.10", {"d": "1.1"}, 1),
        ("d * 3 = 0.3", {"d": "0.10"}, 1),
        ("d = '0.10'", {"d": "0.1"}, 1),
        ("s = 'x '", {"s": b"x"}, 1),
        ("raw = 'x '", {"raw": b"x"}, 0),
        ("s < 'b'", {"s": b"B"}, 1),
        ("s like 'a_c%'", {"s": "aéc and more".encode()}, 1),
        ("s like 'a\\%'", {"s": b"a%"}, 1),
        ("s like 'a\\%'", {"s": b"ab"}, 0),
        ("s like 'a|%' escape '|'", {"s": b"a%"}, 1),
        ("s not like '%\n%'", {"s": b"x\ny"}, 0),
        ("s = 'it''s' 'so'", {"s": b"it'sso"}, 1),
        ("t >= '2024-02-29'", {"t": "2024-02-29 00:00:00.000"}, 1),
        ("t < '2024-02-29 10:00:00.5'", {"t": "2024-02-29 10:00:00.499"}, 1),
        ("t = timestamp '2024-02-29 10:00:00'", {"t": "2024-02-29 10:00:00.000"}, 1),
        ("day = date '2024-02-29'", {"day": "2024-02-29"}, 1),
        ("t > day", {"t": "2024-02-29 00:00:00.001", "day": "2024-02-29"}, 1),
        ("e = 'done'", {"e": 2}, 1),
        ("e in ('new', 'done')", {"e": 0}, 0),
        ("j is null", {}, 1),
        ("ci is not null", {"ci": b""}, 1),
        ("g = 'x'", {"g": b"x"}, 1),
        ("`a` = 1 && B = 2 || false", {"a": 1, "b": 2}, 1),
        ("null", {}, None),
        ("true", {}, 1),
    ],
)
def test_bind_value_of_a_row_is_as_in_tidb(expression: str, values: dict[str, Any], expected: int | None) -> None:
    assert value_of(expression, **values) == expected


@pytest.mark.parametrize(("expression", "values", "expected"), CASES + OF_TIDB)
def test_bind_functions_casts_and_operators_are_as_in_tidb(
    expression: str, values: dict[str, Any], expected: int | None
) -> None:
    assert value_of(expression, **values) == expected


@pytest.mark.parametrize(
    ("zone", "time", "seconds"),
    [
        ("UTC", "2024-02-29 10:20:30.500", "1709202030.5"),
        ("Asia/Shanghai", "2024-02-29 10:20:30.500", "1709173230.5"),
        ("Europe/Berlin", "2024-03-31 01:59:59.999", "1711846799.999"),
        # the clock jumps from 2 to 3: each time between is that moment
        ("Europe/Berlin", "2024-03-31 02:00:00.000", "1711846800"),
        ("Europe/Berlin", "2024-03-31 02:59:59.900", "1711846800"),
        ("America/New_York", "2024-03-10 02:30:00.000", "1710054000"),
        # it comes back from 3 to 2: each time between is the first
        ("Europe/Berlin", "2024-10-27 02:30:00.000", "1729989000"),
        ("Europe/Berlin", "2024-10-27 03:00:00.000", "1729994400"),
        ("UTC", "1970-01-01 00:00:00.999", "0"),
        ("UTC", "1970-01-01 00:00:01.000", "1"),
        ("UTC", "3001-01-18 23:59:59.999", "32536771199.999"),
        ("UTC", "3001-01-19 00:00:00.000", "0"),
        ("UTC", "2024-02-00 00:00:00.000", "0"),
    ],
)
def test_bind_unix_timestamp_reads_times_in_the_zone_of_the_session(zone: str, time: str, seconds: str) -> None:
    row: list[Any] = [None] * len(COLUMNS)
    row[OFFSET["t"]] = time
    node = parse_expression(f"unix_timestamp(t) = {seconds}")
    assert bind(node, TABLE, session_zone=load_zone(zone)).of(row) == 1


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("a >= 32 and and a < 48", "unexpected `and` at character 13"),
        ("a =", "the expression ends too early at character 4"),
        ("error(a) > 20", "function ERROR is not supported at character 1"),
        ("a > now()", "function NOW is not supported: a repeated row would see another value at character 5"),
        ("unix_timestamp() > 1", "function UNIX_TIMESTAMP takes another number of arguments than 0 at character 1"),
        ("left(s) = 'x'", "function LEFT takes another number of arguments than 1 at character 1"),
        ("d.t.a = 1", "write column names without their schema, `d.` at character 1"),
        ("cast(a as json) = 1", "CAST as json is not supported so at character 11"),
        ("cast(a as decimal(3, 4)) = 1", "there is no DECIMAL(3, 4) at character 11"),
        ("(j) -> '$.a' = 1", "operator -> is not supported at character 5"),
        ("j -> s = 1", "unexpected `s` at character 6"),
        ("@a = 1", "operator @ is not supported at character 1"),
        ("case a end", "unexpected `end`, wanted WHEN at character 8"),
        ("a in (select 1)", "SELECT is not supported at character 7"),
        ("(a, b) = (1, 2)", "rows of values are not supported at character 1"),
        ("s = 'x", "the string has no closing ' at character 5"),
        ("a = 0X1f", "the hexadecimal or bit literal is none at character 5"),
        ("a = x'1'", "the hexadecimal or bit literal is none at character 5"),
        ("date_add(t, 1) = t", "unexpected `1`, wanted INTERVAL at character 13"),
        ("date_add(t, interval '1:1' hour_minute) = t", "INTERVAL in `hour_minute` is not supported at character 28"),
        ("t + interval 1 hour_minute = t", "INTERVAL in `hour_minute` is not supported at character 16"),
        ("t + interval 1", "the expression ends too early at character 15"),
        ("t * interval 1 day = t", "INTERVAL is not supported at character 5"),
        ("a = 1 b", "unexpected `b` at character 7"),
        ("(" * 70 + "a", "more than 20 levels at character 22"),
        ("a = 1" + " or a = 2" * 100, "more than 200 operators; IN takes a list of any length at character 903"),
        ("a is 5", "unexpected `5` at character 6"),
        (f"cast(s as char({'9' * 5000})) = 'x'", f"unexpected `{'9' * 288}… (5013 characters) at character 16"),
    ],
)
def test_parse_expression_what_is_left_out_is_refused_by_name_and_place(expression: str, said: str) -> None:
    with pytest.raises(ExpressionTextError) as caught:
        parse_expression(expression)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("other_ci = 'x'", "column `other_ci` has collation utf8mb4_unicode_ci"),
        ("instr(ci, 'x') = 1", "INSTR of a text under collation utf8mb4_general_ci is not supported"),
        ("date_add(t, interval '1' day) = t", "INTERVAL takes an integer, and text '1' is a text at character 22"),
        ("unix_timestamp(a) = 1", "UNIX_TIMESTAMP takes a time, and column `a` is an integer at character 16"),
        ("unix_timestamp(date(t)) = 1", "UNIX_TIMESTAMP takes a column or a time that is written down at character 16"),
        ("a + interval 1 day = t", "DATE_ADD takes a time, and column `a` is an integer at character 1"),
        ("date_format(t, s) = '1'", "DATE_FORMAT takes a format that is written down at character 16"),
        ("date_format(t, '%u') = '1'", "%u of DATE_FORMAT is not supported at character 16"),
        ("hex(0x1f) = '1F'", "HEX of literal x'1f', which is an integer, is not supported"),
        ("ci regexp 'x'", "REGEXP of a text under collation utf8mb4_general_ci is not supported"),
        ("ci = s", "texts of two collations, utf8mb4_bin and utf8mb4_general_ci"),
        ("dur = 'x'", "column `dur` is of a type that conditions cannot compare"),
        ("j = j", "two JSON values do not compare here at character 5"),
        ("j -> '$.a' = t", "column `t` is a time: it compares with no JSON at character 14"),
        ("j -> '$.a' = 0x01", "literal x'01' is an integer: it compares with no JSON"),
        ("j -> '$.a' = 0x616161616161616161", "literal x'616161616161616161' is a text: it compares with no JSON"),
        ("j -> '$.a' = raw", "column `raw` is a text: it compares with no JSON"),
        ("j -> '$.a[*]' = 1", "path `$.a[*]` is not supported; supported are `$`"),
        ("j -> 'a' = 1", "path `a` is not supported"),
        ("json_extract(j, s) = 1", "JSON_EXTRACT takes a path that is written down at character 17"),
        ("s ->> '$.a' = 'x'", "JSON_EXTRACT takes JSON, and column `s` is a text at character 1"),
        ("json_unquote(s) = 'x'", "JSON_UNQUOTE takes JSON, and column `s` is a text"),
        ("'x' in (j -> '$.a')", "IN of a text takes no JSON at character 11"),
        ("j ->> '$.a' = 1", "an operand is a text and an operand an integer"),
        ("j -> '$.a'", "the expression is no condition but JSON"),
        ("s = 1", "column `s` is a text and an operand an integer"),
        ("a = 'x'", "'x' is no number, and column `a` is an integer at character 5"),
        ("t = '29.2.2024'", "is no time as"),
        ("t = 20240229", "column `t` is a time"),
        ("s", "is no condition but a text"),
        ("not s", "is no condition but a text"),
        ("s + 1 = 2", "`+` of column `s`"),
        ("g < 'x'", "`<` under collation gbk_bin is not supported"),
        ("s = raw", "texts of two collations, binary and utf8mb4_bin"),
        ("r div 2 = 1", "`DIV` of other numbers than integers"),
        ("a like '1%'", "LIKE of column `a`, which is an integer"),
        ("s like s", "LIKE takes a pattern that is written down"),
        ("d", "the expression is no condition but a decimal"),
        ("other.a = 1", "column `other.a` is of another table"),
        ("if(a, s, 1) = 'x'", "results of a text and an integer have no common type here"),
        ("s collate utf8mb4_unicode_ci = 'x'", "has collation utf8mb4_unicode_ci; supported are"),
        ("raw collate utf8mb4_bin = 'x'", "COLLATE utf8mb4_bin of a text in character set binary"),
        ("concat(s, raw) = 'x'", "CONCAT of texts of two collations, binary and utf8mb4_bin"),
        ("length(g) = 1", "LENGTH of a text under collation gbk_bin is not supported"),
        ("lower(a) = '1'", "LOWER of column `a`, which is an integer, is not supported"),
        ("s regexp s", "REGEXP takes a pattern that is written down"),
        ("s regexp '('", "is illegal"),
        ("a | d = 1", "`|` of column `d`, which is a decimal, is not supported"),
        ("s / 2 = 1", "`/` of column `s`"),
        ("cast(s as signed) = 1", "a cast of column `s`, which is a text, to SIGNED is not supported"),
        ("concat(bits, 'x') = '1x'", "CONCAT of column `bits`, which is an integer, is not supported"),
        ("hex(bits) = '1'", "HEX of column `bits`, which is an integer, is not supported"),
        ("cast(bits as char) = '1'", "a cast of column `bits`, which is an integer, to CHAR is not supported"),
        ("year(a) = 1", "YEAR takes a time, and column `a` is an integer"),
    ],
)
def test_bind_what_tidb_would_convert_is_refused_by_name(expression: str, said: str) -> None:
    with pytest.raises(MisfitError, match="at character") as caught:
        bind(parse_expression(expression), TABLE)
    assert said in str(caught.value)


def test_bind_unknown_column_is_named() -> None:
    with pytest.raises(MisfitError) as caught:
        bind(parse_expression("a >= 20 or s = 'female' and mather = 'a'"), TABLE)
    assert caught.value.column == "mather"


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("u - 2 > 0", {"u": 1}),
        ("a * 9223372036854775807 > 0", {"a": 2}),
        ("r * 1e308 > 0", {"r": 100.0}),
    ],
)
def test_bind_arithmetic_out_of_range_is_an_error(expression: str, values: dict[str, Any]) -> None:
    with pytest.raises(OutOfRangeError):
        value_of(expression, **values)
    assert value_of(f"false and {expression}", **values) == 0


INTEGERS = st.sampled_from(["a", "b", "0", "1", "2", "-3", "null"])
TEXTS = st.sampled_from(["s", "'x'", "'y'", "'xy'", "''", "null"])


def conditions() -> st.SearchStrategy[str]:
    number = st.recursive(
        INTEGERS,
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "%"]), inner),
        max_leaves=4,
    )
    compare = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    leaf = st.one_of(
        st.builds("{} {} {}".format, number, compare, number),
        st.builds("{} {} {}".format, TEXTS, compare, TEXTS),
        st.builds("{} between {} and {}".format, number, number, number),
        st.builds("{} not in ({}, {})".format, number, number, number),
        st.builds("{} in ({}, {})".format, TEXTS, TEXTS, TEXTS),
        st.builds("s like {}".format, st.sampled_from(["'x%'", "'_'", "'%y'", "'x_'"])),
        st.builds("{} is null".format, number),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
            st.builds("({})".format, inner),
            st.builds("(not ({}))".format, inner),
            st.builds("({}) is not null".format, inner),
            st.builds("({}) is true".format, inner),
        ),
        max_leaves=6,
    )


@settings(max_examples=300, deadline=None)
@given(
    condition=conditions(),
    a=st.none() | st.integers(-3, 3),
    b=st.none() | st.integers(-3, 3),
    s=st.none() | st.sampled_from(["x", "y", "xy", "X", ""]),
)
def test_bind_condition_over_integers_and_texts_equals_sqlite(
    condition: str, a: int | None, b: int | None, s: str | None
) -> None:
    with sqlite3.connect(":memory:") as database:
        database.execute("pragma case_sensitive_like = on")
        query = f"select {condition} from (select ? as a, ? as b, ? as s)"  # our own text
        (expected,) = database.execute(query, (a, b, s)).fetchone()
    database.close()
    assert value_of(condition, a=a, b=b, s=None if s is None else s.encode()) == expected


def test_load_changefeed_expression_that_does_not_parse_is_refused_with_key_and_place() -> None:
    text = "[[filter.event-filters]]\nmatcher = ['a.*']\nignore-delete-value-expr = 'a >'"
    error = refused(CANAL, text, ExpressionParseError)
    assert error.code == "config.expression_parse_failed"
    assert error.fields["key"] == "filter.event-filters[0].ignore-delete-value-expr"
    assert error.message == "ignore-delete-value-expr `a >`: the expression ends too early at character 4"


@pytest.mark.parametrize("expression", [f"a = '{'x' * 5000}' 7", f"a {'y' * 5000}", f"{'z' * 5000}(a)"])
def test_load_changefeed_long_expression_is_quoted_by_its_beginning(expression: str) -> None:
    text = f'[[filter.event-filters]]\nmatcher = ["a.*"]\nignore-delete-value-expr = "{expression}"'
    error = refused(CANAL, text, ExpressionParseError)
    assert error.message.startswith(f"ignore-delete-value-expr `{expression[:200]}… (")
    assert " at character " in error.message and len(error.message) < 800


@pytest.mark.parametrize(
    ("expression", "kind"), [("nope = 1", ExpressionColumnNotFoundError), ("other_ci = 'x'", ExpressionMisfitError)]
)
def test_check_routes_expression_that_does_not_fit_a_table_names_it(expression: str, kind: type[Exception]) -> None:
    placed = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    schemas = snapshot(("d", 1, [table_info(TableId(112), "t", columns=placed, pk_is_handle=False)]))
    config = {
        "force-replicate": True,
        "filter": {"event-filters": [{"matcher": ["d.*"], "ignore-update-old-value-expr": expression}]},
    }
    with pytest.raises(
        kind, match=r"table=d\.t, version=10, key=filter.event-filters\[0\].ignore-update-old-value-expr"
    ):
        check_routes(schemas, Ts(10), compile_feed(load_changefeed(CANAL, config), "default"))
