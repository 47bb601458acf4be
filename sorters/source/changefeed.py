"""The changefeed that a query names: its upstream and its filters, as ZooKeeper has them when the query starts."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from edges.secrets import decode_info
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.nodes import read_node
from edges.zookeeper.session import Session, ZooKeeperUnreachableError
from schemas.config.changefeed import load_changefeed
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from sorters.core.source.errors import SourceOptionError
from sorters.core.source.feed_filter import FeedFilter
from sorters.core.source.options import FeedName, SourceOptions

ANSWER_S: Final = 10.0


def with_changefeed(options: SourceOptions, feed: FeedName) -> SourceOptions:
    """Return options with the upstream and the filters of their changefeed.

    Raises:
        SourceOptionError: there is no such changefeed, or it does not replicate the table.
        ZooKeeperUnreachableError: no server answers.
        SecretKeyError: its settings are sealed, and this process has not the key.
        ConfigError: ZooKeeper's properties file is refused.
    """
    info = _info(feed)
    config = replace(load_changefeed(info.sink_uri, info.config), time_zone=info.time_zone)
    feed_filter = FeedFilter.of(config)
    if not feed_filter.tables.matches(options.table.schema, options.table.table):
        raise options.not_replicated
    return replace(options, upstream=info.upstream, feed_filter=feed_filter)


def _info(feed: FeedName) -> ChangefeedInfo:
    access = ZooKeeperAccess.read(feed.zookeeper, Path(feed.zookeeper_config) if feed.zookeeper_config else None)
    path = ZkPaths(feed.cluster).changefeed_info(feed.namespace, feed.changefeed_id)
    with Session(access) as session:
        try:
            node = read_node(session.client, path, ANSWER_S)
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError("changefeed is not readable", path=path, reason=repr(error)) from error
    if node is None:
        raise SourceOptionError(
            "there is no such changefeed", option="changefeed", seen=str(feed), cluster=feed.cluster
        )
    return decode_info(node[0])
