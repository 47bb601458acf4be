"""Of which changefeeds a sorter service has died, in their status: there the owner reads it and judges."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from consumers.control.changefeeds.states import DIED
from edges.secrets import decode_info
from edges.zookeeper.client import ZooKeeperClient
from schemas.errors import BusError, CorruptDataError
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
    status_of,
)
from schemas.nodes.sorter_service import Assigned, FeedName

WRITES_MAX: Final = 20
"""Tries to write a failure against others that write the same node."""


@dataclass(frozen=True, slots=True)
class ServiceDeath:
    """``running`` are the changefeeds that it is blamed on, ``assigned`` all that it had."""

    service: str
    pid: int
    message: str
    running: frozenset[FeedName]
    assigned: Mapping[FeedName, Assigned]


def write_failure(client: ZooKeeperClient, paths: ZkPaths, name: FeedName, death: ServiceDeath) -> bool:
    """Write to a changefeed's status that its service has died; False: it has rested since, or has said more itself."""
    for _ in range(WRITES_MAX):
        try:
            node, info_stat = client.get(paths.changefeed_info(*name))
        except NoNodeError:
            return False
        try:
            info = decode_info(node)
        except BusError:  # nor can anybody else read it, whose word it was: the others are told all the same
            return False
        try:
            node, stat = client.get(paths.changefeed_status(*name))
            status, version = status_of(decode_changefeed_status(node), int(info_stat.czxid)), int(stat.version)
        except NoNodeError:
            status, version = None, -1
        except CorruptDataError:
            return False
        failed = _failed(info, int(info_stat.czxid), status, death)
        if failed is None:
            return False
        try:
            if version >= 0:
                client.set(paths.changefeed_status(*name), encode_changefeed_status(failed), version=version)
            else:
                client.create(paths.changefeed_status(*name), encode_changefeed_status(failed))
        except (BadVersionError, NoNodeError, NodeExistsError):
            continue
        return True
    return False


def _failed(
    info: ChangefeedInfo, created_zxid: int, status: ChangefeedStatus | None, death: ServiceDeath
) -> ChangefeedStatus | None:
    assigned = death.assigned.get((info.namespace, info.changefeed_id))
    if assigned is not None and (assigned.created_zxid, assigned.epoch) != (created_zxid, info.epoch):
        return None
    epoch = info.epoch
    if status is not None and status.failure is not None and status.failure.epoch == epoch:
        return None
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    failure = SorterFailure(epoch=epoch, code=DIED, message=death.message, time=now, may_heal=True)
    before = status or ChangefeedStatus(state="normal", checkpoint_ts=info.start_ts, resolved_ts=info.start_ts)
    return replace(before, failure=failure, created_zxid=created_zxid)
