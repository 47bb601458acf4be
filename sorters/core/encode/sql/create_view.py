"""CREATE VIEW from a TableInfo, as the stream writes it: TiDB's own form of the statement.

The text is read in NO_BACKSLASH_ESCAPES. DEFINER is CURRENT_USER, as in a statement that names none: a TableInfo has
the user who made the view, named or not, whom the destination may not know. A LOCAL CHECK OPTION is told; a cascaded
one is what TiDB stores of a statement without any.

Source: pingcap/tidb ``pkg/parser/ast/ddl.go``, ``CreateViewStmt.Restore``; ``pkg/parser/ast/model.go``, ``ViewInfo``.
"""

from typing import Final

from schemas.ddl.schema_change import StoredTable
from schemas.errors import CorruptDataError
from schemas.tidb.info_json import JsonObject, ci_name, number_in, text_in
from sorters.core.sql.statement import check_statement, plain_statement
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError, quote_name

_ALGORITHMS: Final = ("UNDEFINED", "MERGE", "TEMPTABLE")
_SECURITY: Final = ("DEFINER", "INVOKER")
_CHECK_OPTIONS: Final = (" WITH LOCAL CHECK OPTION", "")


def create_view(stored: StoredTable) -> str:
    """Return the statement that makes a view as a TableInfo has it; one that is there refuses it.

    Raises:
        CorruptDataError: the TableInfo does not decode.
        UnsupportedSqlError: what TiDB stored of it is not one statement that every server reads alike.
    """
    info = stored.info()
    try:
        view = info["view"]
        columns = ",".join(quote_name(ci_name(column["name"])) for column in info.get("cols") or [])
        algorithm, security = _ALGORITHMS[int(view["view_algorithm"])], _SECURITY[int(view["view_security"])]
        body = view_body(view)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            "table info does not make a view",
            table_id=stored.table_id,
            table=f"{stored.schema}.{stored.table}",
            reason=repr(error),
        ) from error
    if not body:
        raise UnsupportedSqlError("a view without a select")
    name = f"{quote_name(stored.schema)}.{quote_name(stored.table)}" + (f" ({columns})" if columns else "")
    head = f"CREATE ALGORITHM = {algorithm} DEFINER = CURRENT_USER SQL SECURITY {security} VIEW {name}"
    text = plain_statement(f"{head} AS {body}", MODE_NO_BACKSLASH_ESCAPES)
    check_statement(text)
    return text


def view_body(view: JsonObject) -> str:
    """Return what stands behind AS, as TiDB stored it: each table in it has its schema. '': nobody knows.

    Raises:
        KeyError, IndexError, TypeError, ValueError: it is not as TiDB stores it.
    """
    selected = text_in(view, "view_select")
    return selected and selected + _CHECK_OPTIONS[number_in(view, "view_checkoption")]
