"""The bus without Kafka and Spark: a recording through matcher, mounter, filter, dispatch and encoder in this process.

The rows take the way that they take in the bus: the recording is folded by the region server's store, its applied
writes become the very rows that TiKV would send, the matcher pairs them, the DDL feed's reader finds the jobs among them, and
the sorter's pipeline does the rest. Only what is between those pieces (gRPC, Kafka, Spark) is left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from producers.core.matcher import Change, Matcher
from producers.region_server.core.delegate import Downstream, live_events
from producers.region_server.core.mvcc import Change as AppliedChange
from producers.region_server.core.recorded import SplitRegions
from producers.region_server.core.regions import Region
from producers.region_server.recording import read_recording
from producers.region_server.store import ClusterStore
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import decode_int

_KEYS_END = b"\xff" * 16
"""Above every raw key of TiDB."""
_REGION = RegionId(1)


@dataclass(frozen=True, slots=True)
class RecordedChanges:
    """Committed row changes of a recording, by physical table, and the ts that is above all of them."""

    changes: dict[TableId, list[Change]]
    bootstrap_ts: Ts
    end_ts: Ts


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
                if _is_row_key(key):
                    self.changes[TableId(decode_int(key, 1)[0])].append(change)

    def on_epoch_changed(self, region_ids: Sequence[RegionId], current: Sequence[Region]) -> None:
        """One registration spans all regions here, so a split changes nothing."""

    def on_leader_changed(self, region: Region, before: StoreId) -> None:
        """There is one store."""


def recorded_changes(folder: Path) -> RecordedChanges:
    """Fold a recording into committed row changes, as a puller would receive and match them.

    Raises:
        ConfigError: no recording there.
        CorruptDataError: it does not parse.
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
    return RecordedChanges(dict(tap.changes), recording.bootstrap_ts, recording.end_ts)


def _is_row_key(key: bytes) -> bool:
    return key[:1] == b"t" and key[9:11] == b"_r"
