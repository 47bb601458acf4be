"""A cluster with one large table for the bench ``image_scan``: PD and stores that answer KvScan with rows made by key.

Nothing is stored and nothing is looked up: pages are arrays of bytes with the handles filled in. A process of its own,
so that the reader's figures are the reader's. Prints PD's address on its first line; ends when its standard input does.
"""

import argparse
import asyncio
import sys
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from schemas.ids import TableId
from schemas.proto import kvrpcpb_pb2, metapb_pb2, pdpb_pb2, pdpb_pb2_grpc
from schemas.tidb.keys import row_key, table_span
from tests.bench.rig.idle_store import FIRST_TABLE, STORES, Pd, make_regions

TABLE = TableId(FIRST_TABLE)
ROWS_A_REGION = 100_000
VALUE_BYTES = 195
_KEY_BYTES = len(row_key(TABLE, 0))
_POOL_ROWS = 4_096


class RowPd(Pd):
    """As of the idle cluster; nothing was ever collected."""

    async def GetGCSafePoint(self, request: Any, context: Any) -> pdpb_pb2.GetGCSafePointResponse:  # noqa: N802
        return pdpb_pb2.GetGCSafePointResponse()


class Rows:
    """Rows of handles ``[0, rows)``, as serialized ScanResponses."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        sample = kvrpcpb_pb2.ScanResponse()
        sample.pairs.add(key=row_key(TABLE, 0), value=bytes(VALUE_BYTES))
        encoded = sample.SerializeToString()
        self._pool: npt.NDArray[np.uint8] = np.tile(np.frombuffer(encoded, np.uint8), (_POOL_ROWS, 1))
        self._handle_at = encoded.index(row_key(TABLE, 0)) + _KEY_BYTES - 8
        letters = np.random.default_rng(1).integers(97, 123, (_POOL_ROWS, VALUE_BYTES), np.uint8)
        self._pool[:, -VALUE_BYTES:] = letters
        # A row's value begins with the version of its format; half of each value is what rows have in common.
        self._pool[:, -VALUE_BYTES] = 128
        self._pool[:, -VALUE_BYTES // 2 :] = self._pool[0, -VALUE_BYTES // 2 :]

    def page(self, request: kvrpcpb_pb2.ScanRequest) -> bytes:
        """Return the page that is asked for."""
        first = _handle(request.start_key, 0)
        count = min(_handle(request.end_key, self._rows), self._rows) - first
        handles = np.arange(first, first + max(0, min(count, request.limit)), dtype=np.int64)
        pairs = self._pool[handles % _POOL_ROWS]
        encoded = (handles.astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
        pairs[:, self._handle_at : self._handle_at + 8] = encoded.view(np.uint8).reshape(-1, 8)
        return pairs.tobytes()


def _handle(key: bytes, at_border: int) -> int:
    """Return the first handle whose key is not below ``key``; a border of the table's keys has none."""
    if len(key) < _KEY_BYTES:
        return at_border
    handle = int.from_bytes(key[_KEY_BYTES - 8 : _KEY_BYTES], "big") ^ 1 << 63
    return handle + (len(key) > _KEY_BYTES)


async def serve(rows: int) -> None:
    """Serve until standard input ends."""
    made = Rows(rows)

    async def scan(request: kvrpcpb_pb2.ScanRequest, context: Any) -> bytes:
        return made.page(request)

    handler = grpc.unary_unary_rpc_method_handler(
        scan, request_deserializer=kvrpcpb_pb2.ScanRequest.FromString, response_serializer=bytes
    )
    regions = make_regions(-(-rows // ROWS_A_REGION), 1, ROWS_A_REGION)
    # The generated base answers UNIMPLEMENTED to what Pd leaves out.
    pd, servers = RowPd(regions), []  # type: ignore[abstract]
    for store_id in range(1, STORES + 1):
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tikvpb.Tikv", {"KvScan": handler}),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        pd.stores.append(metapb_pb2.Store(id=store_id, address=address))
        servers.append(server)
    server = grpc.aio.server()
    pdpb_pb2_grpc.add_PDServicer_to_server(pd, server)
    pd.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    for running in [*servers, server]:
        await running.start()
    print(pd.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for running in [*servers, server]:
        await running.stop(None)


def borders(rows: int, scans: int) -> list[bytes]:
    """Return where so many scans of the table begin, and where the last one ends."""
    start, end = table_span(TABLE)
    return [start, *(row_key(TABLE, rows * at // scans) for at in range(1, scans)), end]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    asyncio.run(serve(parser.parse_args().rows))
