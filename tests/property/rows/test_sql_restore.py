"""Restoring SQL never breaks on any text: it gives a statement, or says that it does not know it."""

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.sql.restore import restore
from sorters.core.sql.tokens import SqlToken, TokenKind, UnsupportedSqlError, quote_name, quote_string, tokenize
from tests.support.recorded.recording import oracle

STATEMENTS = [event["query"] for line in oracle("ddl_events") for event in line.get("events", [])]
PIECES = sorted({token.text for sql in STATEMENTS for token in tokenize(sql)})
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@given(st.text(max_size=60), st.integers(0, (1 << 21) - 1))
def test_restore_any_text_restores_or_is_unsupported(text: str, sql_mode: int) -> None:
    for sql in (text, f"create table t (a int {text})", f"alter table t add column a int default {text}"):
        try:
            restore(sql, sql_mode=sql_mode)
        except UnsupportedSqlError:
            continue


@given(st.sampled_from(STATEMENTS), st.data())
def test_restore_statement_with_a_piece_put_in_or_left_out_restores_or_is_unsupported(
    sql: str, data: st.DataObject
) -> None:
    words = sql.split(" ")
    index = data.draw(st.integers(0, len(words) - 1))
    words[index : index + data.draw(st.integers(0, 1))] = data.draw(st.lists(st.sampled_from(PIECES), max_size=2))
    try:
        restore(" ".join(words))
    except UnsupportedSqlError:
        return


@given(st.sampled_from(["(", "-", "NOT ", "lower(", "a->"]), st.integers(1, 5000))
def test_restore_of_deep_nesting_restores_or_is_unsupported(opening: str, depth: int) -> None:
    closing = ")" * depth if opening.endswith("(") else ""
    try:
        restore(f"create table t (a int, b int as ({opening * depth}1{closing}))")
    except UnsupportedSqlError:
        return


@given(NAMES, NAMES, st.text(max_size=12))
def test_restore_any_names_and_strings_survive_quoting(schema: str, table: str, comment: str) -> None:
    written = (
        f"alter table {quote_name(schema)}.{quote_name(table)} comment {quote_string(comment.replace(chr(92), ''))}"
    )
    restored = restore(written)
    assert tokenize(restored)[2] == SqlToken(TokenKind.NAME, schema)
    assert tokenize(restored)[4] == SqlToken(TokenKind.NAME, table)
    assert tokenize(restored)[-1] == SqlToken(TokenKind.STRING, comment.replace(chr(92), ""))
    assert restore(restored) == restored
