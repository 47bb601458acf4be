"""A cluster's metadata removed, or made to fit a raw log that it has forgotten: the captures must have gone."""

from contextlib import closing

from compose.operator.node_texts import delete_nodes
from consumers.control.cluster.capture_registry import list_captures
from consumers.control.cluster.election import raise_revision
from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.errors import Action, BusError
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics


class ClusterRunsError(BusError):
    """Captures live: they would write what was deleted anew, or fail at it."""

    code, action = "cluster.runs", Action.STOP_CHANGEFEED


def reset_cluster(zookeeper: ZooKeeperAccess, cluster: str) -> bool:
    """Delete a cluster's nodes; tell whether there were any.

    The owner's revision stays: the raw log, which stays too, takes no lower one.

    Raises:
        ClusterRunsError: captures live.
        BusError: ZooKeeper failed.
    """
    paths = ZkPaths(cluster)
    with Session(zookeeper) as session:
        _check_nobody_lives(session, paths)
        return delete_nodes(session, paths.root, keep=paths.owner_rev)


def adopt_raw_log(zookeeper: ZooKeeperAccess, kafka: KafkaAccess, cluster: str, upstream: UpstreamId) -> int | None:
    """Let the cluster's next owner go on with a raw log; return the revision of the owner that has written it last.

    None: nothing had to be done. For a ZooKeeper that has lost its data.

    Raises:
        ClusterRunsError: captures live.
        FrontierUnavailableError: Kafka does not answer, or has no such raw log.
        BusError: ZooKeeper failed.
    """
    paths = ZkPaths(cluster)
    with closing(FrontierTopic(kafka, raw_topics(upstream).frontier)) as topic, Session(zookeeper) as session:
        newest = topic.newest()
        _check_nobody_lives(session, paths)
        if newest is None or not raise_revision(session, paths, newest.owner_rev):
            return None
        return newest.owner_rev


def _check_nobody_lives(session: Session, paths: ZkPaths) -> None:
    live = list_captures(session, paths)
    if live:
        addresses = [capture.address for capture in live]
        raise ClusterRunsError("captures run; stop them first", cluster=paths.cluster, captures=addresses)
