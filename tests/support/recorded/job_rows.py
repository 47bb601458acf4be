"""The recording's job table as the DDL feed meets it: the schema snapshot at a ts, and the rows above it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from producers.pull.core.ddl.meta_snapshot import snapshot_records
from producers.pull.core.match.change_columns import Change
from schemas.changes import Op
from schemas.ddl.job import DDL_JOB_TABLE_ID
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.keys import meta_hash_key
from tests.support.recorded.recording import committed_changes, row_table_id


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyJob:
    """A job of the recording that takes effect before it is done.

    TiCDC's events and messages have it at ``done_ts``, and rows of the table that were committed in between as of the
    schema before; so they say less of those: docs/decisions/2026-11-30-when-a-ddl-takes-effect.md
    """

    id: int
    table: str
    ts: int
    done_ts: int
    values: dict[str, str]
    """What its new columns hold in all rows that were written until the recording's end."""


EARLY_JOBS: Final = tuple(
    EarlyJob(id=id_, table=table, ts=ts, done_ts=done_ts, values=values)
    for id_, table, ts, done_ts, values in (
        (149, "d1.t_part", 470615985342382082, 470615985345265664, {}),
        (150, "d1.t_part", 470615985350508544, 470615985353129984, {}),
        (160, "d1.t_ddl", 470615985413160960, 470615985414995968, {}),
        (163, "d1.t_ddl", 470615985442521088, 470615985445928960, {}),
        (235, "bank.acct_b", 470615986614304770, 470615986628198400, {"c2": "1.50", "c3": "2020-02-02 02:02:02.222"}),
        (237, "bank.acct_a", 470615986672762880, 470615986681675776, {"grade": "1"}),
    )
)
EARLY_TS: Final = {job.done_ts: job.ts for job in EARLY_JOBS}
"""Our ts of these DDL, by TiCDC's."""
EARLY_VERSIONS: Final = {
    470615985352605697: 470615985350246400,
    470615985445404672: 470615985441996801,
    470615986680627204: 470615986660966400,
}
"""``update_timestamp`` of their TableInfos, a table's version to Simple: ours by TiCDC's, where they differ."""
EARLY_ROWS: Final = 36
"""How many rows there are for which :func:`early_job_over` names a job with new columns."""


def early_job_over(table: str, commit_ts: int) -> EarlyJob | None:
    """Return the job that had its effect upon a row's table, and was not done, when the row was committed."""
    return next((job for job in EARLY_JOBS if job.table == table and job.ts < commit_ts <= job.done_ts), None)


def is_early_row(line: Mapping[str, Any]) -> bool:
    """Tell whether a message is of a row that has new columns by us, and by TiCDC has not."""
    if line["op"] not in ("insert", "update", "delete"):
        return False
    job = early_job_over(line["table"], line["commit_ts"])
    return job is not None and bool(job.values)


def table_info_at(ts: int, schema_id: int, table_id: int) -> dict[str, Any] | None:
    """Return the TableInfo in the meta keys at ``ts``, by reading all that was committed up to it."""
    key = meta_hash_key(b"DB:%d" % schema_id, b"Table:%d" % table_id)
    values = [change.value for change in committed_changes() if change.commit_ts <= ts and change.key == key]
    return json.loads(values[-1]) if values and values[-1] else None


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
