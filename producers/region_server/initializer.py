"""The initializer: runs the incremental scan of one downstream, in small steps between live writes."""

import asyncio

from producers.region_server.channel import Channel
from producers.region_server.core.delegate import Downstream
from producers.region_server.core.incremental_scan import Snapshot, scan


async def initialize(downstream: Downstream, snapshot: Snapshot, channel: Channel, scans: asyncio.Semaphore) -> None:
    """Send the scan, INITIALIZED last, then let resolved ts of the downstream through.

    ``scans`` bounds the scans at once of a store. A downstream that is stopped meanwhile gets nothing more.
    """
    async with scans:
        for event in scan(snapshot, downstream):
            await channel.room()
            if downstream.stopped:
                return
            channel.push(event)
            # Between two events the store may apply writes; they go out in between, as in TiKV.
            await asyncio.sleep(0)
    downstream.initialized = True
