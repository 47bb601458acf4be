"""Which changefeeds want table images, as ZooKeeper has them now, and whether all sorters know of images.

A thread of its own reads what watches have told of; the owner's tick takes what is known and never waits for
ZooKeeper. What a user has asked for by hand is taken out of ZooKeeper here, once a published record has it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Self

from consumers.control.changefeeds.asked_images import NOTHING_ASKED, AskedImages, AskedTable
from consumers.control.changefeeds.feed_nodes import APPLIED, IMAGES, INFO, STATUS, FeedNodes, FeedView
from consumers.control.changefeeds.image_requests import withdraw_images
from consumers.control.cluster.look_thread import LookThread
from consumers.control.core.images.feed_tables import Contains, Rank
from edges.zookeeper.node_cache import Node, NodeCache
from edges.zookeeper.session import Session
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import RUNNING, ChangefeedInfo, ZkPaths, state_of
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedName, decode_service
from schemas.rawlog.images import image_feed

log = logging.getLogger(__name__)

LOOK_S: Final = 0.3
"""Between two looks: what a user changes is seen within a second."""
FIRST_LOOK_S: Final = 5.0
"""How long a new owner waits for its first look before it goes on without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageRules:
    """What a changefeed's settings say of tables; another object where settings change."""

    contains: Contains
    wants: Contains
    """Of tables that it contains: whether their rows from before are wanted."""
    wants_initial: bool
    """Whether they are for any table."""
    rank: Rank = lambda _: None
    """Of tables that it contains: which come first."""
    scans_max: int | None = None
    """Tables of which a chunk is scanned at once; None: nothing is said."""
    lag_max_s: int = 0
    """While it is further behind no chunk begins; 0: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWish:
    """A changefeed that may have images. ``key`` is another one where its filter or rules change."""

    key: object
    contains: Contains
    wants: Contains
    wants_initial: bool
    is_running: bool = True
    is_readable: bool = True
    """False: nobody can read its settings now. It is as it was registered, and gets no new barrier."""
    has_rules: bool = True
    """False: nobody has read them since the owner is one. What ``contains`` and the like say is nothing."""
    asked: AskedImages = NOTHING_ASKED
    """By hand."""
    rank: Rank = lambda _: None
    scans_max: int | None = None
    lag_max_s: int = 0
    """See :class:`ImageRules`."""


class KnowsWishes(Protocol):
    """What an owner asks; all of it answers at once."""

    def wishes(self) -> Mapping[str, ImageWish] | None:
        """Return every changefeed of the upstream by its name in frontier records
        (:func:`schemas.rawlog.images.image_feed`); None: they are not known at the moment.
        """

    def services_know(self) -> bool:
        """Tell whether every sorter that runs, or may be given changefeeds, knows of images."""

    def checkpoint(self, name: str) -> Ts | None:
        """Return where the destination of a changefeed with a bound to its lag stands; None: nobody knows yet."""

    def answered(self, name: str, asked: Collection[AskedTable]) -> None:
        """Take that images of these tables need not be asked for any more."""


RulesOf = Callable[[ChangefeedInfo], ImageRules]
"""The feed compiler, as far as it is needed here; BusError: the settings cannot be compiled."""

UNKNOWN: Final = ImageWish(
    key=None,
    contains=lambda _: True,
    wants=lambda _: False,
    wants_initial=True,
    is_running=False,
    is_readable=False,
    has_rules=False,
)
"""Of a changefeed whose settings cannot be read."""


class ImageWishes:
    """Implements :class:`KnowsWishes`; of one reign. A context manager."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        upstream: UpstreamId,
        rules_of: RulesOf,
        *,
        on_fatal: Callable[[BusError], None] = lambda _: None,
    ) -> None:
        """``on_fatal`` takes a bug; nothing is known any more then."""
        self._session, self._paths, self._upstream = session, paths, upstream
        self._rules_of = rules_of
        self._feeds = FeedNodes(session, paths, (INFO, STATUS, IMAGES), has_progress=False)
        self._folder = ServicePaths(paths).services
        self._sorters = NodeCache(session, [f"{self._folder}/*", f"{paths.changefeeds}/*/*/sorter"])
        self._rules: dict[FeedName, tuple[object, ImageRules]] = {}
        self._unreadable: frozenset[FeedName] = frozenset()
        self._known: Mapping[str, ImageWish] | None = None
        self._names: Mapping[str, FeedName] = {}
        self._seen: tuple[object, object] | None = None
        self._all_know = False
        self._lock = threading.Lock()
        self._answered: dict[str, frozenset[AskedTable]] = {}
        self._lags: FeedNodes | None = None
        """Made when a changefeed has a bound to its lag: it hears of each step of all changefeeds."""
        self._checkpoints: dict[str, Ts] = {}
        self._has_looked = threading.Event()
        self._looking = LookThread("wishes for table images", self.look, on_fatal, rest_s=LOOK_S)

    def __enter__(self) -> Self:
        self._looking.start()
        self._has_looked.wait(FIRST_LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.stop()
        self._feeds.close()
        self._sorters.close()
        if self._lags is not None:
            self._lags.close()

    def wishes(self) -> Mapping[str, ImageWish] | None:
        """See :class:`KnowsWishes`."""
        return self._known

    def services_know(self) -> bool:
        """See :class:`KnowsWishes`."""
        return self._all_know

    def checkpoint(self, name: str) -> Ts | None:
        """See :class:`KnowsWishes`."""
        return self._checkpoints.get(name)

    def answered(self, name: str, asked: Collection[AskedTable]) -> None:
        """See :class:`KnowsWishes`."""
        with self._lock:
            self._answered[name] = self._answered.get(name, frozenset()).union(asked)

    def look(self) -> None:
        """Take in what has been written, and take out of it what is answered.

        Raises:
            LeaseLostError: the session is over.
            BusError: the same look may work later; until then nothing is known.
        """
        try:
            self._look()
        except BusError:
            self._known, self._seen = None, None
            raise
        finally:
            self._has_looked.set()

    def _look(self) -> None:
        self._withdraw()
        views = self._feeds.refresh()
        self._sorters.refresh()
        nodes = self._sorters.nodes
        if self._seen is None or self._seen[0] is not views or self._seen[1] is not nodes:
            self._all_know = all(self._knows(path, node) for path, node in nodes.items())
            self._take(views)
            self._seen = views, nodes
        self._note_checkpoints()

    def _note_checkpoints(self) -> None:
        bounded = [name for name, wish in (self._known or {}).items() if wish.lag_max_s]
        if not bounded:
            return
        if self._lags is None:
            self._lags = FeedNodes(self._session, self._paths, (INFO, STATUS, APPLIED))
        views, known = self._lags.refresh(), dict[str, Ts]()
        for name in bounded:
            view = views.get(self._names[name])
            if view is None:
                continue
            try:
                known[name] = view.stored().checkpoint_ts
            except CorruptDataError:  # whoever shows the changefeed says so
                if name in self._checkpoints:
                    known[name] = self._checkpoints[name]
        self._checkpoints = known

    def _withdraw(self) -> None:
        """Take answered tables out of ZooKeeper; only then is a later request for one of them another."""
        with self._lock:
            answered = dict(self._answered)
        for name, asked in answered.items():
            # A node that does not decode is its changefeed's own trouble, said with its wish; anew it asks for nothing.
            with contextlib.suppress(CorruptDataError):
                if name in self._names:
                    withdraw_images(self._session, self._paths, self._names[name], asked)
            with self._lock:
                if left := self._answered.pop(name) - asked:
                    self._answered[name] = left

    def _knows(self, path: str, node: Node) -> bool:
        try:
            if path.startswith(f"{self._folder}/"):
                return decode_service(node.value).knows_images
            sorter = read_json(node.value)
        except (CorruptDataError, ValueError):
            return False
        return isinstance(sorter, dict) and sorter.get("knows_images") is True

    def _take(self, views: Mapping[FeedName, FeedView]) -> None:
        wishes: dict[str, ImageWish] = {}
        names: dict[str, FeedName] = {}
        unreadable: set[FeedName] = set()
        for name, view in views.items():
            try:
                wish = self._wish(name, view)
            except BusError as error:
                unreadable.add(name)
                if name not in self._unreadable:
                    where = {"namespace": name[0], "changefeed": name[1], "code": error.code, "error": str(error)}
                    log.warning("settings are not readable; no more table images for this changefeed", extra=where)
                wish = UNKNOWN
            if wish is not None:
                feed = image_feed(*name, view.info_node.created_zxid)
                wishes[feed], names[feed] = wish, name
        self._rules = {name: known for name, known in self._rules.items() if name in views}
        self._known, self._names, self._unreadable = wishes, names, frozenset(unreadable)

    def _wish(self, name: FeedName, view: FeedView) -> ImageWish | None:
        """Return what a changefeed wants; None: it is another upstream's."""
        info = view.info()
        if info.upstream != self._upstream:
            return None
        settings = info.sink_uri, info.config
        known = self._rules.get(name)
        if known is None or known[0] != settings:
            self._rules[name] = known = settings, self._rules_of(info)
        is_running = state_of(info, view.status()) in RUNNING
        return _wish_of(known[1], is_running=is_running, asked=view.asked_images())


def _wish_of(
    rules: ImageRules,
    *,
    is_running: bool,
    asked: AskedImages = NOTHING_ASKED,
) -> ImageWish:
    return ImageWish(
        key=rules,
        contains=rules.contains,
        wants=rules.wants,
        wants_initial=rules.wants_initial,
        is_running=is_running,
        asked=asked,
        rank=rules.rank,
        scans_max=rules.scans_max,
        lag_max_s=rules.lag_max_s,
    )
