"""What was committed according to a recorded feed: for a client that asks from an earlier ts than the recorder did.

A store keeps its history and can scan it from any ts. Of a recorded feed the history is what all registrations were
told together: COMMITTED rows, and COMMIT rows with the values of their PREWRITE.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from producers.region_server.core.replay.recording import Recorded
from schemas.ids import Ts
from schemas.proto import cdcpb_pb2

Event = cdcpb_pb2.Event
Row = cdcpb_pb2.Event.Row


class RecordedRows:
    """Committed rows by raw key."""

    def __init__(self, registrations: Iterable[Recorded]) -> None:
        writes: dict[tuple[bytes, int], Row] = {}
        for registration in registrations:
            prewrites: dict[tuple[int, bytes], Row] = {}
            commits: list[Row] = []
            for _, item in registration.items:
                if not isinstance(item, Event):
                    continue
                for row in item.entries.entries:
                    if row.type == Event.PREWRITE:
                        prewrites[row.start_ts, row.key] = row
                    elif row.type == Event.COMMIT:
                        commits.append(row)
                    elif row.type == Event.COMMITTED:
                        writes[row.key, row.commit_ts] = row
            for row in commits:
                prewrite = prewrites.get((row.start_ts, row.key))
                if prewrite is not None:
                    writes[row.key, row.commit_ts] = Row(
                        start_ts=row.start_ts,
                        commit_ts=row.commit_ts,
                        type=Event.COMMITTED,
                        op_type=row.op_type,
                        key=row.key,
                        value=prewrite.value,
                        old_value=prewrite.old_value,
                        txn_source=row.txn_source,
                    )
        # In the order of a scan: keys ascend, the newest version of a key comes first.
        ordered = sorted(writes.items(), key=lambda item: (item[0][0], -item[0][1]))
        self._keys = [key for (key, _), _ in ordered]
        self._rows = [row for _, row in ordered]

    def between(self, after_ts: Ts, upto_ts: Ts, start: bytes, end: bytes) -> list[Row]:
        """Return the rows of raw keys in ``[start, end)`` (``end`` empty: no bound) committed in ``(after, upto]``."""
        if after_ts >= upto_ts:
            return []
        low, high = bisect_left(self._keys, start), bisect_left(self._keys, end) if end else None
        return [row for row in self._rows[low:high] if after_ts < row.commit_ts <= upto_ts]


def scanned(rows: Sequence[Row]) -> Event:
    """Return them as an event of an incremental scan, of no region yet."""
    return Event(entries=Event.Entries(entries=rows))
