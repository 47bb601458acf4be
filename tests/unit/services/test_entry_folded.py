"""What a service says of a changefeed stays until the changefeed's own nodes say as much."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, decode_changefeed_status, encode_changefeed_info
from schemas.nodes.sorter_service import Assigned
from sorters.core.service.progress_book import FeedKey
from sorters.run.nodes.status import Edition
from sorters.service.hosted_feed import FeedHome, HostedFeed
from tests.support.control.memory_zookeeper import MemoryZooKeeper
from tests.support.processes.service_progress import entry

PATHS = ZkPaths("c")
NAME = ("default", "orders")
INFO = ChangefeedInfo(changefeed_id="orders", upstream=UpstreamId("u"), sink_uri="kafka://h/t", start_ts=Ts(10))
STATUS_PATH, BEGUN_PATH = PATHS.changefeed_status(*NAME), PATHS.changefeed_begun(*NAME)


@pytest.mark.parametrize("begun", ["", "{}"])
@pytest.mark.parametrize("is_away", [False, True])
def test_entry_when_a_run_ends_is_dropped_only_once_the_status_has_it(begun: str, is_away: bool) -> None:
    zookeeper, dropped = MemoryZooKeeper(), list[FeedKey]()
    zookeeper.write({PATHS.changefeed_info(*NAME): encode_changefeed_info(INFO)})
    home: Any = SimpleNamespace(
        client=zookeeper, lease=None, paths=PATHS, state=SimpleNamespace(drop=dropped.append), is_lost=lambda: False
    )
    assigned = Assigned(namespace="default", changefeed_id="orders", created_zxid=1, epoch=0, revision=1)
    feed = HostedFeed(assigned, cast(FeedHome, home))
    feed._board.open(INFO, Edition(1, 0))
    feed._board.report()
    feed._entry = entry(NAME, 1, 30, begun=begun)

    def lose_writes(_what: str, path: str) -> None:
        if is_away and path == STATUS_PATH:
            raise KazooTimeoutError

    zookeeper.on_request = lose_writes
    feed._fold()
    assert dropped == ([] if is_away else [(NAME, 1)])
    written = decode_changefeed_status(zookeeper.nodes[STATUS_PATH].value)
    assert (written.checkpoint_ts, BEGUN_PATH in zookeeper.nodes) == ((10, False) if is_away else (30, bool(begun)))
