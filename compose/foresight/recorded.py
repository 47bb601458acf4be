"""A recording as the raw log would hold it: committed row changes by table, and the records of the ddl topic.

Everything goes as in the bus, less gRPC and Kafka: the region server's store folds the recording, its
applied writes become the very rows that TiKV would send, the matcher pairs them, and the DDL feed's reader finds the
schema snapshot and the jobs among them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.ddl.early_jobs import may_count
from producers.pull.core.ddl.meta_snapshot import snapshot_records, table_info_at
from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.matcher import Matcher
from producers.region_server.core.cdc.delegate import Downstream, live_events
from producers.region_server.core.replay.recorded import SplitRegions
from producers.region_server.core.store.mvcc import Change as AppliedChange
from producers.region_server.core.store.mvcc import LockKind
from producers.region_server.core.store.regions import Region
from producers.region_server.kv.store import ClusterStore
from producers.region_server.recording import read_recording
from schemas.changes import Op
from schemas.ddl.job import DDL_JOB_TABLE_ID, decode_ddl_job_row
from schemas.ddl.system_schemas import is_system_schema
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import cdcpb_pb2
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.codec import decode_int

_KEYS_END = b"\xff" * 16
"""Above every raw key of TiDB."""
_REGION = RegionId(1)


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """What landed."""

    changes: dict[TableId, list[Change]]
    """Committed row changes by physical table, in commit order, all tables of the cluster."""
    ddl: tuple[DdlRecord, ...]
    """The snapshot at ``start_ts`` and every finished job, as the ddl topic has them."""
    start_ts: Ts
    """Nothing of users is visible here, and all that they wrote is above it."""
    end_ts: Ts
    """Above everything recorded."""


def read_recorded_log(folder: Path) -> RecordedLog:
    """Fold a recording.

    Raises:
        ConfigError: there is no recording.
        CorruptDataError: it does not parse.
        DdlDecodeError: a DDL job in it does not.
        InvariantBrokenError: it breaks the transaction protocol.
    """
    recording = read_recording(folder)
    store, tap = ClusterStore([StoreId(1)]), _Tap()
    store.watch(tap)
    for step in recording.steps:
        if isinstance(step.work, SplitRegions):
            for key in step.work.keys:
                store.split(key)
        else:
            store.apply(step.work)
    end_ts = recording.end_ts
    changes = {table: sorted(table_changes) for table, table_changes in sorted(tap.changes.items())}
    jobs = _finished_jobs(store, changes.get(DDL_JOB_TABLE_ID, []), recording.bootstrap_ts, end_ts)
    # The bootstrap itself may create a user schema (`test`): what is of users counts as recorded.
    firsts = [Ts(job.ts - 1) for job in jobs if not is_system_schema(str(job.payload.get("schema_name")))]
    start_ts = min([recording.bootstrap_ts, *firsts])
    snapshot = snapshot_records(_Snapshot(store, start_ts).scan, start_ts)
    after = {
        table: [change for change in table_changes if change[0] > start_ts] for table, table_changes in changes.items()
    }
    rows = {table: table_changes for table, table_changes in after.items() if table_changes}
    return RecordedLog(rows, (*snapshot, *(job for job in jobs if job.ts > start_ts)), start_ts, end_ts)


class _Tap:
    """An observer of the store's applied writes that feeds one matcher for the whole key space."""

    def __init__(self) -> None:
        self._downstream = Downstream(region_id=_REGION, request_id=1, start=b"", end=b"", checkpoint_ts=Ts(0))
        self._matcher = Matcher(_REGION, b"", _KEYS_END, start_ts=Ts(0), checkpoint_ts=Ts(0))
        self._matcher.feed([cdcpb_pb2.Event.Row(type=cdcpb_pb2.Event.INITIALIZED)])
        self.changes: dict[TableId, list[Change]] = defaultdict(list)

    def on_applied(self, region: Region, changes: Sequence[AppliedChange]) -> None:
        for event in live_events(self._downstream, changes):
            for change in self._matcher.feed(event.entries.entries):
                key = change[3]
                if key[:1] == b"t" and key[9:11] == b"_r":
                    self.changes[TableId(decode_int(key, 1)[0])].append(change)

    def on_epoch_changed(self, region_ids: Sequence[RegionId], current: Sequence[Region]) -> None:
        """One registration spans all regions here, so a split changes nothing."""

    def on_leader_changed(self, region: Region, before: StoreId) -> None:
        """There is one store."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    store: ClusterStore
    ts: Ts

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in ``[start, end)`` as they stood at the ts."""
        for region in self.store.regions.between(start, end):
            for key in region.data.keys_between(start, end):
                version = region.data.version_at(key, self.ts)
                if version is not None and version.op == LockKind.PUT:
                    yield key, version.value


def _finished_jobs(store: ClusterStore, rows: list[Change], table_ts: Ts, end_ts: Ts) -> list[DdlRecord]:
    """Return all jobs, read by the job table's columns of ``table_ts``."""
    snapshot = list(snapshot_records(_Snapshot(store, table_ts).scan, table_ts))
    table = next((r.payload for r in snapshot if r.kind == "table" and r.payload["id"] == DDL_JOB_TABLE_ID), None)
    if table is None:
        raise CorruptDataError("recording's bootstrap has no table mysql.tidb_ddl_job")
    book = DdlBook(enumerate(snapshot))
    for commit_ts, start_ts, op, _, value, _, _ in rows:
        if op == Op.PUT:
            record = decode_ddl_job_row(value, table, start_ts=Ts(start_ts), commit_ts=Ts(commit_ts), counts=may_count)
            if record is not None:
                book.add(record)
    for record in book.unread():
        scan = _Snapshot(store, record.ts).scan
        book.read(record, table_info_at(scan, record.payload.get("schema_id"), record.payload.get("table_id")))
    return book.resolved(end_ts)
