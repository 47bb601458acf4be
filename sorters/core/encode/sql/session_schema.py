"""Statements whose names without a schema are of the upstream session's, which need not be the table's.

Who runs a DDL says USE with the schema of its table. A user may have said it from another one: ``USE d; CREATE TABLE
e.b LIKE a`` is about ``d.a``. Only a statement's first table, and what TiDB takes to be in its schema (REFERENCES), is
where that USE says. So the others are written with the schema that the job knows them by. If the first table itself is
written without one, the session's schema is the table's.
"""

import re

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.errors import CorruptDataError
from sorters.core.encode.sql.create_view import view_body
from sorters.core.sql.ddl_event import DdlEvent, rename_query
from sorters.core.sql.statement import plain_statement
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, SqlToken, TokenKind, lexemes, quote_name

_NAME = r"`(?:[^`]|``)+`"
_LIKE = re.compile(rf"(CREATE TABLE (?:IF NOT EXISTS )?{_NAME}\.{_NAME} LIKE )({_NAME})")
"""As it is restored; a table of which it is the schema that the session tells."""
_RENAME = re.compile(rf"RENAME TABLE {_NAME} TO {_NAME}")
"""As it is restored; it stays in the session's schema."""
_DOT = SqlToken(TokenKind.SYMBOL, ".")


def with_schemas(event: DdlEvent) -> str | None:
    """Return the statement of a DDL with the schemas that its text leaves to the session; None: it leaves none.

    It is to be read in NO_BACKSLASH_ESCAPES.

    Raises:
        UnsupportedSqlError: its text cannot be read.
        CorruptDataError: the TableInfo does not decode.
    """
    if event.post is None:
        return None
    match event.type:
        case DdlType.RENAME_TABLE if event.pre is not None:
            return _rename(event, event.pre, event.post)
        case DdlType.CREATE_TABLE:
            return _like(event)
        case DdlType.CREATE_VIEW if not event.is_routed:
            return _view(event)
    return None


def _rename(event: DdlEvent, pre: StoredTable, post: StoredTable) -> str | None:
    if event.restored and pre.schema == post.schema and _RENAME.fullmatch(event.query):
        return None
    # The job is of nothing else, whatever else ALTER TABLE says (ALGORITHM, LOCK): TiDB takes no more with it.
    return rename_query(pre, post)


def _like(event: DdlEvent) -> str | None:
    assert event.post is not None
    match = _LIKE.fullmatch(event.query) if event.restored else None
    if match is None:
        return None
    name = match[2].lower()
    schemas = {schema for schema, table in event.referred if quote_name(table).lower() == name}
    # An older TiDB does not say which one it is like: mostly one of its own schema, as USE says. TiDB notes names in
    # lower case, and a destination may tell cases apart.
    if len(schemas) != 1 or event.schema.lower() in schemas:
        return None
    return f"{match[1]}{quote_name(schemas.pop())}.{match[2]}"


def _view(event: DdlEvent) -> str | None:
    assert event.post is not None
    end, ends, tokens = 0, list[int](), list[SqlToken]()
    for lexeme in lexemes(event.original_query, event.sql_mode):
        end += len(lexeme.text)
        if lexeme.token is not None:
            tokens.append(lexeme.token)
            ends.append(end)
    words = [token.upper for token in tokens]
    name = words.index("VIEW") + 1 if "VIEW" in words else len(words)
    if tokens[name + 1 : name + 2] != [_DOT] or "AS" not in words[name:]:
        return None
    try:
        body = view_body(event.post.info().get("view") or {})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptDataError(
            "table info does not make a view", table=f"{event.schema}.{event.table}", reason=repr(error)
        ) from error
    if not body:
        return None
    head = event.original_query[: ends[words.index("AS", name)]]
    return f"{plain_statement(head, event.sql_mode)} {plain_statement(body, MODE_NO_BACKSLASH_ESCAPES)}"
