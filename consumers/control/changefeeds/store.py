"""Changefeeds in ZooKeeper: created with all checks, listed, changed by compare-and-set, removed."""

import datetime
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError, RolledBackError

from consumers.control.changefeeds.processor_nodes import decode_applied, with_applied
from consumers.control.log.raw_log import RetainedFrontier
from edges.secrets import SecretKeyError, decode_info, encode_info
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.nodes import replace_node
from edges.zookeeper.progress import read_entries
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.config.zone import check_zone
from schemas.errors import Action, BusError, ConfigError, CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import (
    ID_CHARS_MAX,
    NAMESPACE_DEFAULT,
    SOURCE_ID_DEFAULT,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    is_id,
    status_of,
)
from schemas.nodes.creation_zone import with_zone
from schemas.nodes.prologue import Prologue, encode_prologue
from schemas.nodes.sorter_service import with_progress
from schemas.sink.topic import has_processors
from schemas.tidb.time_zone import UTC_NAME

log = logging.getLogger(__name__)

REMOVE_TRIES = 20
"""Sorters and processors that do not know yet go on writing; a try takes some milliseconds."""


class ChangefeedExistsError(BusError):
    """The id is taken."""

    code, action = "changefeed.exists", Action.STOP_CHANGEFEED


class ChangefeedNotFoundError(BusError):
    """There is no such changefeed."""

    code, action = "changefeed.not_found", Action.STOP_CHANGEFEED


class StartTsError(BusError):
    """The raw log cannot serve this start_ts."""

    code, action = "changefeed.start_ts", Action.STOP_CHANGEFEED


class NoFrontierError(BusError):
    """No capture has published a frontier of this upstream yet."""

    code, action = "changefeed.no_frontier", Action.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedRequest:
    """What a user asks for."""

    upstream: UpstreamId
    sink_uri: str = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    changefeed_id: str | None = None
    """None: a UUID."""
    namespace: str = NAMESPACE_DEFAULT
    start_ts: Ts | None = None
    """None: from the newest frontier on."""
    target_ts: Ts | None = None
    """Inclusive end; None: never ends."""
    time_zone: str = UTC_NAME
    """Name of the zone that TIMESTAMPs are written in."""
    safe_until_ts: Ts = Ts(0)
    """Up to which ts a database may have the rows already."""
    source_id: int = SOURCE_ID_DEFAULT
    """The upstream's, which rows at a TiDB are marked with."""


class ChangefeedStore:
    """All changefeeds of one cluster."""

    def __init__(self, session: Session, paths: ZkPaths) -> None:
        self._session, self._paths = session, paths

    def create(
        self, request: ChangefeedRequest, window: RetainedFrontier | None, prologue: Prologue | None = None
    ) -> ChangefeedInfo:
        """Check a request, store it and return it; its sorter can start.

        ``window`` is what :func:`consumers.control.log.raw_log.retained_frontier` says now. ``prologue`` is stored with
        it, and brings what was before the raw log; None: it cannot start there.

        Raises:
            ConfigError: id, sink URI, changefeed file or target_ts is not allowed.
            NoFrontierError: there is no raw log to read yet.
            StartTsError: the raw log does not reach back to start_ts.
            ChangefeedExistsError: the id is taken.
            BusError: ZooKeeper failed.
        """
        changefeed_id = request.changefeed_id or str(uuid.uuid4())
        request = replace(request, changefeed_id=changefeed_id)
        check_id("changefeed-id", changefeed_id)
        check_id("namespace", request.namespace)
        check_zone(load_changefeed(request.sink_uri, request.config), request.time_zone)
        start_ts = _start_ts(request, window, prologue)
        if request.target_ts is not None and request.target_ts <= start_ts:
            raise ConfigError(
                "target-ts must be above start-ts", key="target-ts", target_ts=request.target_ts, start_ts=start_ts
            )
        info = info_of(request, start_ts)
        self._write_new(info, prologue)
        log.info("changefeed created", extra={"changefeed": changefeed_id, "start_ts": start_ts})
        return info

    def get(self, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT) -> ChangefeedInfo:
        """Return one.

        Raises:
            ChangefeedNotFoundError: there is none.
            BusError: ZooKeeper failed, or the node does not decode.
        """
        return self._read(changefeed_id, namespace)[0]

    def status(self, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT) -> ChangefeedStatus | None:
        """Return how far it is; None until its sorter has said so.

        For one changefeed, now and then: who shows many, or looks again and again, has
        :mod:`consumers.control.changefeeds.feed_nodes`.

        Raises:
            BusError: ZooKeeper failed, or the node does not decode.
        """
        with self._session.requests("reading a changefeed's status") as client:
            entries = read_entries(client, self._paths)
            try:
                info, stat = client.get(self._paths.changefeed_info(namespace, changefeed_id))
            except NoNodeError:
                return None
            try:
                written = decode_changefeed_status(
                    client.get(self._paths.changefeed_status(namespace, changefeed_id))[0]
                )
            except NoNodeError:
                written = None
            created_zxid = int(stat.czxid)
            entry = entries.get(((namespace, changefeed_id), created_zxid))
            status = with_progress(status_of(written, created_zxid), entry)
            feed = decode_info(info)
            if status is None or not has_processors(feed.sink_uri):
                return status
            try:
                applied = decode_applied(client.get(self._paths.changefeed_applied(namespace, changefeed_id))[0])
            except NoNodeError:
                applied = None
        return with_applied(feed, status, applied)

    def upstream_status(self, upstream: UpstreamId) -> dict[str, object]:
        """Return what the upstream's owner says of it for people; {} if nobody has said anything that can be read.

        Raises:
            BusError: ZooKeeper failed.
        """
        with self._session.requests("reading the upstream's node") as client:
            try:
                status = read_json(client.get(self._paths.upstream(upstream))[0] or b"{}")
            except (NoNodeError, ValueError):
                return {}
        return status if isinstance(status, dict) else {}

    def list(self, namespace: str = NAMESPACE_DEFAULT) -> list[ChangefeedInfo]:
        """Return all of a namespace that can be read, by id; the others are logged, and hide nobody else's.

        Raises:
            BusError: ZooKeeper failed.
        """
        with self._session.requests("listing changefeeds") as client:
            try:
                names = sorted(client.get_children(f"{self._paths.changefeeds}/{namespace}"))
            except NoNodeError:
                return []
        infos = []
        for name in names:
            try:
                infos.append(self.get(name, namespace))
            except ChangefeedNotFoundError:  # removed between the two calls
                continue
            except (CorruptDataError, SecretKeyError) as error:
                where = {"changefeed": name, "namespace": namespace, "code": error.code, "error": str(error)}
                log.error("changefeed is not readable", extra=where)
        return infos

    def update(
        self,
        changefeed_id: str,
        change: Callable[[ChangefeedInfo], ChangefeedInfo],
        namespace: str = NAMESPACE_DEFAULT,
    ) -> ChangefeedInfo:
        """Replace it by ``change`` of what it is now, and return that; who comes second sees what the first wrote.

        Raises:
            ChangefeedNotFoundError: there is none.
            ConfigError: the result is not allowed.
            BusError: ZooKeeper failed.
        """
        while True:
            info, node_version = self._read(changefeed_id, namespace)
            changed = replace(change(info), changefeed_id=changefeed_id, namespace=namespace)
            load_changefeed(changed.sink_uri, changed.config)
            with self._session.requests("updating a changefeed") as client:
                path = self._paths.changefeed_info(namespace, changefeed_id)
                # Else another has written in between, or removed it: what is read next tells which.
                if replace_node(client, path, encode_info(changed), node_version) is not None:
                    return changed

    def remove(self, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT) -> None:
        """Delete its nodes, whatever they hold; its topics stay.

        Raises:
            ChangefeedNotFoundError: there is none.
            BusError: ZooKeeper failed.
        """
        path = self._paths.changefeed_info(namespace, changefeed_id)
        with self._session.requests("removing a changefeed") as client:
            if client.exists(path) is None:
                raise no_such_changefeed(changefeed_id, namespace)
            folder = path.rsplit("/", 1)[0]
            for tries_left in reversed(range(REMOVE_TRIES)):
                try:
                    _delete_whole(client, folder)
                    break
                except (NoNodeError, NotEmptyError):
                    if not tries_left:
                        raise
        log.info("changefeed removed", extra={"changefeed": changefeed_id})

    def _read(self, changefeed_id: str, namespace: str) -> tuple[ChangefeedInfo, int]:
        with self._session.requests("reading a changefeed") as client:
            try:
                node, stat = client.get(self._paths.changefeed_info(namespace, changefeed_id))
            except NoNodeError as error:
                raise no_such_changefeed(changefeed_id, namespace) from error
        info = decode_info(node)
        if (info.namespace, info.changefeed_id) != (namespace, changefeed_id):
            raise CorruptDataError("changefeed is another's", changefeed=changefeed_id, namespace=namespace)
        return info, int(stat.version)

    def _write_new(self, info: ChangefeedInfo, prologue: Prologue | None) -> None:
        name = info.namespace, info.changefeed_id
        path = self._paths.changefeed_info(*name)
        with self._session.requests("creating a changefeed") as client:
            try:
                if prologue is None:
                    client.create(path, encode_info(info), makepath=True)
                    return
                client.ensure_path(path.rsplit("/", 1)[0])
                transaction = client.transaction()  # nobody may see it without
                transaction.create(path, encode_info(info))
                transaction.create(self._paths.changefeed_prologue(*name), encode_prologue(prologue))
                for result in transaction.commit():
                    if isinstance(result, Exception) and not isinstance(result, RolledBackError):
                        raise result
            except NodeExistsError as error:
                raise ChangefeedExistsError(
                    "changefeed exists; take another --changefeed-id, or remove it first",
                    changefeed=info.changefeed_id,
                    namespace=info.namespace,
                ) from error


def info_of(request: ChangefeedRequest, start_ts: Ts) -> ChangefeedInfo:
    """Return what is stored of a request; one without an id is not stored yet."""
    return ChangefeedInfo(
        changefeed_id=request.changefeed_id or "",
        namespace=request.namespace,
        upstream=request.upstream,
        sink_uri=request.sink_uri,
        config=request.config,
        start_ts=start_ts,
        target_ts=request.target_ts,
        create_time=with_zone(
            datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"), request.time_zone
        ),
        creator_version=version("tidebus"),
        time_zone=request.time_zone,
        safe_until_ts=request.safe_until_ts,
        source_id=request.source_id,
    )


def request_of(info: ChangefeedInfo, start_ts: Ts) -> ChangefeedRequest:
    """Return what would have to be asked for to get this changefeed from another ts on."""
    return ChangefeedRequest(
        upstream=info.upstream,
        sink_uri=info.sink_uri,
        config=info.config,
        changefeed_id=info.changefeed_id,
        namespace=info.namespace,
        start_ts=start_ts,
        target_ts=info.target_ts,
        time_zone=info.time_zone,
    )


def _delete_whole(client: ZooKeeperClient, folder: str) -> None:
    """Delete a changefeed's nodes, all or none: what was left would be taken for that of a later one of its id.

    Raises:
        NoNodeError, NotEmptyError: nodes have come or gone since they were listed.
    """
    paths = [folder]
    for path in paths:  # grows: parents stand before their children
        paths.extend(f"{path}/{child}" for child in client.get_children(path))
    transaction = client.transaction()
    for path in reversed(paths):
        transaction.delete(path)
    results = transaction.commit()
    # Each result is True, or why it was not done: for all but one, that the transaction was not.
    for reason in (NoNodeError, NotEmptyError, Exception):
        for result in results:
            if isinstance(result, reason):
                raise result


def check_id(key: str, value: str) -> None:
    """Check an id by TiCDC's rule.

    Raises:
        ConfigError: not allowed.
    """
    if not is_id(value):
        raise ConfigError(
            f"{key} must be letters and digits in groups joined by single '-', at most {ID_CHARS_MAX} characters",
            key=key,
            value=value,
        )


def _start_ts(request: ChangefeedRequest, window: RetainedFrontier | None, prologue: Prologue | None) -> Ts:
    if window is None:
        raise NoFrontierError(
            "no frontier of this upstream has been published yet; start a capture and try again",
            upstream=request.upstream,
        )
    if request.start_ts is None:
        return window.newest_ts
    if request.start_ts < window.oldest_ts and prologue is None:
        raise StartTsError(
            f"start-ts is older than the raw log; the oldest possible start-ts is {window.oldest_ts}",
            start_ts=request.start_ts,
            oldest_ts=window.oldest_ts,
            newest_ts=window.newest_ts,
        )
    return request.start_ts


def no_such_changefeed(changefeed_id: str, namespace: str) -> ChangefeedNotFoundError:
    """Return the error for a changefeed that is not there."""
    return ChangefeedNotFoundError(
        "there is no such changefeed; `tidebus changefeed list` shows all",
        changefeed=changefeed_id,
        namespace=namespace,
    )
