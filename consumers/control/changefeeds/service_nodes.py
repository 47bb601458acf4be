"""What ZooKeeper says of sorter services, as of one moment: who lives, what each has, how far changefeeds are."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from consumers.control.changefeeds.pins import Pins, decode_pins, pins_path
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.node_cache import Node, NodeCache
from edges.zookeeper.nodes import read_node
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import FeedFigures, RunKey, decode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assignment,
    FeedEntry,
    FeedName,
    ServiceInfo,
    decode_assignment,
    decode_entries,
    decode_service,
    newest_entries,
    with_figures,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredServices:
    """As of one reading; nodes that do not decode are left out."""

    services: Mapping[str, ServiceInfo] = field(default_factory=dict)
    """Those that are registered."""
    assignments: Mapping[str, tuple[Assignment, int]] = field(default_factory=dict)
    """With the version of each node; also of services that are gone. One that does not decode counts as empty."""
    undecoded: frozenset[str] = frozenset()
    """Services whose assignment does not decode: it is an owner's to write anew."""
    progress: Mapping[str, Sequence[FeedEntry]] = field(default_factory=dict)
    """By service, also of those that are gone, and of those that have left figures alone."""
    pins: Pins = field(default_factory=dict)

    def entries(self) -> dict[tuple[FeedName, int], FeedEntry]:
        """Return the entry that counts of each changefeed, by name and creation."""
        return newest_entries(entry for entries in self.progress.values() for entry in entries)

    def service_of(self) -> dict[FeedName, str]:
        """Return which service has which changefeed, by the youngest assignment."""
        youngest: dict[FeedName, tuple[int, str]] = {}
        for service, (assignment, _) in sorted(self.assignments.items()):
            for feed in assignment.feeds:
                youngest[feed.name] = max(youngest.get(feed.name, (-1, "")), (feed.revision, service))
        return {name: service for name, (_, service) in youngest.items()}


def read_services(client: ZooKeeperClient, paths: ServicePaths) -> list[ServiceInfo]:
    """Return the services that are registered, asked of ZooKeeper once; those that do not decode are left out.

    Raises:
        KazooException, KazooTimeoutError
    """
    infos = []
    folder = read_node(client, paths.services)
    for name in [] if folder is None else client.get_children(paths.services):
        path = paths.service(name)
        node = read_node(client, path)
        try:
            infos += [] if node is None else [decode_service(node[0])]
        except CorruptDataError as error:
            log.error("node of a sorter service is not readable", extra={"path": path, "error": str(error)})
    return infos


class ReadsServices(Protocol):
    """What is asked of whoever knows the nodes."""

    def read(self) -> StoredServices:
        """Return them as they are.

        Raises:
            LeaseLostError: the session is over.
            ZooKeeperError: another reason.
        """

    def close(self) -> None:
        """Read no more."""


class ServiceNodes:
    """By watches: a reading costs a request for each node that was written since the last one. Close it."""

    def __init__(self, session: Session, paths: ZkPaths) -> None:
        nodes = ServicePaths(paths)
        self._pins, self._services, self._assignments = pins_path(paths), nodes.services, nodes.assignments
        self._progress, self._figures = nodes.progress, nodes.figures
        patterns = [self._pins, f"{self._services}/*", f"{self._assignments}/*"]
        patterns += [f"{self._progress}/*/*", f"{self._figures}/*/*"]
        self._cache = NodeCache(session, patterns)
        self._decoded: dict[str, tuple[Node, Any]] = {}
        self._read: tuple[Mapping[str, Node], StoredServices] = {}, StoredServices()

    def read(self) -> StoredServices:
        """See :class:`ReadsServices`; the same object while nothing has changed."""
        self._cache.refresh()
        nodes = self._cache.nodes
        if self._read[0] is not nodes:
            self._decoded = {path: known for path, known in self._decoded.items() if path in nodes}
            self._read = nodes, self._stored(nodes)
        return self._read[1]

    def close(self) -> None:
        """Hear of nothing any more."""
        self._cache.close()

    def _stored(self, nodes: Mapping[str, Node]) -> StoredServices:
        services: dict[str, ServiceInfo] = {}
        assignments: dict[str, tuple[Assignment, int]] = {}
        progress: dict[str, list[FeedEntry]] = {}
        figures: dict[RunKey, FeedFigures] = {}
        pins: Pins = {}
        undecoded: set[str] = set()
        for path, node in nodes.items():
            folder, _, name = path.rpartition("/")
            if path == self._pins:
                pins = self._of(path, node, decode_pins) or {}
            elif folder == self._services and (info := self._of(path, node, decode_service)) is not None:
                services[name] = info
            elif folder == self._assignments:
                assignment = self._of(path, node, decode_assignment)
                undecoded |= {name} if assignment is None else set()
                assignments[name] = assignment or Assignment(), node.version
            elif folder.startswith(f"{self._progress}/"):
                service = folder.rpartition("/")[2]
                progress.setdefault(service, []).extend(self._of(path, node, decode_entries) or ())
            elif folder.startswith(f"{self._figures}/"):
                progress.setdefault(folder.rpartition("/")[2], [])
                figures |= self._of(path, node, decode_figures) or {}
        said = {service: [with_figures(entry, figures) for entry in entries] for service, entries in progress.items()}
        return StoredServices(
            services=services, assignments=assignments, undecoded=frozenset(undecoded), progress=said, pins=pins
        )

    def _of(self, path: str, node: Node, decode: Callable[[bytes], T]) -> T | None:
        """Return what a node says; None, and a word in the log, of one that does not decode."""
        known = self._decoded.get(path)
        if known is None or known[0] is not node:
            try:
                said: T | None = decode(node.value)
            except CorruptDataError as error:
                log.error("node of a sorter service is not readable", extra={"path": path, "error": str(error)})
                said = None
            self._decoded[path] = known = node, said
        result: T | None = known[1]
        return result
