"""All of a cluster's metadata removed, for a new beginning: the captures must have gone."""

from compose.operator.node_texts import delete_nodes
from consumers.capture_registry import list_captures
from consumers.zookeeper import Session
from schemas.changefeed import ZkPaths
from schemas.errors import Action, BusError


class ClusterRunsError(BusError):
    """Captures live: they would write what was deleted anew, or fail at it."""

    code, action = "cluster.runs", Action.STOP_CHANGEFEED


def reset_cluster(zookeeper: str, cluster: str) -> bool:
    """Delete a cluster's nodes; tell whether there were any.

    Raises:
        ClusterRunsError: captures live.
        BusError: ZooKeeper failed.
    """
    paths = ZkPaths(cluster)
    with Session(zookeeper) as session:
        live = list_captures(session, paths)
        if live:
            addresses = [capture.address for capture in live]
            raise ClusterRunsError("captures run; stop them first", cluster=cluster, captures=addresses)
        return delete_nodes(session, paths.root)
