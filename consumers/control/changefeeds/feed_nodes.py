"""All changefeeds of a cluster as ZooKeeper has them now, each node read and decoded once a change."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from consumers.control.changefeeds.asked_images import NOTHING_ASKED, AskedImages, decode_asked
from consumers.control.changefeeds.feed_troubles import FeedTroubles
from consumers.control.changefeeds.processor_nodes import AppliedNode, decode_applied, with_applied
from consumers.control.changefeeds.stored_feed import StoredFeed
from edges.secrets import decode_info
from edges.zookeeper.node_cache import Node, NodeCache
from edges.zookeeper.progress import Entries, readable_entries, readable_figures
from edges.zookeeper.session import Session
from schemas.errors import BusError, decoding
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedStatus, ZkPaths, decode_changefeed_status, status_of
from schemas.nodes.feed_figures import FeedFigures, RunKey
from schemas.nodes.prologue import Prologue, decode_prologue
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedEntry, FeedName, newest_entries, with_figures, with_progress
from schemas.sink.topic import has_processors
from schemas.sink_figures import NO_FIGURES

log = logging.getLogger(__name__)
T = TypeVar("T")
INFO, STATUS, APPLIED, IMAGES, PROLOGUE = "info", "status", "applied", "images", "prologue"


class _Decoded(Generic[T]):
    """What nodes say, by path; a node that is the same object says the same."""

    def __init__(self, decode: Callable[[bytes, str], T]) -> None:
        """``decode`` is given the node's bytes, and its path, which its errors and its words in the log name."""
        self._decode = decode
        self._known: dict[str, tuple[Node, T]] = {}

    def of(self, path: str, node: Node) -> T:
        """Return what the node at ``path`` says.

        Raises:
            CorruptDataError: it does not decode.
        """
        known = self._known.get(path)
        if known is None or known[0] is not node:
            self._known[path] = known = node, self._decode(node.value, path)
        return known[1]

    def keep(self, nodes: Mapping[str, Node]) -> None:
        """Forget the nodes that are gone."""
        self._known = {path: known for path, known in list(self._known.items()) if path in nodes}


def _named(decode: Callable[[bytes], T]) -> Callable[[bytes, str], T]:
    """Return what reads a node by ``decode``, and names its path where it does not decode."""

    def decode_at(node: bytes, path: str) -> T:
        with decoding(path=path):
            return decode(node)

    return decode_at


@dataclass(frozen=True, slots=True)
class FeedView:
    """One changefeed's nodes as of one moment; each is decoded when it is asked for.

    Every method raises CorruptDataError for a node that does not decode.
    """

    name: FeedName
    info_node: Node
    status_node: Node | None
    applied_node: Node | None
    images_node: Node | None
    prologue_node: Node | None
    entry: FeedEntry | None
    """What its sorter service says of how far it is."""
    _of: "FeedNodes"

    def info(self) -> ChangefeedInfo:
        return self._of.infos.of(self._of.path(self.name, INFO), self.info_node)

    def status(self) -> ChangefeedStatus | None:
        """Return what the ``status`` node alone says of this changefeed."""
        if self.status_node is None:
            return None
        said = self._of.statuses.of(self._of.path(self.name, STATUS), self.status_node)
        return status_of(said, self.info_node.created_zxid)

    def applied(self) -> AppliedNode | None:
        """Return what processors have said."""
        if self.applied_node is None:
            return None
        return self._of.applied.of(self._of.path(self.name, APPLIED), self.applied_node)

    def asked_images(self) -> AskedImages:
        """Return what users want of its table images."""
        if self.images_node is None:
            return NOTHING_ASKED
        return self._of.asked.of(self._of.path(self.name, IMAGES), self.images_node)

    def prologue(self) -> Prologue | None:
        """Return its prologue; None: it has none, or none any more."""
        if self.prologue_node is None:
            return None
        return self._of.prologues.of(self._of.path(self.name, PROLOGUE), self.prologue_node)

    def stored(self) -> StoredFeed:
        """Return it as users mean it: how far its destination is."""
        info, status = self.info(), with_progress(self.status(), self.entry)
        prologue = self.prologue()
        if status is None or not has_processors(info.sink_uri):
            sink = NO_FIGURES if self.entry is None else self.entry.figures.sent
            return StoredFeed(info, status, prologue=prologue, sink=sink)
        applied = self.applied()
        shown, sink = with_applied(info, status, applied), NO_FIGURES if applied is None else applied.sink
        return StoredFeed(info, shown, sorter_status=status, prologue=prologue, sink=sink)


class FeedNodes:
    """Refresh, then read; from any thread. Close it."""

    def __init__(
        self, session: Session, paths: ZkPaths, parts: Sequence[str] = (INFO, STATUS), *, has_progress: bool = True
    ) -> None:
        """``parts`` of each changefeed's nodes are kept; sorter services' progress too, where ``status`` is, unless
        nobody asks how far changefeeds are.
        """
        self._paths = paths
        self._progress, self._figures = ServicePaths(paths).progress, ServicePaths(paths).figures
        patterns = [f"{paths.changefeeds}/*/*/{part}" for part in parts]
        if STATUS in parts and has_progress:
            patterns += [f"{self._progress}/*/*", f"{self._figures}/*/*"]
        self.cache = NodeCache(session, patterns)
        self.infos = _Decoded(_named(decode_info))
        self.statuses = _Decoded(_named(decode_changefeed_status))
        self.applied = _Decoded(_named(decode_applied))
        self.asked = _Decoded(_named(decode_asked))
        self.prologues = _Decoded(_named(decode_prologue))
        self._entries = _Decoded(readable_entries)
        self._counted = _Decoded(readable_figures)
        self._seen: tuple[Mapping[str, Node], Mapping[FeedName, FeedView]] = {}, {}
        self._unreadable = FeedTroubles(log, "changefeed is not readable, and is left out")

    def refresh(self, *, is_exact: bool = False) -> Mapping[FeedName, FeedView]:
        """Read what has changed, and return all changefeeds by name; the same object while nothing has.

        Args:
            is_exact: see :meth:`NodeCache.refresh`.

        Raises:
            LeaseLostError, ZooKeeperError: see there.
        """
        self.cache.refresh(is_exact=is_exact)
        nodes, seen = self.cache.nodes, self._seen
        if seen[0] is nodes:
            return seen[1]
        for decoded in (
            self.infos, self.statuses, self.applied, self.asked, self.prologues, self._entries, self._counted
        ):  # fmt: skip
            decoded.keep(nodes)
        views = {view.name: view for view in self._views(nodes)}
        self._seen = nodes, views
        return views

    def readable(self, *, is_exact: bool = False) -> Sequence[StoredFeed]:
        """Return all changefeeds that can be read, by name; the others are said once, and hide nobody else.

        Raises:
            LeaseLostError, ZooKeeperError: see :meth:`NodeCache.refresh`.
        """
        feeds, views = list[StoredFeed](), self.refresh(is_exact=is_exact)
        self._unreadable.keep(views)
        for name, view in sorted(views.items()):
            try:
                feeds.append(view.stored())
            except BusError as error:  # its bytes, or its key
                self._unreadable.tell(name, error)
            else:
                self._unreadable.end(name)
        return feeds

    def path(self, name: FeedName, part: str) -> str:
        """Return where a node of a changefeed is."""
        return f"{self._paths.changefeeds}/{name[0]}/{name[1]}/{part}"

    def close(self) -> None:
        """Hear of nothing any more."""
        self.cache.close()

    def _views(self, nodes: Mapping[str, Node]) -> Iterator[FeedView]:
        entries = self._newest(nodes)
        folder = self._paths.changefeeds
        for path, node in nodes.items():
            if not path.startswith(folder) or not path.endswith(f"/{INFO}"):
                continue
            namespace, changefeed_id = path[len(folder) + 1 :].split("/")[:2]
            name = namespace, changefeed_id
            entry = entries.get((name, node.created_zxid))
            status, applied = nodes.get(self.path(name, STATUS)), nodes.get(self.path(name, APPLIED))
            images, prologue = nodes.get(self.path(name, IMAGES)), nodes.get(self.path(name, PROLOGUE))
            yield FeedView(name, node, status, applied, images, prologue, entry, self)

    def _newest(self, nodes: Mapping[str, Node]) -> Entries:
        entries: list[FeedEntry] = []
        figures: dict[RunKey, FeedFigures] = {}
        for path, node in nodes.items():
            if path.startswith(f"{self._progress}/"):
                entries += self._entries.of(path, node)
            elif path.startswith(f"{self._figures}/"):
                figures |= self._counted.of(path, node)
        return {key: with_figures(entry, figures) for key, entry in newest_entries(entries).items()}
