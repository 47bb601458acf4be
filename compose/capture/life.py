"""One life of a capture: it pulls its share of an upstream, and owns the upstream when it is elected.

    ZooKeeper: registered --campaign--> owner of revision n           (consumers.control.owner.owner_loop)
    every capture:  agent --assign, remove--> puller --rows--> raw log
                    agent --landing report--> owner --frontier record--> agent

A capture that loses its session, or whose parts fail in a way that may heal, stops landing and starts anew under a new
id; the frontier says where its spans go on, here or elsewhere. One that had been stopped for a while (SIGSTOP) finds
its lease over at the first record that it would send, and at the first tick.

**Leaving** (SIGTERM): an owner resigns, the owner moves the capture's spans away, and it goes when it has none: at once
when nobody else stays, and after a bounded time, or a second signal, in any case.
"""

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from compose.capture.first_failure import FirstFailure
from compose.capture.image_rules import image_wishes
from compose.capture.processor_home import ProcessorHome
from compose.capture.prologue.prologues import Prologues
from compose.capture.pulled_upstream import PulledUpstream
from compose.capture.puller_figures import PullerFigures
from compose.capture.replicated_tables import replicated_tables
from compose.capture.settings.options import CaptureOptions
from compose.capture.sorters import assigner, bus_addresses
from compose.peers import open_peers
from compose.stack.children import TIDEBUS, Nursery
from consumers.control.cluster.capture_registry import CaptureInfo, CaptureWatch, mark_stopping, register_capture
from consumers.control.cluster.election import Election
from consumers.control.cluster.puller_agent import PullerAgent
from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.cluster.schema_memory import SchemaMemoryNode
from consumers.control.cluster.upstream_node import UpstreamNode
from consumers.control.fleets.processor_fleet import ProcessorFleet
from consumers.control.fleets.service_fleet import ServiceFleet
from consumers.control.fleets.settings import BY_HAND
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.log.log_watch import check_topics
from consumers.control.owner.owner_loop import OwnerLoop, OwnerParts
from consumers.control.owner.reign_orders import ReignOrders
from consumers.control.peers.grpc_peers import GrpcPeers
from consumers.control.peers.interface import Peers, upstream_feed
from edges.zookeeper.acl import close_nodes
from edges.zookeeper.session import Session
from edges.zookeeper.session_file import SessionFile
from producers.pull.landing.raw_log import ensure_raw_topics
from producers.pull.puller import STOP_FLUSH_S, Puller
from schemas.errors import Action, BusError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topic_settings import Complaint
from schemas.rawlog.topics import raw_topics

if TYPE_CHECKING:
    from consumers.control.api.metrics import Pull
    from consumers.control.api.serving.server import ApiServer
    from consumers.control.owner.figures.owner_figures import Rule

log = logging.getLogger(__name__)

VERSION: Final = version("tidebus")


class Capture:
    """One life: a ZooKeeper session and an id."""

    def __init__(
        self,
        options: CaptureOptions,
        stopping: threading.Event,
        api: "ApiServer | None" = None,
        at_once: threading.Event | None = None,
        services: ServiceFleet | None = None,
        sessions: SessionFile | None = None,
        warned: set[Complaint] | None = None,
    ) -> None:
        """``stopping``: hand over and leave. ``at_once``: leave. ``services``: the sorter services of this process.
        ``sessions``: where its sessions are noted. ``warned``: what its lives have said of raw topics.
        """
        self._sessions, self._warned = sessions, set[Complaint]() if warned is None else warned
        self._options, self._stopping, self._api = options, stopping, api
        self._at_once, self._services = at_once or threading.Event(), services
        self.capture_id = CaptureId(str(uuid.uuid4()))
        self.registered, self._paths = False, ZkPaths(options.cluster)
        self._settings = replace(options.puller, cluster=options.cluster, keep_safe_point=False)
        self._failed = FirstFailure()
        self._puller: Puller | None = None
        self._owner: OwnerLoop | None = None
        self._processors: ProcessorFleet | None = None

    def serve(self) -> None:
        """Register, pull what owners say, own the upstream when elected; return when ``stopping`` was set.

        Raises:
            BusError: whatever ended it.
        """
        options, paths = self._options, self._paths
        with contextlib.ExitStack() as stack:
            if self._sessions is not None:
                self._sessions.end_former(options.zookeeper, options.session_timeout_s)
                stack.callback(self._sessions.forget)  # after the session's end
            session = stack.enter_context(Session(options.zookeeper, timeout_s=options.session_timeout_s))
            if self._sessions is not None:
                self._sessions.note(options.zookeeper, session.client)
            peers = stack.enter_context(contextlib.closing(self._peers()))
            info = self._info(peers)
            register_capture(session, paths, info)
            closed = close_nodes(session, options.zookeeper, paths.root)
            if closed:
                log.warning("nodes that everybody could write are closed now", extra={"nodes": closed})
            self.registered = True
            if self._api is not None:
                stack.enter_context(self._served(self._api, session, info))
            log.info("capture registered", extra={"capture": self.capture_id, "cluster": options.cluster})
            try:
                watch = CaptureWatch(session, paths, lambda captures: peers.resolve(_peer_addresses(captures)))
                stack.callback(watch.close)
                if self._services is not None:
                    stack.enter_context(self._services.attached(session))
                election = Election(session, paths, self.capture_id)
                agent = self._begin_pulling(stack, session, peers, election)
                parts = self._owner_parts(session, peers, watch, election)
                self._owner = owner = OwnerLoop(parts, options.reign, self._failed.set, self._stopping.is_set)
                stack.callback(owner.close)
                owner.start()
                self._begin_processors(stack, session, peers)
                self._work(agent, parts, owner, info)
            except BusError as error:
                if error.action is not Action.RETRY:
                    self._write_failure(session, error)
                raise

    def _begin_pulling(
        self,
        stack: contextlib.ExitStack,
        session: Session,
        peers: Peers,
        election: Election,
    ) -> PullerAgent:
        options, feed = self._options, upstream_feed(self._options.upstream)
        topics = raw_topics(options.upstream, self._settings.topic_prefix)
        # Whoever is registered hears of every owner from then on: those before it are not obeyed.
        revision = election.revision()
        ensure_raw_topics(options.kafka, topics, self._settings.raw_log)
        check_topics(options.kafka, topics, self._warned)
        with contextlib.closing(FrontierTopic(options.kafka, topics.frontier)) as frontier:
            record = frontier.newest()
        self._puller = puller = Puller(
            capture=self.capture_id,
            upstream=options.upstream,
            pd_address=options.pd,
            kafka=options.kafka,
            schema_registry=options.schema_registry,
            frontier=record,
            on_fatal=self._failed.set,
            settings=self._settings,
            may_land=lambda: session.lease_left_s() > 0,
            schema_memory=SchemaMemoryNode(session, self._paths, options.upstream, options.schema_registry.url),
        )
        stack.callback(lambda: puller.stop(flush_s=STOP_FLUSH_S if session.lease_left_s() > 0 else 0.0))
        puller.start()
        return PullerAgent(
            self.capture_id,
            VERSION,
            revision,
            PullerExecutor(puller, record),
            peers,
            feed,
            new_epoch=lambda: str(uuid.uuid4()),
            figures=PullerFigures(puller.stats),
        )

    def _owner_parts(self, session: Session, peers: Peers, watch: CaptureWatch, election: Election) -> OwnerParts:
        options, on_failure = self._options, self._failed.set
        assert self._puller is not None
        return OwnerParts(
            capture=self.capture_id,
            version=VERSION,
            session=session,
            election=election,
            node=UpstreamNode(session, self._paths, options.upstream),
            peers=peers,
            feed=upstream_feed(options.upstream),
            watch=watch,
            puller=self._puller,
            upstream=PulledUpstream(options, self._settings, on_failure),
            replicated=replicated_tables,
            sorters=assigner(options, session, watch, on_failure),
            image_wishes=lambda: image_wishes(options, session, on_failure),
            prologues=lambda: Prologues(options, self._settings, session, on_failure),
        )

    def _begin_processors(self, stack: contextlib.ExitStack, session: Session, peers: Peers) -> None:
        options = self._options
        if options.sorters.master == BY_HAND:
            return
        home = ProcessorHome(
            capture=self.capture_id,
            peer_host=options.peer_addr.rpartition(":")[0],
            advertise_peer_host=peers.address.rpartition(":")[0],
            tls=options.puller.tls,
            cluster_secret_file=options.cluster_secret_file,
        )
        fleet = ProcessorFleet(
            session,
            self._paths,
            bus_addresses(options, options.processor_kafka),
            Nursery(),
            TIDEBUS,
            home.arguments(),
            options.sorters.data_dir,
            on_fatal=self._failed.set,
        )
        self._processors = stack.enter_context(fleet)

    def _work(self, agent: PullerAgent, parts: OwnerParts, owner: OwnerLoop, info: CaptureInfo) -> None:
        """Tick the agent, and the reign if there is one, until it is time to leave. Nobody else touches the agent."""
        leave_at, is_drained = 0.0, False
        while True:
            began_at = time.monotonic()
            parts.session.check_lease()
            self._failed.check()
            if self._stopping.is_set():
                if not leave_at:
                    leave_at = began_at + self._options.graceful_stop_timeout_s
                    agent.stop()
                    self._hand_over(owner)
                    mark_stopping(parts.session, self._paths, info)
                    log.info("capture is leaving", extra={"capture": self.capture_id, "spans": agent.spans})
                if self._may_leave(agent, parts.watch, began_at >= leave_at):
                    return
            elif agent.is_stopping:
                self._hand_over(owner)  # drained by an operator: it owns nothing any more, and takes nothing
                if not is_drained:
                    mark_stopping(parts.session, self._paths, info)
                    is_drained = True
            agent.tick()
            owner.tick()
            interrupted = self._at_once if leave_at else self._stopping
            owner.rest(time.monotonic() - began_at, is_agent_settled=agent.is_settled, interrupted=interrupted)

    def _hand_over(self, owner: OwnerLoop) -> None:
        owner.leave()
        if self._processors is not None:
            self._processors.leave()

    def _may_leave(self, agent: PullerAgent, watch: CaptureWatch, is_time_over: bool) -> bool:
        others = [info for info in watch.captures.values() if info.capture_id != self.capture_id]
        if self._at_once.is_set() or all(info.is_stopping for info in others):
            return True
        can_sort = any(info.service_id and not info.is_stopping for info in others)
        feeds = self._services.feeds if self._services is not None and can_sort else 0
        if not agent.spans and not feeds:
            return True
        if is_time_over:
            extra = {"spans": agent.spans, "changefeeds": feeds}
            log.warning("capture leaves with spans or changefeeds; others begin them anew", extra=extra)
        return is_time_over

    def _peers(self) -> GrpcPeers:
        options = self._options
        return open_peers(
            self.capture_id,
            VERSION,
            listen=options.peer_addr,
            advertised=options.advertise_peer_addr,
            tls=options.puller.tls,
            cluster_secret_file=options.cluster_secret_file,
        )

    def _write_failure(self, session: Session, error: BusError) -> None:
        """Leave the reason where whoever looks for this upstream finds it: nobody pulls it until it is mended."""
        shown = {"code": error.code, "message": str(error)}
        failed = {"capture": self.capture_id, "state": "failed", "error": shown, "at_s": round(time.time(), 3)}
        node = UpstreamNode(session, self._paths, self._options.upstream)
        with contextlib.suppress(BusError):  # the first error says more
            node.write({"epoch": node.epoch(), **failed})

    @contextlib.contextmanager
    def _served(self, api: "ApiServer", session: Session, info: CaptureInfo) -> Iterator[None]:
        """Answer the API from this session while inside."""
        from compose.capture.api.addresses import ApiAddresses
        from compose.capture.api.backend import ApiBackend
        from compose.capture.api.server import shown_settings

        options = self._options
        addresses = ApiAddresses(
            pd=options.pd,
            tls=options.puller.tls,
            kafka=options.kafka,
            zookeeper=options.zookeeper,
            cluster=options.cluster,
            upstream=options.upstream,
            time_zone=options.time_zone,
            tries_sinks=options.sorters.master != BY_HAND,
            settings=shown_settings(options),
        )
        backend = ApiBackend(session, info, addresses, self._stopping.is_set, self._pull, self.orders, self._rule)
        with contextlib.closing(backend), api.serving(backend):
            yield

    def orders(self) -> ReignOrders | None:
        """Return what an operator may ask of this capture as the owner; None: it is not. From any thread."""
        return self._owner.orders if self._owner is not None else None

    def _pull(self) -> "Pull | None":
        """Return what this capture pulls; None: nothing yet."""
        from compose.capture.metrics import pull_of

        reigning = self._owner.reigning if self._owner is not None else None  # one reading: it may end meanwhile
        if self._puller is None:
            return None
        return pull_of(self._options.upstream, self._puller.stats(), reigning.ddl.status() if reigning else None)

    def _rule(self) -> "Rule | None":
        """Return what this capture knows as the owner; None: it is none."""
        from compose.capture.metrics import rule_of

        reigning, figures = self._owner.reigning if self._owner is not None else None, None
        if reigning is None:
            return None
        with contextlib.suppress(BusError):  # it is busy, or over in a moment
            figures = reigning.reign.orders.figures()
        return rule_of(self._options.upstream, reigning, figures)

    def _info(self, peers: Peers) -> CaptureInfo:
        process = f"{socket.gethostname()} pid {os.getpid()}"  # no port that anybody could ask
        return CaptureInfo(
            capture_id=self.capture_id,
            address=self._options.advertise_addr or (self._api.address if self._api else "") or process,
            version=VERSION,
            started_at_s=int(time.time()),
            peer_address=peers.address,
            service_id=self._services.service_id if self._services is not None else "",
        )


def _peer_addresses(captures: Mapping[CaptureId, CaptureInfo]) -> dict[CaptureId, str]:
    return {capture: info.peer_address for capture, info in captures.items()}
