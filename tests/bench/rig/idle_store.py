"""A cluster of idle regions for the bench ``idle_regions``: PD and stores that say what must be said, and nothing more.

Registration --> INITIALIZED, then every second resolved ts as TiKV groups them: the slowest 8 regions of a request id
with their least ts, the next 32, 128, 512, … No data behind it. A process of its own, so that the client's figures are
the client's. Prints PD's address on its first line; ends when its standard input does.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np

from schemas.ids import TableId
from schemas.proto import cdcpb_pb2, metapb_pb2, pdpb_pb2, pdpb_pb2_grpc
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key, table_span

CLUSTER_ID = 77
FIRST_TABLE = 100
STORES = 3
ROUND_S = 1.0
FIRST_GROUP, GROUP_GROWTH = 8, 4
HANDLES_A_REGION = 1_000
INITIALIZED_A_MESSAGE = 64


def make_regions(regions: int, tables: int, handles: int = HANDLES_A_REGION) -> list[metapb_pb2.Region]:
    """Return the regions of ``tables`` tables, each with so many handles, ascending and without a gap."""
    made: list[metapb_pb2.Region] = []
    for table in range(FIRST_TABLE, FIRST_TABLE + tables):
        start, end = table_span(TableId(table))[0], table_span(TableId(table + 1))[0]
        count = regions // tables
        borders = [start, *(row_key(TableId(table), at * handles) for at in range(1, count)), end]
        for low, high in itertools.pairwise(borders):
            number = len(made) + 1
            made.append(
                metapb_pb2.Region(
                    id=number * 2,
                    start_key=encode_bytes(low),
                    end_key=encode_bytes(high),
                    region_epoch=metapb_pb2.RegionEpoch(conf_ver=5, version=60),
                    peers=[metapb_pb2.Peer(id=number * 10 + store, store_id=store) for store in range(1, STORES + 1)],
                )
            )
    return made


class Pd(pdpb_pb2_grpc.PDServicer):
    """Members, stores, regions."""

    def __init__(self, regions: list[metapb_pb2.Region]) -> None:
        self.address = ""
        self.stores: list[metapb_pb2.Store] = []
        self._regions = regions
        self._ends = [region.end_key for region in regions]

    async def GetMembers(self, request: Any, context: Any) -> pdpb_pb2.GetMembersResponse:  # noqa: N802
        member = pdpb_pb2.Member(name="pd", member_id=1, client_urls=[f"http://{self.address}"])
        header = pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID)
        return pdpb_pb2.GetMembersResponse(header=header, members=[member], leader=member)

    async def GetAllStores(self, request: Any, context: Any) -> pdpb_pb2.GetAllStoresResponse:  # noqa: N802
        return pdpb_pb2.GetAllStoresResponse(stores=self.stores)

    async def ScanRegions(self, request: Any, context: Any) -> pdpb_pb2.ScanRegionsResponse:  # noqa: N802
        regions = []
        low = int(np.searchsorted(np.array(self._ends, object), request.start_key, side="right"))
        for region in self._regions[low : low + request.limit]:
            if request.end_key and region.start_key >= request.end_key:
                break
            leader = region.peers[region.id // 2 % STORES]
            regions.append(pdpb_pb2.Region(region=region, leader=leader))
        return pdpb_pb2.ScanRegionsResponse(regions=regions)


async def event_feed(requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: Any) -> None:
    """Serve one multiplexed stream."""
    registered: dict[int, list[int]] = defaultdict(list)
    fresh: list[tuple[int, int]] = []

    async def read() -> None:
        async for request in requests:
            fresh.append((request.request_id, request.region_id))  # noqa: PERF401  # each counts when it comes

    reader = asyncio.create_task(read())
    rng, due = np.random.default_rng(1), time.monotonic() + ROUND_S
    try:
        while not reader.done():
            while fresh:
                taken, fresh[:] = fresh[:INITIALIZED_A_MESSAGE], fresh[INITIALIZED_A_MESSAGE:]
                await context.write(initialized(taken))
                for request_id, region_id in taken:
                    registered[request_id].append(region_id)
            if time.monotonic() >= due:
                due += ROUND_S
                for request_id, region_ids in registered.items():
                    for message in resolved_round(request_id, rng.permutation(np.array(region_ids, np.uint64))):
                        await context.write(message)
            await asyncio.sleep(0.001 if fresh else 0.003)
    finally:
        reader.cancel()


def initialized(taken: list[tuple[int, int]]) -> bytes:
    """Return the end of some scans."""
    message = cdcpb_pb2.ChangeDataEvent()
    for request_id, region_id in taken:
        event = message.events.add(region_id=region_id, request_id=request_id)
        event.entries.entries.add(type=cdcpb_pb2.Event.INITIALIZED)
    return message.SerializeToString()


def resolved_round(request_id: int, regions: "np.typing.NDArray[np.uint64]") -> list[bytes]:
    """Return one round of a request id, the slowest regions first."""
    out: list[bytes] = []
    now_ts, at, size = int(time.time() * 1000) << 18, 0, FIRST_GROUP
    while at < len(regions):
        group = regions[at : at + size].tolist()
        resolved = cdcpb_pb2.ResolvedTs(regions=group, ts=now_ts + len(out), request_id=request_id)
        out.append(cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString())
        at, size = at + size, size * GROUP_GROWTH
    return out


async def serve(regions: int, tables: int) -> None:
    """Serve until standard input ends."""
    # The generated base answers UNIMPLEMENTED to what Pd leaves out.
    pd, servers = Pd(make_regions(regions, tables)), []  # type: ignore[abstract]
    for store_id in range(1, STORES + 1):
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            event_feed,
            request_deserializer=cdcpb_pb2.ChangeDataRequest.FromString,
            response_serializer=bytes,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": handler}),)
        )
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regions", type=int, required=True)
    parser.add_argument("--tables", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.regions, options.tables))
