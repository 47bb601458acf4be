"""Statements of a batch do to a table what its rows did one by one: held against SQLite-like tables in memory."""

import random
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.statements import Statement, StatementSettings, statements
from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from schemas.ids import Ts
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import SqlRow, TableForm, decode_rows, encode_rows

FORM = TableForm(schema="d", table="t", version=Ts(1), columns=("id", "u", "v"), key=("id",))
_ROW = re.compile(rb"\((\d+),(\d+),(\d+)\)")
Table = dict[int, tuple[int, int]]
"""id to (u, v); u is unique."""


class DuplicateKeyError(Exception):
    """A plain INSERT met a row."""


def _upstream(rng: random.Random, table: Table, count: int) -> list[SqlRow]:
    """Change ``table`` by random transactions that keep ``u`` unique; return the rows as a sorter sends them."""
    rows: list[SqlRow] = []
    for txn in range(count):
        before, commit_ts = dict(table), 10 * txn + 12
        for _ in range(rng.randint(1, 3)):
            key = rng.randint(1, 4)
            if key in table and rng.random() < 0.4:
                del table[key]
            else:
                free = {1, 2, 3, 4, 5} - {u for other, (u, _) in table.items() if other != key}
                table[key] = rng.choice(sorted(free)), rng.randint(0, 9)
        sent: list[SqlRow] = []
        for key in sorted(before.keys() | table.keys()):
            old, new = before.get(key), table.get(key)
            if old == new:
                continue
            if old is not None and (new is None or new[0] != old[0]):
                sent.append(SqlRow(commit_ts, 1, RowOp.DELETE, b"%d" % key))
            if new is not None:
                op = RowOp.UPDATE if old is not None and new[0] == old[0] else RowOp.INSERT
                sent.append(SqlRow(commit_ts, 1, op, b"%d" % key, b"(%d,%d,%d)" % (key, *new)))
        rows += sorted(sent, key=lambda row: (row.op, row.key))
    return rows


def _batch(rng: random.Random, form: TableForm, rows: list[SqlRow]) -> RowBatch:
    """Divide rows into pieces of messages, anywhere."""
    cuts = sorted({0, len(rows), *(rng.randint(0, len(rows)) for _ in range(rng.randint(0, 3)))})
    pieces: list[RowSlice] = []
    for first, end in pairwise(cuts):
        around = rows[max(0, first - 1) : end + 1]  # a piece need not be its whole message
        skipped = first - max(0, first - 1)
        message = decode_rows(encode_rows(form, around))
        pieces.append(RowSlice(form, message, skipped, skipped + end - first, 0))
    return RowBatch(tuple(pieces))


def _run(statement: Statement, table: Table) -> None:
    """What a server does with it."""
    sql = statement.sql
    if sql.startswith(b"DELETE"):
        assert sql.startswith(b"DELETE FROM `d`.`t` WHERE `id` IN (")
        for key in re.findall(rb"\d+", sql.partition(b" IN (")[2]):
            table.pop(int(key), None)
        return
    for values in _ROW.findall(sql):
        key, u, v = (int(part) for part in values)
        others = [other for other, (held, _) in table.items() if held == u and other != key]
        if sql.startswith(b"REPLACE"):
            for other in others:
                del table[other]
        elif b"ON DUPLICATE KEY UPDATE" in sql:
            assert not others, "would change another row"
        elif others or key in table:
            raise DuplicateKeyError(values)
        table[key] = u, v


@given(st.integers(0, 2**64), st.booleans(), st.sampled_from([1, 2, 1000]))
def test_statements_of_a_batch_bring_the_table_where_upstream_is(seed: int, safe_mode: bool, rows_max: int) -> None:
    rng = random.Random(seed)
    table: Table = {}
    _upstream(rng, table, rng.randint(0, 4))
    downstream = dict(table)
    rows = _upstream(rng, table, rng.randint(1, 8))
    settings = StatementSettings(safe_mode=safe_mode, rows_max=rows_max)
    for statement in statements(_batch(rng, FORM, rows), settings):
        assert len(statement) <= rows_max
        _run(statement, downstream)
    assert downstream == table


@given(st.integers(0, 2**64))
def test_statements_in_safe_mode_bring_the_table_there_also_when_some_of_the_batch_is_there(seed: int) -> None:
    rng = random.Random(seed)
    table: Table = {}
    rows = _upstream(rng, table, rng.randint(1, 8))
    downstream: Table = {}
    settings = StatementSettings(safe_mode=True)
    done = rng.randint(0, len(rows))
    for some in (rows[:done], rows):
        # Whole transactions, as batches are.
        ends = {row.commit_ts for row in some}
        for statement in statements(_batch(rng, FORM, [row for row in rows if row.commit_ts in ends]), settings):
            _run(statement, downstream)
    assert downstream == table


@given(st.integers(0, 2**64), st.sampled_from([1, 2, 1000]))
def test_statements_bring_the_table_there_when_rows_up_to_a_ts_were_there_before_it_began(
    seed: int, rows_max: int
) -> None:
    """Whoever wrote before stopped at any transaction, and batches end anywhere between transactions."""
    rng = random.Random(seed)
    table: Table = {}
    _upstream(rng, table, rng.randint(0, 4))
    downstream = dict(table)
    rows = _upstream(rng, table, rng.randint(1, 8))
    commits = sorted({row.commit_ts for row in rows})
    safe_until_ts = rng.choice([11, *commits])
    for statement in statements(_batch(rng, FORM, _upto(rows, 0, safe_until_ts)), StatementSettings()):
        _run(statement, downstream)
    settings, after_ts = StatementSettings(safe_until_ts=safe_until_ts, rows_max=rows_max), 0
    for upto_ts in [*sorted(rng.sample(commits, rng.randint(0, len(commits)))), 1000]:
        for statement in statements(_batch(rng, FORM, _upto(rows, after_ts, upto_ts)), settings):
            _run(statement, downstream)
        after_ts = upto_ts
    assert downstream == table


def _upto(rows: list[SqlRow], after_ts: int, upto_ts: int) -> list[SqlRow]:
    return [row for row in rows if after_ts < row.commit_ts <= upto_ts]


def test_statements_stay_strict_above_the_ts_up_to_which_rows_may_be_there() -> None:
    row = SqlRow(13, 1, RowOp.INSERT, b"1", b"(1,1,1)")
    made = [
        [statement.sql[:7] for statement in statements(_batch(random.Random(1), FORM, [row]), settings)]
        for settings in (StatementSettings(safe_until_ts=12), StatementSettings(safe_until_ts=13))
    ]
    assert made == [[b"INSERT "], [b"REPLACE"]]


def _stale(rng: random.Random) -> Table:
    """What a destination may have before an image: any rows that keep ``u`` unique."""
    keys, values = rng.sample(range(1, 5), rng.randint(0, 4)), rng.sample(range(1, 6), 5)
    return {key: (values[at], rng.randint(10, 19)) for at, key in enumerate(keys)}


@given(st.integers(0, 2**64), st.booleans(), st.sampled_from([1, 2, 1000]))
def test_statements_write_an_image_over_whatever_there_is_and_changes_behind_it(
    seed: int, safe_mode: bool, rows_max: int
) -> None:
    """The image's rows win over all that stood there, also over rows that hold their unique values; changes after it
    win over it. Rows that it lacks stay, unless they are in the way of one that it has.
    """
    rng = random.Random(seed)
    table: Table = {}
    _upstream(rng, table, rng.randint(0, 6))
    image = [SqlRow(11, 11, RowOp.UPDATE, b"%d" % key, b"(%d,%d,%d)" % (key, *table[key])) for key in sorted(table)]
    downstream, imaged = _stale(rng), set(table)
    if not imaged:
        downstream = {}
    changes = _upstream(rng, table, rng.randint(0, 6)) if downstream.keys() <= imaged else []
    settings = StatementSettings(safe_mode=safe_mode, rows_max=rows_max)
    for statement in statements(_batch(rng, FORM, [*image, *changes]), settings):
        _run(statement, downstream)
    held = {u for u, _ in table.values()}
    assert {key: row for key, row in downstream.items() if key in table} == table
    assert all(row[0] not in held for key, row in downstream.items() if key not in table)
    assert downstream.keys() - table.keys() <= set(range(1, 5)) - imaged


def test_statements_name_several_key_columns_in_conditions() -> None:
    form = TableForm(schema="d`1", table="t", version=Ts(1), columns=("a", "b`"), key=("a", "b`"))
    rows: list[SqlRow] = [
        SqlRow(2, 1, RowOp.DELETE, b"(`a`=1 AND `b```='x')"),
        SqlRow(2, 1, RowOp.DELETE, b"(`a`=2 AND `b```='y')"),
        SqlRow(2, 1, RowOp.UPDATE, b"(`a`=3 AND `b```='z')", b"(3,'z')"),
    ]
    sql = [statement.sql for statement in statements(_batch(random.Random(1), form, rows), StatementSettings())]
    assert sql == [
        b"DELETE FROM `d``1`.`t` WHERE (`a`=1 AND `b```='x') OR (`a`=2 AND `b```='y')",
        (
            b"INSERT INTO `d``1`.`t` (`a`,`b```) VALUES (3,'z') "
            b"ON DUPLICATE KEY UPDATE `a`=VALUES(`a`),`b```=VALUES(`b```)"
        ),
    ]


def test_statements_end_before_they_grow_too_long() -> None:
    rows: list[SqlRow] = [
        SqlRow(n + 2, 1, RowOp.INSERT, b"%d" % n, b"(%d,'%s')" % (n, b"x" * 300_000)) for n in range(7)
    ]
    made = list(statements(_batch(random.Random(1), FORM, rows), StatementSettings()))
    assert [len(statement) for statement in made] == [3, 3, 1]
