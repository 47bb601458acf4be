"""PD and one TiKV store for the bench ``whole_bus``: sysbench's rows in transactions of 100, as fast as they are taken.

A process of its own, so that the figures are those of the bus. Everything is encoded before the first byte is sent. A
message holds the COMMITs of some transactions and the PREWRITEs of the next ones; a resolved ts follows every
:data:`TXNS_A_RESOLVED`. After the warm-up rows it waits for a line on standard input. Prints PD's address first.
"""

import argparse
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from schemas.ids import RegionId, TableId, Ts
from schemas.proto import cdcpb_pb2, pdpb_pb2_grpc
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key, table_span
from tests.support.rawlog.raw_log import START_TS, recorded
from tests.support.upstream.one_store_pd import FixedRegion, OneStorePd

TABLES = tuple(map(TableId, range(114, 118)))
"""Of one shape; a region each."""
TXN_ROWS = 100
TXNS_A_MESSAGE = 8
TXNS_A_RESOLVED = 48
STEP_TS = 1_000
"""From one transaction's commit_ts to the next one's."""


def commit_ts(row: int) -> Ts:
    """Return the commit_ts of a row's transaction."""
    return Ts(START_TS + (row // TXN_ROWS + 1) * STEP_TS)


def entries(rows: int) -> list[tuple[TableId, bytes, bytes]]:
    """Return of each transaction the table, and the rows of its PREWRITE and of its COMMIT event."""
    _, recorded_rows = recorded("sbtest1")
    out = []
    for number in range(rows // TXN_ROWS):
        table = TABLES[number % len(TABLES)]
        prewrite, commit = cdcpb_pb2.Event.Entries(), cdcpb_pb2.Event.Entries()
        ts = commit_ts(number * TXN_ROWS)
        for row in range(number * TXN_ROWS, (number + 1) * TXN_ROWS):
            key = row_key(table, row)
            value = recorded_rows[row % len(recorded_rows)].value
            prewrite.entries.add(type=1, start_ts=ts - STEP_TS // 2, key=key, value=value, op_type=1)
            commit.entries.add(type=2, start_ts=ts - STEP_TS // 2, commit_ts=ts, key=key, op_type=1)
        out.append((table, prewrite.SerializeToString(), commit.SerializeToString()))
    return out


def messages(
    transactions: list[tuple[TableId, bytes, bytes]], first: int, request_ids: dict[int, int]
) -> Iterator[bytes]:
    """Yield the transactions as messages; ``first`` is the number of the first one."""

    def event(table: TableId, rows: bytes) -> cdcpb_pb2.Event:
        inner = cdcpb_pb2.Event.Entries.FromString(rows)
        return cdcpb_pb2.Event(region_id=int(table), request_id=request_ids[table], entries=inner)

    for group in range(0, len(transactions), TXNS_A_RESOLVED):
        events: list[cdcpb_pb2.Event] = []
        mine = transactions[group : group + TXNS_A_RESOLVED]
        for at in range(0, len(mine), TXNS_A_MESSAGE):
            batch = mine[at : at + TXNS_A_MESSAGE]
            events += [event(table, prewrite) for table, prewrite, _ in batch]
            yield cdcpb_pb2.ChangeDataEvent(events=events).SerializeToString()
            events = [event(table, commit) for table, _, commit in batch]
        yield cdcpb_pb2.ChangeDataEvent(events=events).SerializeToString()
        ts = commit_ts((first + group + len(mine) - 1) * TXN_ROWS)
        for table in TABLES:
            resolved = cdcpb_pb2.ResolvedTs(regions=[int(table)], ts=ts, request_id=request_ids[table])
            yield cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString()


def table_regions() -> list[FixedRegion]:
    """Return one region for each table."""
    return [FixedRegion(RegionId(table), *map(encode_bytes, table_span(table))) for table in TABLES]


class Store:
    """EventFeedV2: the warm-up when all regions are registered, the rest when it is told to."""

    def __init__(self, warm_rows: int, rows: int) -> None:
        self.go = threading.Event()
        transactions = entries(warm_rows + rows)
        self._warm, self._rest = transactions[: warm_rows // TXN_ROWS], transactions[warm_rows // TXN_ROWS :]

    def event_feed(self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: Any) -> Iterator[bytes]:
        """Serve the one stream."""
        request_ids: dict[int, int] = {}
        while len(request_ids) < len(TABLES):
            request = next(requests)
            request_ids[request.region_id] = request.request_id
        started = cdcpb_pb2.Event.Entries(entries=[cdcpb_pb2.Event.Row(type=cdcpb_pb2.Event.INITIALIZED)])
        events = [
            cdcpb_pb2.Event(region_id=RegionId(region), request_id=request_ids[region], entries=started)
            for region in request_ids
        ]
        yield cdcpb_pb2.ChangeDataEvent(events=events).SerializeToString()
        yield from messages(self._warm, 0, request_ids)
        rest = list(messages(self._rest, len(self._warm), request_ids))
        self.go.wait()
        yield from rest
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        context.add_callback(lambda: ended.put(None))
        ended.get()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm-rows", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    store = Store(options.warm_rows, options.rows)
    as_tikv = [("grpc.max_send_message_length", 1 << 28), ("grpc.http2.max_ping_strikes", 0)]  # it counts no pings
    server = grpc.server(ThreadPoolExecutor(8), options=as_tikv)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    # The generated base answers UNIMPLEMENTED to what Pd leaves out.
    pdpb_pb2_grpc.add_PDServicer_to_server(OneStorePd(address, START_TS, table_regions()), server)  # type: ignore[abstract]
    feed = grpc.stream_stream_rpc_method_handler(
        store.event_feed, request_deserializer=cdcpb_pb2.ChangeDataRequest.FromString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": feed}),))
    server.start()
    print(address, flush=True)
    if sys.stdin.readline():
        store.go.set()
        sys.stdin.readline()
    server.stop(None)


if __name__ == "__main__":
    main()
