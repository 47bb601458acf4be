"""``python -m tests.support.processes.peer_process ID``: a capture, as a process, that answers each heartbeat.

Prints its address, then reads ``ID ADDRESS`` lines: each names the one peer that it knows from then on.
"""

import sys
import threading
import time

from compose.peers import open_peers
from consumers.control.core.replication.messages import Heartbeat, HeartbeatResponse, Message, TableState, TableStatus
from consumers.control.peers.interface import Peers, Side, upstream_feed
from schemas.ids import CaptureId, UpstreamId

FEED = upstream_feed(UpstreamId("u"))


def main() -> None:
    """Answer until stdin ends."""
    me = CaptureId(sys.argv[1])
    peers = open_peers(me, "1.0.0")
    print(peers.address, flush=True)
    threading.Thread(target=_answer, args=(me, peers), daemon=True).start()
    for line in sys.stdin:
        capture, address = line.split()
        peers.resolve({CaptureId(capture): address})
    peers.close()


def _answer(me: CaptureId, peers: Peers) -> None:
    sequence = 0
    while True:
        for message in peers.take(FEED, Side.AGENT):
            assert isinstance(message.body, Heartbeat)
            sequence = message.sequence
            statuses = tuple(TableStatus(span, TableState.ABSENT) for span in message.body.spans)
            peers.send(FEED, [Message(message.header, me, message.sender, sequence, HeartbeatResponse(statuses))])
        time.sleep(0.01)


if __name__ == "__main__":
    main()
