"""The bus as the HTTP API sees it: ZooKeeper by the capture's session, the raw log in Kafka, PD's clock.

What the API changes of changefeeds are ZooKeeper's nodes, so any capture answers for all. Where tables are pulled only
the owner knows: such requests are passed on to it (:mod:`consumers.control.api.context`).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kazoo.exceptions import NoNodeError

from compose.capture.api.addresses import ApiAddresses
from compose.capture.api.key_range_rules import raw_keys
from compose.capture.api.lake_refusals import KnownRefusals
from compose.capture.api.resync_rules import check_backfill, check_resync
from compose.capture.api.upstream_pd import UpstreamPd
from compose.capture.api.upstream_tables import UpstreamTables
from compose.capture.prologue.start import OldHistory, check_prologue, held_history
from compose.changefeeds import check_eligible, check_resume_ts, create_changefeed, tables_body
from compose.foresight.destinations import destined
from compose.foresight.explain import as_json, explained, login_of, raw_log_schemas
from compose.foresight.first_messages import first_messages
from compose.log_lines import keep_recent_lines
from compose.operator.doctor import examine, examine_raw_log, examine_upstream
from compose.operator.node_texts import shown_nodes
from compose.operator.proofs import newest_proofs
from compose.operator.upstream_repair import delete_safe_point, resolve_region
from compose.sink_check import check_other_cluster, check_sink
from consumers.control.api.access.errors import ApiError
from consumers.control.api.backend import Scheduling, UpstreamView
from consumers.control.api.bodies import FeedRequest, StoredFeed
from consumers.control.api.errors import NotReadyError
from consumers.control.api.metrics import MetricsSnapshot, Pull
from consumers.control.changefeeds.asked_images import AskedImages
from consumers.control.changefeeds.feed_nodes import APPLIED, INFO, PROLOGUE, STATUS, FeedNodes
from consumers.control.changefeeds.image_requests import (
    ImageRefusedError,
    check_mode,
    pause_images,
    request_images,
    request_range,
    resume_images,
)
from consumers.control.changefeeds.pins import pin_changefeed
from consumers.control.changefeeds.processor_nodes import Share, decode_shares
from consumers.control.changefeeds.service_nodes import ServiceNodes, StoredServices
from consumers.control.changefeeds.store import ChangefeedRequest, info_of, no_such_changefeed, request_of
from consumers.control.changefeeds.verbs import ChangefeedControl, ConfigChange, configured, feed_of, state_of
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures
from consumers.control.cluster.election import Election
from consumers.control.log.raw_log import retained_frontier
from consumers.control.owner.figures.owner_figures import Rule
from consumers.control.owner.figures.service_figures import RunningService, running_services
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.schemes import is_lake_scheme, sink_scheme
from schemas.ddl.schema_change import StoredTable
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId, RegionId, TableId, Ts, UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.rawlog.images import ImageMode
from schemas.rawlog.topics import raw_topics
from schemas.tidb.table_name import table_named

log = logging.getLogger(__name__)


class ApiBackend:
    """For one ZooKeeper session of a capture; :meth:`close` ends what it holds."""

    def __init__(
        self,
        session: Session,
        capture: CaptureInfo,
        addresses: ApiAddresses,
        is_stopping: Callable[[], bool],
        pull: Callable[[], Pull | None] = lambda: None,
        scheduling: Callable[[], Scheduling | None] = lambda: None,
        rule: Callable[[], Rule | None] = lambda: None,
    ) -> None:
        """``pull`` tells what this capture pulls, ``scheduling`` what it can do as owner and ``rule`` what it knows
        then; all are called from any thread.
        """
        paths = ZkPaths(addresses.cluster)
        self.capture, self.cluster, self.is_stopping = capture, addresses.cluster, is_stopping
        self._session, self._paths, self._addresses = session, paths, addresses
        self._pull, self._rule, self.scheduling = pull, rule, scheduling
        self._tables, self._refusals = UpstreamTables(addresses.kafka), KnownRefusals()
        self._recent_lines = keep_recent_lines()
        self._services = ServiceNodes(session, paths)
        self._control = ChangefeedControl(session, paths)
        self._stored = FeedNodes(session, paths, (INFO, STATUS, APPLIED, PROLOGUE))
        self._election = Election(session, paths, capture.capture_id)
        self._pd = UpstreamPd(addresses.pd, addresses.tls)

    def close(self) -> None:
        """Close the connection to PD, and hear of changefeeds and services no more."""
        self._stored.close()
        self._services.close()
        self._pd.close()

    def owner(self) -> CaptureId | None:
        return self._election.owner()

    def captures(self) -> Sequence[CaptureInfo]:
        return list_captures(self._session, self._paths)

    def settings(self) -> Mapping[str, object]:
        return self._addresses.settings

    def upstreams(self) -> Sequence[UpstreamView]:
        folder = f"{self._paths.root}/upstreams"
        views = []
        with self._session.requests("reading the upstreams") as client:
            try:
                names = sorted(client.get_children(folder))
            except NoNodeError:
                return []
            for name in names:
                with contextlib.suppress(NoNodeError, ValueError):  # gone, or of a version that writes another form
                    status = read_json(client.get(f"{folder}/{name}")[0])
                    views.append(UpstreamView(upstream=UpstreamId(name), status=status))
        return views

    def upstream_id(self, upstream: UpstreamId) -> int:
        return self._pd.shown_cluster_id() if upstream == self._addresses.upstream else 0

    def now_ts(self) -> Ts:
        return self._pd.client().now()

    def feeds(self, namespace: str) -> Sequence[StoredFeed]:
        return [feed for feed in self.all_feeds() if feed.info.namespace == namespace]

    def all_feeds(self) -> Sequence[StoredFeed]:
        return self._stored.readable(is_exact=True)

    def feed_tables(self, feed: StoredFeed) -> Collection[TableId]:
        return self._tables.of(feed)

    def processor_shares(self, feed: StoredFeed) -> Sequence[Share]:
        path = self._paths.changefeed_processors(feed.info.namespace, feed.info.changefeed_id)
        with self._session.requests("reading who applies what") as client:
            try:
                return decode_shares(client.get(path)[0])
            except NoNodeError:
                return []
            except CorruptDataError as error:  # others' are shown all the same; its leader's next word mends it
                log.error(
                    "who applies what is not readable", extra={"path": path, "code": error.code, "error": str(error)}
                )
                return []

    def sorter(self, changefeed_id: str, namespace: str) -> Mapping[str, object] | None:
        with self._session.requests("looking for a sorter") as client:
            try:
                node = read_json(client.get(self._paths.changefeed_sorter(namespace, changefeed_id))[0])
            except (NoNodeError, ValueError):
                return None
        return node if isinstance(node, dict) else None

    def services(self) -> StoredServices:
        return self._services.read()

    def pin(self, changefeed_id: str, namespace: str, service: str) -> None:
        pin_changefeed(self._session, self._paths, (namespace, changefeed_id), service)

    def request_images(
        self,
        changefeed_id: str,
        namespace: str,
        mode: ImageMode,
        tables: Sequence[str],
        key_range: str | None = None,
    ) -> Sequence[TableId]:
        feed = self.feed(changefeed_id, namespace)
        check_mode(mode, feed.info.sink_uri)
        stored = self._named(feed, tables)
        if mode is ImageMode.RESYNC:
            check_resync(feed.info, stored, is_part=key_range is not None)
        else:
            check_backfill(feed.info, stored)
        ids = _physical_ids(stored)
        if key_range is not None:
            if len(stored) > 1:
                raise ImageRefusedError("a range of keys is of one table", changefeed=changefeed_id, tables=len(stored))
            keys = raw_keys(feed.info, mode, stored[0], key_range)
            request_range(self._session, self._paths, (namespace, changefeed_id), mode, ids[0], keys)
            return ids
        request_images(self._session, self._paths, (namespace, changefeed_id), mode, ids)
        return ids

    def pause_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        ids = _physical_ids(self._named(self.feed(changefeed_id, namespace), tables))
        return pause_images(self._session, self._paths, (namespace, changefeed_id), ids)

    def resume_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        ids = _physical_ids(self._named(self.feed(changefeed_id, namespace), tables))
        return resume_images(self._session, self._paths, (namespace, changefeed_id), ids)

    def _named(self, feed: StoredFeed, tables: Sequence[str]) -> list[StoredTable]:
        """Return tables of a changefeed by their names."""
        if not tables:
            return []
        stored = {(table.schema, table.table): table for table in self._tables.stored(feed)}
        try:
            return [stored[table_named(stored, name, "the changefeed")] for name in tables]
        except ValueError as error:
            raise ApiError(str(error), changefeed=feed.info.changefeed_id) from error

    def refused_tables(self, feed: StoredFeed) -> Sequence[Mapping[str, str]]:
        if not is_lake_scheme(sink_scheme(feed.info.sink_uri)):
            return []
        tables = self._tables.now(feed.info.upstream)
        return [asdict(refused) for refused in self._refusals.among(feed.info, tables)]

    def proofs(self, feed: StoredFeed, records_max: int) -> Sequence[Mapping[str, object]]:
        return newest_proofs(self._addresses.kafka, feed.info, records_max)

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed:
        view = self._stored.refresh(is_exact=True).get((namespace, changefeed_id))
        if view is None:
            raise no_such_changefeed(changefeed_id, namespace)
        return view.stored()

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        self.check_upstream(request.pd_addresses)
        safe_until_ts = Ts(0)
        if request.start_ts is not None:
            safe_until_ts = self._pd.check_not_ahead("start-ts", request.start_ts)
        wanted = ChangefeedRequest(
            upstream=self._addresses.upstream,
            sink_uri=request.sink_uri or "",
            config=request.config or {},
            changefeed_id=request.changefeed_id,
            namespace=namespace,
            start_ts=request.start_ts,
            target_ts=request.target_ts,
            time_zone=self._addresses.time_zone,
            safe_until_ts=safe_until_ts,
            source_id=self._pd.source_id(request.sink_uri or ""),
        )
        addresses = self._addresses
        config = load_changefeed(wanted.sink_uri, wanted.config)
        with self._older(request.start_ts, config) as older:
            check_eligible(addresses.kafka, wanted, older)
            if addresses.tries_sinks:
                self._try_sink(info_of(wanted, request.start_ts or Ts(0)))
            return create_changefeed(addresses.kafka, addresses.zookeeper, self.cluster, wanted, older=older)

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo:
        imaged: Sequence[TableId] = ()
        if change.sink_uri is not None or change.config is not None:
            store = self._control.store
            info, status = store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)
            wanted = configured(info, state_of(info, status), change)
            checkpoint_ts = feed_of(info, status).checkpoint_ts
            check_eligible(self._addresses.kafka, request_of(wanted, checkpoint_ts))
            if self._addresses.tries_sinks:
                self._try_sink(wanted)
            imaged = self._tables.coming_in(info, wanted)
        return self._control.configure(changefeed_id, change, namespace, imaged=imaged)

    def pause(self, changefeed_id: str, namespace: str) -> None:
        self._control.pause(changefeed_id, namespace)

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None:
        info = self._control.store.get(changefeed_id, namespace)
        safe_until_ts: Ts | None = None
        if overwrite_checkpoint_ts is not None:
            safe_until_ts = self._pd.check_not_ahead("overwrite-checkpoint-ts", overwrite_checkpoint_ts)
            check_resume_ts(self._addresses.kafka, info.upstream, overwrite_checkpoint_ts)
        if self._addresses.tries_sinks:
            check_other_cluster(info, self._pd.cluster_id)
        self._control.resume(
            changefeed_id,
            namespace,
            overwrite_checkpoint_ts=overwrite_checkpoint_ts,
            safe_until_ts=safe_until_ts,
            source_id=self._pd.source_id(info.sink_uri),
        )

    def remove(self, changefeed_id: str, namespace: str) -> None:
        self._control.remove(changefeed_id, namespace)

    def tables(self, request: FeedRequest) -> dict[str, Any]:
        self.check_upstream(request.pd_addresses)
        if request.sink_uri is None:
            raise ApiError("sink_uri is empty; its parameters belong to the settings", key="sink_uri")
        config = load_changefeed(request.sink_uri, request.config)
        with self._older(request.start_ts, config) as older:
            return tables_body(self._addresses.kafka, self._addresses.upstream, config, request.start_ts, older)

    def table_names(self, names_max: int) -> dict[str, Any]:
        return self._tables.names(self._addresses.upstream, names_max)

    def explain(self, request: FeedRequest) -> dict[str, object]:
        addresses = self._addresses
        config = load_changefeed(request.sink_uri or "", request.config)
        if not config.uri.brokers:
            return as_json(destined(config, *raw_log_schemas(addresses.kafka, addresses.upstream, request.start_ts)))
        # The answer is made of settings without secrets. A sink whose secrets are not here is left to who has them.
        login = login_of(request.sink_uri or "", request.config) if addresses.tries_sinks else None
        schemas, at = raw_log_schemas(addresses.kafka, addresses.upstream, request.start_ts)
        return as_json(explained(config, schemas, at, login=login))

    def first_messages(self, request: FeedRequest) -> dict[str, object]:
        config = load_changefeed(request.sink_uri or "", request.config)
        config = replace(config, time_zone=self._addresses.time_zone)
        return first_messages(self._addresses.kafka, self._addresses.upstream, config, request.start_ts)

    def log_lines(self) -> Sequence[Mapping[str, object]]:
        return self._recent_lines.lines()

    def checks(self) -> Sequence[Mapping[str, object]]:
        addresses = self._addresses
        findings = [
            *examine(Path()),
            *examine_upstream(addresses.pd, addresses.tls),
            *examine_raw_log(addresses.kafka, addresses.upstream),
        ]
        return [asdict(finding) for finding in findings]

    def check_upstream(self, pd_addresses: Sequence[str]) -> None:
        ours = {_bare(address) for address in self._addresses.pd.split(",")}
        if pd_addresses and not ours & {_bare(address) for address in pd_addresses}:
            raise ApiError(
                "this bus pulls another upstream; leave pd_addrs away", key="pd_addrs", ours=self._addresses.pd
            )

    def metadata(self) -> Sequence[tuple[str, str]]:
        return shown_nodes(self._session, self._paths.root)

    def resolve_lock(self, region: RegionId, ts: Ts | None) -> Mapping[str, object]:
        return resolve_region(self._addresses.pd, self._addresses.tls, region, ts)

    def delete_service_gc_safepoint(self) -> str:
        addresses = self._addresses
        return delete_safe_point(addresses.pd, addresses.tls, addresses.cluster, addresses.upstream)

    def metrics(self) -> MetricsSnapshot:
        rule, feeds = self._rule(), None
        services: Sequence[RunningService] = ()
        if rule is not None:
            try:
                feeds, services = self.all_feeds(), running_services(self.services(), self.captures())
            except BusError as error:
                log.warning("changefeeds cannot be read for the metrics", extra={"error": str(error)})
        return MetricsSnapshot(at_s=time.time(), pull=self._pull(), rule=rule, feeds=feeds, services=services)

    def check_health(self) -> None:
        self._session.check_lease()
        if self.owner() is None:
            raise NotReadyError("no capture has been elected owner")

    def _try_sink(self, info: ChangefeedInfo) -> None:
        check_sink(info, self._pd.cluster_id)

    def _older(self, start_ts: Ts | None, config: ChangefeedConfig) -> AbstractContextManager[OldHistory | None]:
        addresses = self._addresses
        window = retained_frontier(addresses.kafka, raw_topics(addresses.upstream)) if start_ts else None
        if not start_ts or window is None or start_ts >= window.oldest_ts:
            return contextlib.nullcontext()
        check_prologue(config, start_ts, window, self._services.read())
        return held_history(self._pd.client(), self.cluster, start_ts, window)


def _physical_ids(tables: Sequence[StoredTable]) -> list[TableId]:
    return sorted({table for stored in tables for table in stored.physical_ids})


def _bare(address: str) -> str:
    return address.strip().rpartition("://")[2].rstrip("/")
