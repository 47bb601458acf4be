"""Rows that a cluster for benches makes by key: its store answers KvScan for some tables without holding them.

A table has the handles 1 to ``rows``; their values are those of a few hundred rows that a generator has written, taken
in turns. A page is an array of bytes with the handles filled in, so that a store in Python takes little of the cores
that it shares with what is measured, and ten million rows take no memory.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from producers.region_server.core.store import snapshot_read
from producers.region_server.kv.service import TikvService
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts
from schemas.proto import kvrpcpb_pb2
from schemas.tidb.keys import decode_row_key, row_key, table_span

POOL_ROWS = 512
_HANDLE_BYTES = 8
_ALL_TS = Ts(2**63 - 1)


class MadeTable:
    """One table's rows, as serialized pairs of a ScanResponse."""

    def __init__(self, table_id: TableId, rows: int, values: list[bytes]) -> None:
        """Take what its rows hold: only values of the length that most of them have, as a page is one array."""
        self._table_id, self._rows = table_id, rows
        self.start, self.end = table_span(table_id)
        length = Counter(map(len, values)).most_common(1)[0][0]
        pairs = [_pair(row_key(table_id, 1), value) for value in values if len(value) == length]
        self._pool: npt.NDArray[np.uint8] = np.stack([np.frombuffer(pair, np.uint8) for pair in pairs])
        self._handle_at = pairs[0].index(row_key(table_id, 1)) + len(row_key(table_id, 1)) - _HANDLE_BYTES

    def page(self, request: kvrpcpb_pb2.ScanRequest) -> kvrpcpb_pb2.ScanResponse:
        """Return the page that is asked for."""
        first, stop = self._first(request.start_key), self._first(request.end_key or self.end)
        handles = np.arange(first, min(stop, first + request.limit), dtype=np.int64)
        page = self._pool[handles % len(self._pool)]
        encoded = (handles.astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
        page[:, self._handle_at : self._handle_at + _HANDLE_BYTES] = encoded.view(np.uint8).reshape(-1, _HANDLE_BYTES)
        return kvrpcpb_pb2.ScanResponse.FromString(page.tobytes())

    def _first(self, key: bytes) -> int:
        """Return the first handle whose key is not below ``key``."""
        if key <= self.start:
            return 1
        if key >= self.end:
            return self._rows + 1
        row_length = len(row_key(self._table_id, 1))
        return decode_row_key(key[:row_length]).int_handle() + (len(key) > row_length)


class MadeScans:
    """Made tables of the clusters that begin to serve after it was made, in this process; all else is the stores'."""

    def __init__(self) -> None:
        self._tables = tables = list[MadeTable]()
        of_store = TikvService.KvScan

        async def scan(
            service: TikvService, request: kvrpcpb_pb2.ScanRequest, context: Any
        ) -> kvrpcpb_pb2.ScanResponse:
            for table in tables:
                if table.start <= request.start_key < table.end:
                    return table.page(request)
            return await of_store(service, request, context)

        # The embedded cluster has no place for a store that makes rows, and needs none outside of benches.
        TikvService.KvScan = scan  # type: ignore[method-assign,assignment]

    def add(self, server: RegionServer, table_ids: Iterable[TableId], rows: int) -> None:
        """From now on these tables have so many rows each, like those that were written into them."""
        self._tables += [MadeTable(table_id, rows, _values(server, table_id)) for table_id in table_ids]


def _values(server: RegionServer, table_id: TableId) -> list[bytes]:
    start, end = table_span(table_id)
    view = snapshot_read.ReadView(_ALL_TS, frozenset(), frozenset())
    data = server.store.data_of(start)
    rows = snapshot_read.scan(data, start, end, view, POOL_ROWS)
    return [row.value for row in rows if isinstance(row, snapshot_read.SeenRow)]


def _pair(key: bytes, value: bytes) -> bytes:
    response = kvrpcpb_pb2.ScanResponse()
    response.pairs.add(key=key, value=value)
    return response.SerializeToString()
