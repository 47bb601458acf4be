"""The recording's DDL jobs as records of the ddl topic, for tests that need a schema store."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from schemas.ddl.job import DDL_JOB_TABLE_ID, decode_ddl_job_row
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from tests.support.recorded.recording import CommittedChange, row_table_id


def job_table_info(changes: Iterable[CommittedChange]) -> dict[str, Any]:
    """Return the TableInfo of ``mysql.tidb_ddl_job`` from its meta key."""
    for change in changes:
        if change.key[:1] == b"m" and change.op == "put" and change.value[:1] == b"{":
            info: dict[str, Any] = json.loads(change.value)
            if info.get("id") == DDL_JOB_TABLE_ID and "cols" in info:
                return info
    raise LookupError("the recording has no TableInfo of mysql.tidb_ddl_job")


def ddl_records(changes: Iterable[CommittedChange]) -> Iterator[DdlRecord]:
    """Yield an empty snapshot at ts 0 and every finished job, in finished_ts order."""
    changes = list(changes)
    table = job_table_info(changes)
    yield DdlRecord(kind="snapshot_end", ts=Ts(0), payload={})
    for change in changes:
        if change.op == "put" and row_table_id(change.key) == DDL_JOB_TABLE_ID:
            record = decode_ddl_job_row(
                change.value, table, start_ts=Ts(change.start_ts), commit_ts=Ts(change.commit_ts)
            )
            if record is not None:
                yield record


def schema_store(changes: Iterable[CommittedChange]) -> SchemaStore:
    """Return a store fed with all of them."""
    store = SchemaStore.empty()
    for record in ddl_records(changes):
        store.apply(record)
    return store
