"""The initializer: runs the incremental scan of one downstream, in small steps between live writes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from producers.region_server.core.cdc.delegate import Downstream
from producers.region_server.core.cdc.incremental_scan import ScanSnapshot, initialized_event, scan
from producers.region_server.core.cdc.scan_pace import ScanPace
from producers.region_server.rpc.channel import Channel


@dataclass(frozen=True, slots=True, eq=False)
class ScanTurns:
    """What the scans of one store share. ``gate`` closed: all of them stand still."""

    at_once: asyncio.Semaphore
    pace: ScanPace
    gate: asyncio.Event


async def initialize(
    downstream: Downstream,
    capture: Callable[[Downstream], ScanSnapshot],
    channel: Channel,
    turns: ScanTurns,
    congested: Callable[[Downstream], None],
) -> None:
    """Wait for a turn, begin to observe, send the scan with INITIALIZED last, and let resolved ts through.

    ``capture`` subscribes the downstream and takes its snapshot in one step: only now, so that waiting scans hold no
    snapshots. A downstream that is stopped meanwhile gets nothing more, with one exception: if a region error stopped
    it while scans stood still, an INITIALIZED still comes behind the error, as was seen in a real feed.
    """
    now_s = asyncio.get_running_loop().time
    async with turns.at_once:
        if downstream.is_stopped():
            return
        for event in scan(capture(downstream), downstream):
            await channel.room()
            if not turns.gate.is_set():
                await turns.gate.wait()
                if downstream.failed:
                    channel.push(initialized_event(downstream))
            if downstream.is_stopped():
                return
            sent = channel.push(event)
            if not sent:
                congested(downstream)
                return
            # Between two events the store may apply writes; they go out in between, as in TiKV.
            await asyncio.sleep(turns.pace.take(sent, now_s()))
    if not downstream.is_stopped():
        downstream.initialized = True
