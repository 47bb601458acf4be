"""Small TableInfos and DDL jobs in TiDB's JSON, for tests that need their own schema."""

from typing import Any

from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord

NOT_NULL, PRIMARY = 1, 2
PUBLIC = 5


def column(
    column_id: int,
    name: str,
    *,
    tp: int = 3,
    not_null: bool = False,
    flag: int = 0,
    state: int = PUBLIC,
    flen: int = 11,
    decimal: int = 0,
    charset: str = "binary",
    collation: str = "binary",
    elems: list[str] | None = None,
    origin_default: str | None = None,
    origin_default_bit: str | None = None,
) -> dict[str, Any]:
    """Return a ColumnInfo; by default a nullable INT."""
    return {
        "id": column_id,
        "name": {"O": name, "L": name.lower()},
        "offset": 0,
        "origin_default": origin_default,
        "origin_default_bit": origin_default_bit,
        "default": None,
        "generated_expr_string": "",
        "generated_stored": False,
        "type": {
            "Tp": tp,
            "Flag": flag | (NOT_NULL if not_null else 0),
            "Flen": flen,
            "Decimal": decimal,
            "Charset": charset,
            "Collate": collation,
            "Elems": elems,
        },
        "state": state,
        "comment": "",
    }


def index(
    index_id: int, name: str, offsets: list[int], *, unique: bool = False, primary: bool = False, state: int = PUBLIC
) -> dict[str, Any]:
    """Return an IndexInfo over whole columns."""
    return {
        "id": index_id,
        "idx_name": {"O": name, "L": name},
        "idx_cols": [{"name": {"O": f"c{offset}"}, "offset": offset, "length": -1} for offset in offsets],
        "is_unique": unique,
        "is_primary": primary,
        "state": state,
    }


def table_info(
    table_id: int,
    name: str,
    *,
    columns: list[dict[str, Any]] | None = None,
    indexes: list[dict[str, Any]] | None = None,
    pk_is_handle: bool = True,
    is_common_handle: bool = False,
) -> dict[str, Any]:
    """Return a TableInfo; by default ``(id INT PRIMARY KEY, v INT)``."""
    default = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v")]
    return {
        "id": table_id,
        "name": {"O": name, "L": name},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": default if columns is None else columns,
        "index_info": indexes,
        "state": PUBLIC,
        "pk_is_handle": pk_is_handle and not is_common_handle,
        "is_common_handle": is_common_handle,
        "update_timestamp": 1,
    }


def view_info(table_id: int, name: str, select: str, *columns: str, **fields: int) -> dict[str, Any]:
    """Return the TableInfo of a view, with TiDB's ``view_*`` fields: see job 178 of the recording."""
    named = [column(number, each, tp=0) for number, each in enumerate(columns or ("id",), 1)]
    user = {"Username": "root", "Hostname": "127.0.0.1", "CurrentUser": False, "AuthUsername": "root"}
    of_view = {"view_algorithm": 0, "view_definer": user, "view_security": 0, "view_checkoption": 1, "view_cols": None}
    return {
        **table_info(table_id, name, columns=named, pk_is_handle=False),
        "view": {**of_view, "view_select": select, **fields},
    }


def snapshot(*schemas: tuple[str, int, list[dict[str, Any]]], ts: int = 10) -> SchemaStore:
    """Return a store with a snapshot of ``(schema, schema_id, tables)`` at ``ts``."""
    store = SchemaStore.empty()
    for name, schema_id, tables in schemas:
        info = {"id": schema_id, "db_name": {"O": name, "L": name}}
        store.apply(DdlRecord(kind="schema", ts=Ts(ts), schema_id=schema_id, payload=info))
        for table in tables:
            store.apply(DdlRecord(kind="table", ts=Ts(ts), schema_id=schema_id, payload=table))
    store.apply(DdlRecord(kind="snapshot_end", ts=Ts(ts), payload={}))
    return store


def job(
    finished_ts: int,
    type_id: int,
    *,
    schema_id: int = 0,
    table_id: int = 0,
    schema: str = "d",
    query: str = "",
    table_info: dict[str, Any] | None = None,
    table_infos: list[dict[str, Any]] | None = None,
    db_info: dict[str, Any] | None = None,
    raw_args: Any = None,
) -> DdlRecord:
    """Return a done job; its id is its finished_ts."""
    payload = {
        "id": finished_ts,
        "type": type_id,
        "schema_id": schema_id,
        "table_id": table_id,
        "schema_name": schema,
        "table_name": "",
        "state": 4,
        "query": query,
        "raw_args": raw_args,
        "binlog": {
            "SchemaVersion": 1,
            "DBInfo": db_info,
            "TableInfo": table_info,
            "FinishedTS": 0,
            "MultipleTableInfos": table_infos,
        },
    }
    return DdlRecord(kind="job", ts=Ts(finished_ts), start_ts=Ts(finished_ts - 1), payload=payload)
