"""The recording's job table as the DDL feed meets it: the schema snapshot at a ts, and the rows above it."""

from producers.pull.core.ddl.meta_snapshot import snapshot_records
from producers.pull.core.match.change_columns import Change
from schemas.changes import Op
from schemas.ddl.job import DDL_JOB_TABLE_ID
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from tests.support.recorded.recording import committed_changes, row_table_id

EARLY_JOB = 149
"""The one job of the recording that has its effect before it is done: TRUNCATE PARTITION of d1.t_part."""
EARLY_TS, EARLY_TS_OF_TICDC = 470615985342382082, 470615985345265664
"""Since when it has it, and when it was done. TiCDC's events and messages have it at the latter, and so lose rows that
came to the new partition meanwhile: docs/decisions/2026-11-30-when-a-ddl-takes-effect.md"""


def snapshot_at(ts: int) -> list[DdlRecord]:
    """Return the records of a snapshot."""
    meta: dict[bytes, bytes] = {}
    for change in committed_changes():
        if change.commit_ts <= ts and change.key[:1] == b"m":
            meta[change.key] = change.value if change.op == "put" else b""
    kept = sorted((key, value) for key, value in meta.items() if value)
    return list(snapshot_records(lambda start, end: [pair for pair in kept if start <= pair[0] < end], Ts(ts)))


def job_rows_after(ts: int) -> list[Change]:
    """Return the changes of the job table's rows, in commit order."""
    return [
        (
            change.commit_ts,
            change.start_ts,
            Op.PUT if change.op == "put" else Op.DELETE,
            change.key,
            change.value,
            change.old_value,
            change.txn_source,
        )
        for change in committed_changes()
        if change.commit_ts > ts and row_table_id(change.key) == DDL_JOB_TABLE_ID
    ]
