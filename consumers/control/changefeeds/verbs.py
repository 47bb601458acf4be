"""What a user does to a changefeed that there is: pause, resume, remove, update. CLI and API come through here.

Which of it a state allows is decided by :mod:`consumers.control.core.changefeeds.state`; this shell reads the two
nodes and how far the changefeed's sorter service is, takes one step and writes both nodes in one transaction, on the
condition that nobody has written them since. The owner and the sorter notice by the version of ``info``, and find the
checkpoint in ``status``.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError

from consumers.control.changefeeds.asked_images import NOTHING_ASKED, decode_asked, encode_asked
from consumers.control.changefeeds.config_change import UPDATABLE as UPDATABLE  # callers of the verbs have it from here
from consumers.control.changefeeds.config_change import ConfigChange as ConfigChange
from consumers.control.changefeeds.config_change import UpdateRefusedError as UpdateRefusedError
from consumers.control.changefeeds.config_change import configured as configured
from consumers.control.changefeeds.image_requests import asked_for
from consumers.control.changefeeds.kept_settings import readable_part
from consumers.control.changefeeds.service_nodes import read_services
from consumers.control.changefeeds.store import ChangefeedNotFoundError, ChangefeedStore
from consumers.control.core.changefeeds.errors import FeedError, needs_checkpoint
from consumers.control.core.changefeeds.lives import in_new_life
from consumers.control.core.changefeeds.state import Feed, Pause, RemoveFeed, Resume, step
from edges.secrets import SecretKeyError, decode_info, encode_info
from edges.zookeeper.client import Transaction, ZooKeeperClient
from edges.zookeeper.nodes import read_node
from edges.zookeeper.progress import read_entries
from edges.zookeeper.session import Session, ZooKeeperError
from schemas.config.changefeed import load_changefeed
from schemas.errors import Action, BusError, ConfigError, CorruptDataError, decoding
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import (
    NAMESPACE_DEFAULT,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
    status_of,
)
from schemas.nodes.changefeed import state_of as state_of  # callers of the verbs have it from here
from schemas.nodes.prologue import decode_prologue
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedName, with_progress
from schemas.rawlog.images import ImageMode
from schemas.sink.topic import names_by_life

log = logging.getLogger(__name__)


class ResumeRefusedError(BusError):
    """The changefeed does not go on from where it stands: say from which checkpoint."""

    code, action = "changefeed.resume_refused", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class _Stored:
    """A changefeed as it was read."""

    info: ChangefeedInfo
    info_version: int
    created_zxid: int
    status: ChangefeedStatus | None
    """With what its sorter service says of how far it is."""
    status_version: int | None
    """None: there is no such node."""


def feed_of(info: ChangefeedInfo, status: ChangefeedStatus | None) -> Feed:
    """Return what the state machine knows of a stored changefeed."""
    error = status.error if status else None
    return Feed(
        state=state_of(info, status),
        checkpoint_ts=max(status.checkpoint_ts, info.start_ts) if status else info.start_ts,
        resolved_ts=max(status.resolved_ts, info.start_ts) if status else info.start_ts,
        start_ts=info.start_ts,
        target_ts=info.target_ts,
        epoch=info.epoch,
        error=FeedError(code=error.code, message=error.message, time=error.time, ddl=error.ddl) if error else None,
    )


class ChangefeedControl:
    """Changes changefeeds of one cluster."""

    def __init__(self, session: Session, paths: ZkPaths) -> None:
        self._session, self._paths = session, paths
        self.store = ChangefeedStore(session, paths)

    def pause(self, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT) -> Feed:
        """Stop it after its batch; one that does not run stays as it is.

        Raises:
            ChangefeedNotFoundError: there is none.
            BusError: ZooKeeper failed.
        """
        return self._take(changefeed_id, namespace, Pause())

    def resume(
        self,
        changefeed_id: str,
        namespace: str = NAMESPACE_DEFAULT,
        *,
        overwrite_checkpoint_ts: Ts | None = None,
        safe_until_ts: Ts | None = None,
        source_id: int | None = None,
    ) -> Feed:
        """Let it go on, from its checkpoint or another; one that runs stays as it is.

        Whether the raw log reaches back to another checkpoint is for the caller to check. ``safe_until_ts``: up to
        which ts a database may have the rows above that checkpoint already. ``source_id``: the upstream's now.

        Raises:
            ChangefeedNotFoundError: there is none.
            ConfigError: the checkpoint is not below its target-ts.
            ResumeRefusedError: after what it has failed with it needs another checkpoint; or it had this one before,
                which a sorter service of an older version does not tell apart.
            BusError: ZooKeeper failed.
        """
        return self._take(changefeed_id, namespace, Resume(overwrite_checkpoint_ts), safe_until_ts, source_id)

    def remove(self, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT) -> Feed | None:
        """Delete its nodes, also where nobody can read them (None is returned then); its topics stay.

        Raises:
            ChangefeedNotFoundError: there is none.
            BusError: ZooKeeper failed.
        """
        try:
            return self._take(changefeed_id, namespace, RemoveFeed())
        except (CorruptDataError, SecretKeyError) as error:
            extra = {"changefeed": changefeed_id, "namespace": namespace, "code": error.code, "error": str(error)}
            log.warning("changefeed that cannot be read is removed", extra=extra)
            self.store.remove(changefeed_id, namespace)
            return None

    def configure(
        self,
        changefeed_id: str,
        change: ConfigChange,
        namespace: str = NAMESPACE_DEFAULT,
        *,
        imaged: Collection[TableId] = (),
    ) -> ChangefeedInfo:
        """Change settings of a stopped or failed changefeed; it stays stopped or failed.

        Args:
            changefeed_id, namespace: whose.
            change: of which settings.
            imaged: physical tables that come in with rows, whose images are asked for in the same breath.

        Raises:
            ChangefeedNotFoundError: there is none.
            UpdateRefusedError: it runs or has finished, the settings are what they were, or `initial` is another; or
                the filter is, while the changefeed has its prologue to run.
            ImageRefusedError: too many images are asked for at once.
            ConfigError: the result is not allowed.
            BusError: ZooKeeper failed.
        """
        while True:
            stored = self._read(changefeed_id, namespace)
            info, status = stored.info, stored.status
            changed = configured(info, state_of(info, status), change)
            self._check_prologue(info, changed, info.start_ts if status is None else status.checkpoint_ts)
            if (changed.sink_uri, changed.config) != (info.sink_uri, info.config):
                # A cut under the former settings may still run; what it wrote is not where these send rows.
                status = replace(status or _status_of(feed_of(info, None)), set_epoch=info.epoch)
            if self._write(stored, changed, status, imaged):
                return changed

    def _check_prologue(self, info: ChangefeedInfo, changed: ChangefeedInfo, checkpoint_ts: Ts) -> None:
        """Let no table come in whose changes a prologue under way does not hold."""
        path = self._paths.changefeed_prologue(info.namespace, info.changefeed_id)
        with self._session.requests("reading a prologue") as client:
            node = read_node(client, path)
        prologue = None if node is None else decode_prologue(node[0])
        if prologue is None or checkpoint_ts >= prologue.end_ts:
            return
        after = load_changefeed(changed.sink_uri, changed.config)
        _, before = readable_part(info) or (None, None)
        if not before or (before.filter.rules, before.case_sensitive) != (after.filter.rules, after.case_sensitive):
            raise UpdateRefusedError(
                "the filter stays until the changefeed has passed the ts at which the raw log takes over: what was "
                "before is read from TiKV for the tables of its filter alone",
                changefeed=info.changefeed_id,
                checkpoint_ts=checkpoint_ts,
                end_ts=prologue.end_ts,
            )

    def _take(
        self,
        changefeed_id: str,
        namespace: str,
        message: Pause | Resume | RemoveFeed,
        safe_until_ts: Ts | None = None,
        source_id: int | None = None,
    ) -> Feed:
        while True:
            stored = self._read(changefeed_id, namespace)
            info, status = stored.info, stored.status
            before = feed_of(info, status)
            _check_proof(changefeed_id, before, message)
            feed = step(before, message)
            if feed.state == "removed" != before.state:
                self.store.remove(changefeed_id, namespace)
                return feed
            if feed == before:
                log.info("changefeed stays as it is", extra={"changefeed": changefeed_id, "state": feed.state})
                return feed
            _check_target(feed)
            is_overwritten = isinstance(message, Resume) and message.overwrite_checkpoint_ts is not None
            lived = in_new_life(info, feed.start_ts, feed.epoch) if is_overwritten else info
            if lived.life_epoch != info.life_epoch:
                self._check_life(lived)
            changed = replace(
                lived,
                desired_state="stopped" if feed.state == "stopped" else "normal",
                epoch=feed.epoch,
                safe_until_ts=max(info.safe_until_ts, safe_until_ts or Ts(0)),
                source_id=info.source_id if source_id is None else source_id,
            )
            # Who pauses leaves the status to the sorter, which is about to end a cut, and to the owner.
            shown = None if status is None or feed.state == "stopped" else _resumed(status, feed)
            if is_overwritten:
                shown = replace(shown or _status_of(feed), set_epoch=feed.epoch)
            if self._write(stored, changed, shown):
                extra = {"changefeed": changefeed_id, "state": feed.state, "checkpoint_ts": feed.checkpoint_ts}
                log.info("changefeed changed its state", extra=extra)
                return feed

    def _check_life(self, info: ChangefeedInfo) -> None:
        """Let no version run a life that would take it for the one that began at the same ts."""
        if not info.life_epoch or not names_by_life(info.sink_uri):
            return
        with self._session.requests("looking for older sorter services") as client:
            services = read_services(client, ServicePaths(self._paths))
        old = sorted(service.service for service in services if not service.knows_lives)
        if old:
            raise ResumeRefusedError(
                "the changefeed has begun at this ts before, and a sorter service of an older version, which would go "
                "on with what it wrote then, is there: end the upgrade first, or take another overwrite-checkpoint-ts "
                "(one below will do)",
                changefeed=info.changefeed_id,
                overwrite_checkpoint_ts=info.start_ts,
                services=", ".join(old),
            )

    def _read(self, changefeed_id: str, namespace: str) -> _Stored:
        with self._session.requests("reading a changefeed") as client:
            entries = read_entries(client, self._paths)
            try:
                node, stat = client.get(self._paths.changefeed_info(namespace, changefeed_id))
            except NoNodeError as error:
                raise ChangefeedNotFoundError(
                    "there is no such changefeed; `tidebus changefeed list` shows all",
                    changefeed=changefeed_id,
                    namespace=namespace,
                ) from error
            info, created_zxid = decode_info(node), int(stat.czxid)
            status_node = read_node(client, self._paths.changefeed_status(namespace, changefeed_id))
        written = None if status_node is None else status_of(decode_changefeed_status(status_node[0]), created_zxid)
        status = with_progress(written, entries.get(((namespace, changefeed_id), created_zxid)))
        status_version = None if status_node is None else int(status_node[1].version)
        return _Stored(info, int(stat.version), created_zxid, status, status_version)

    def _write(
        self,
        stored: _Stored,
        info: ChangefeedInfo,
        status: ChangefeedStatus | None,
        imaged: Collection[TableId] = (),
    ) -> bool:
        """Write both nodes (``status`` None: it stays), and ask for images; False: another has written since they were
        read.
        """
        namespace, changefeed_id = info.namespace, info.changefeed_id
        with self._session.requests("changing a changefeed") as client:
            images = self._asking(client, (namespace, changefeed_id), imaged) if imaged else None
            transaction = client.transaction()
            path = self._paths.changefeed_info(namespace, changefeed_id)
            transaction.set_data(path, encode_info(info), stored.info_version)
            path = self._paths.changefeed_status(namespace, changefeed_id)
            if status is not None:
                node = encode_changefeed_status(replace(status, created_zxid=stored.created_zxid))
                if stored.status_version is None:
                    transaction.create(path, node)
                else:
                    transaction.set_data(path, node, stored.status_version)
            elif stored.status_version is not None:
                transaction.check(path, stored.status_version)
            if images is not None:
                images(transaction)
            results = transaction.commit()
        errors = [result for result in results if isinstance(result, KazooException)]
        if any(isinstance(error, BadVersionError | NoNodeError | NodeExistsError) for error in errors):
            return False
        for error in errors:
            if not isinstance(error, RolledBackError):
                raise ZooKeeperError("a changefeed's nodes could not be written", reason=repr(error))
        return not errors

    def _asking(
        self, client: ZooKeeperClient, name: FeedName, tables: Collection[TableId]
    ) -> Callable[[Transaction], None]:
        """Return what adds requests for images to a transaction, on the condition that nobody asks meanwhile."""
        path = self._paths.changefeed_images(*name)
        node = read_node(client, path)
        with decoding(path=path):
            before = NOTHING_ASKED if node is None else decode_asked(node[0])
        value = encode_asked(asked_for(before, name, ImageMode.BACKFILL, tables))
        if node is None:
            return lambda transaction: transaction.create(path, value)
        version = int(node[1].version)
        return lambda transaction: transaction.set_data(path, value, version)


def _check_proof(changefeed_id: str, feed: Feed, message: Pause | Resume | RemoveFeed) -> None:
    """Let nobody pass unproven by mistake what a proof has found wrong."""
    if not (isinstance(message, Resume) and message.overwrite_checkpoint_ts is None and feed.state == "failed"):
        return
    if feed.error is not None and needs_checkpoint(feed.error):
        raise ResumeRefusedError(
            "what it has failed with would be passed unproven: resume with overwrite-checkpoint-ts, at or below the "
            "after_ts that the error names (if it names one) and the checkpoint",
            changefeed=changefeed_id,
            checkpoint_ts=feed.checkpoint_ts,
            error=feed.error.message,
        )


def _check_target(feed: Feed) -> None:
    if feed.target_ts is not None and feed.runs and feed.start_ts >= feed.target_ts:
        raise ConfigError(
            "overwrite-checkpoint-ts must be below the changefeed's target-ts",
            key="overwrite-checkpoint-ts",
            checkpoint_ts=feed.start_ts,
            target_ts=feed.target_ts,
        )


def _status_of(feed: Feed) -> ChangefeedStatus:
    """Return the status of a changefeed that has none yet."""
    return ChangefeedStatus(state=feed.state, checkpoint_ts=feed.checkpoint_ts, resolved_ts=feed.resolved_ts)


def _resumed(status: ChangefeedStatus, feed: Feed) -> ChangefeedStatus:
    return replace(
        status,
        state=feed.state,
        error=None,
        failure=None,
        sorter_deaths=0,
        checkpoint_ts=feed.checkpoint_ts,
        resolved_ts=feed.resolved_ts,
    )
