"""Rows of a table without a key: a batch leaves as many of each as its transactions did."""

import random
import re
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.statements import Statement, StatementSettings, statements
from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from schemas.ids import Ts
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import SqlRow, TableForm, decode_form, decode_rows, encode_form, encode_rows

FORM = TableForm(schema="d", table="t", version=Ts(1), columns=("a", "b"), key=())
Row = tuple[int, int]


def _upstream(rng: random.Random, table: dict[int, Row], count: int) -> list[SqlRow]:
    """Change rows, by TiDB's hidden row ids, in random transactions; return what a sorter sends of it, in its order."""
    rows: list[SqlRow] = []
    for txn in range(count):
        before, commit_ts = dict(table), 10 * txn + 12
        for _ in range(rng.randint(1, 4)):
            rowid = rng.randint(1, 5)
            if rowid in table and rng.random() < 0.4:
                del table[rowid]
            else:
                table[rowid] = rng.randint(0, 1), rng.randint(0, 1)
        sent: list[SqlRow] = []
        for rowid in sorted(before.keys() | table.keys()):
            old, new = before.get(rowid), table.get(rowid)
            if old is not None and old != new:
                condition = b"(`a`<=>%d AND `b`<=>%d)/*%d*/" % (*old, rowid)
                sent.append(SqlRow(commit_ts, 1, RowOp.DELETE, condition))
            if new is not None and old != new:
                sent.append(SqlRow(commit_ts, 1, RowOp.INSERT, b"/*%d*/" % rowid, b"(%d,%d)" % new))
        rows += sorted(sent, key=lambda row: row.op)
    return rows


def _batch(rng: random.Random, rows: list[SqlRow]) -> RowBatch:
    cuts = sorted({0, len(rows), *(rng.randint(0, len(rows)) for _ in range(rng.randint(0, 3)))})
    pieces = [
        RowSlice(FORM, decode_rows(encode_rows(FORM, rows[first:end])), 0, end - first, 0)
        for first, end in pairwise(cuts)
    ]
    return RowBatch(tuple(pieces))


def _run(statement: Statement, table: Counter[Row]) -> None:
    """What a server does with it."""
    sql = statement.sql.decode()
    if sql.startswith("DELETE"):
        match = re.fullmatch(r"DELETE FROM `d`\.`t` WHERE \(`a`<=>(\d) AND `b`<=>(\d)\)/\*\d\*/ LIMIT 1", sql)
        assert match, sql
        row = int(match[1]), int(match[2])
        assert table[row] > 0, "a row that is not there"
        table[row] -= 1
        return
    assert re.match(r"(INSERT|REPLACE) INTO `d`\.`t` \(`a`,`b`\) VALUES \(", sql), sql
    for a, b in re.findall(r"\((\d),(\d)\)", sql):
        table[int(a), int(b)] += 1


@given(st.integers(0, 2**64), st.booleans(), st.sampled_from([1, 2, 1000]))
def test_statements_of_a_batch_leave_as_many_of_each_row_as_upstream_has(
    seed: int, safe_mode: bool, rows_max: int
) -> None:
    rng = random.Random(seed)
    table: dict[int, Row] = {}
    _upstream(rng, table, rng.randint(0, 4))
    downstream = Counter(table.values())
    rows = _upstream(rng, table, rng.randint(1, 8))
    if not rows:
        return
    settings = StatementSettings(safe_mode=safe_mode, rows_max=rows_max)
    for statement in statements(_batch(rng, rows), settings):
        assert len(statement) <= rows_max
        _run(statement, downstream)
    assert +downstream == Counter(table.values())


def test_a_form_without_key_is_of_a_version_that_an_older_processor_refuses() -> None:
    assert encode_form(FORM).startswith(b"[5,")
    assert decode_form(encode_form(FORM)) == FORM
