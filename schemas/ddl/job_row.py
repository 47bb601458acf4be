"""A row of ``mysql.tidb_ddl_job`` to the job's JSON in it."""

from typing import Any

from schemas.json_text import read_json
from schemas.tidb.info_json import JsonObject, ci_name, number_in, objects_in
from schemas.tidb.row_v1 import decode_row_v1
from schemas.tidb.row_v2 import decode_row_v2, is_row_v2


def job_in_row(value: bytes, table: JsonObject) -> Any:
    """Return the JSON of a row's job; ``table`` is the job table's TableInfo.

    Raises:
        KeyError, TypeError, ValueError, CorruptDataError: row or JSON do not decode.
    """
    columns = objects_in(table, "cols")
    ids = [number_in(column, "id") for column in columns if ci_name(column["name"]).lower() == "job_meta"]
    if not ids:
        raise ValueError("the job table has no column job_meta")
    column_id = ids[0]
    job_meta = decode_row_v2(value).get(column_id) if is_row_v2(value) else decode_row_v1(value).get(column_id)
    if not isinstance(job_meta, bytes):
        raise ValueError(f"row has no job_meta (column id {column_id})")
    return read_json(job_meta)
