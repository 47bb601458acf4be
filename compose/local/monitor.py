"""What the bus is doing now, measured from outside: from Kafka, ZooKeeper and PD, as an operator would."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from compose.kafka_follower import TopicFollower
from compose.local.image_bars import ImageBar
from compose.stack.local import Addresses
from edges.kafka.clients import kafka_admin
from edges.secrets import decode_info
from edges.zookeeper.progress import Entries, read_entries
from edges.zookeeper.session import CONNECT_TIMEOUT_S, SESSION_TIMEOUT_S, ZooKeeperUnreachableError
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.json_text import read_json
from schemas.nodes.changefeed import (
    NAMESPACE_DEFAULT,
    ChangefeedState,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    state_of,
    status_of,
)
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import decode_service, with_progress
from schemas.rawlog.frontier import FrontierRecord, decode_frontier, follow_frontier
from schemas.rawlog.region_batch import read_batch_head
from schemas.rawlog.topics import raw_topics

log = logging.getLogger(__name__)

RATE_WINDOW_S = 5.0
"""Rates are means over this long: a sorter writes a batch at a time, so that shorter windows only show its rhythm."""
_RETRY_S = 1.0
_UNKNOWN = (KazooException, KazooTimeoutError, BusError)
"""What a look goes on without: ZooKeeper is away or slow, or a node cannot be read."""


@dataclass(slots=True)
class Rate:
    """Rows a second over a window, from a counter that only grows within one process's life."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    total: int = 0

    def note(self, now: float, counter: int) -> None:
        """Take the counter's value at ``now``; one that fell started anew at 0."""
        last = self._samples[-1][1] if self._samples else 0
        self.total += counter - last if counter >= last else counter
        if counter < last:
            self._samples.clear()
        self._samples.append((now, counter))
        while self._samples[0][0] < now - RATE_WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()

    def per_s(self) -> float:
        """Return the mean rate over the window."""
        if len(self._samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedView:
    """One changefeed as seen now."""

    changefeed_id: str
    status: ChangefeedStatus | None
    rows_per_s: float
    rows_total: int
    lag_s: float | None
    """From PD's clock to the checkpoint; None before the first status."""
    state: ChangefeedState = "normal"
    """Follows from what its user wants and from its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusView:
    """The bus as seen now."""

    rows_in_per_s: float
    rows_in_total: int
    frontier: FrontierRecord | None
    frontier_lag_s: float | None
    feeds: tuple[FeedView, ...]
    topics: tuple[tuple[str, int], ...]
    """Output topics with their partition counts."""
    spark_uis: tuple[str, ...] = ()
    """Where the sorter services' Spark shows itself, of those that have started it."""
    images: tuple[ImageBar, ...] = ()
    """Of changefeeds that have table images to come."""


class Monitor:
    """Follows one upstream's raw log and the changefeeds over it; a context manager with two reader threads."""

    def __init__(
        self,
        addresses: Addresses,
        paths: ZkPaths,
        upstream: UpstreamId,
        now_ts: Callable[[], Ts],
        topic_prefixes: tuple[str, ...],
    ) -> None:
        """Know where to look.

        Args:
            addresses: of the stack.
            paths: of the cluster in ZooKeeper.
            upstream: whose raw log.
            now_ts: PD's clock, to which lag is measured.
            topic_prefixes: of the output topics to be shown.
        """
        self._addresses, self._paths, self._now_ts, self._prefixes = addresses, paths, now_ts, topic_prefixes
        self._topics, self._node = raw_topics(upstream), paths.upstream(upstream)
        self._zookeeper = addresses.zookeeper_access.client(SESSION_TIMEOUT_S)
        self._admin = kafka_admin({**addresses.kafka_access.config(), "log_level": 0})
        self._rows_in = 0
        self._frontier: FrontierRecord | None = None
        self._in = Rate()
        self._out: dict[str, Rate] = {}
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(self._topics.region_events, self._count), daemon=True),
            threading.Thread(target=self._follow, args=(self._topics.frontier, self._advance), daemon=True),
        ]

    def __enter__(self) -> "Monitor":
        """Connect.

        Raises:
            ZooKeeperUnreachableError: no server answers.
        """
        try:
            self._zookeeper.start(CONNECT_TIMEOUT_S)
        except (KazooTimeoutError, KazooException) as error:
            where = {"hosts": self._addresses.zookeeper, "waited_s": CONNECT_TIMEOUT_S}
            raise ZooKeeperUnreachableError("ZooKeeper does not answer; check --zookeeper", **where) from error
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(5)
        self._zookeeper.stop()
        self._zookeeper.close()

    def changefeed_ids(self) -> list[str]:
        """Return the changefeeds of the default namespace; none while ZooKeeper is away."""
        with contextlib.suppress(*_UNKNOWN):
            return sorted(self._zookeeper.get_children(f"{self._paths.changefeeds}/{NAMESPACE_DEFAULT}"))
        return []

    def status(self, changefeed_id: str, entries: Entries | None = None) -> ChangefeedStatus | None:
        """Return how far the changefeed is, as its sorter has said last.

        Args:
            changefeed_id: in the default namespace.
            entries: what :meth:`entries` has returned just now; None: they are read for this changefeed.
        """
        name = NAMESPACE_DEFAULT, changefeed_id
        said = self.entries() if entries is None else entries
        with contextlib.suppress(*_UNKNOWN):
            info = self._zookeeper.exists(self._paths.changefeed_info(*name))
            created_zxid = 0 if info is None else int(info.czxid)
            entry = said.get((name, created_zxid))
            try:
                written = decode_changefeed_status(self._zookeeper.get(self._paths.changefeed_status(*name))[0])
            except NoNodeError:
                written = None
            return with_progress(status_of(written, created_zxid), entry)
        return None

    def entries(self) -> Entries:
        """Return how far the sorter services are; nothing while ZooKeeper is away."""
        with contextlib.suppress(*_UNKNOWN):
            return read_entries(self._zookeeper, self._paths)
        return {}

    def state(self, changefeed_id: str, status: ChangefeedStatus | None) -> ChangefeedState:
        """Return the changefeed's state: what its user wants goes before what its status says."""
        with contextlib.suppress(*_UNKNOWN):
            path = self._paths.changefeed_info(NAMESPACE_DEFAULT, changefeed_id)
            return state_of(decode_info(self._zookeeper.get(path)[0]), status)
        return "normal" if status is None else status.state

    def view(self) -> BusView:
        """Take one look."""
        now = time.monotonic()
        now_ts = self._clock()
        self._in.note(now, self._rows_in)
        frontier, entries = self._frontier, self.entries()
        return BusView(
            rows_in_per_s=self._in.per_s(),
            rows_in_total=self._rows_in,
            frontier=frontier,
            frontier_lag_s=_lag_s(now_ts, frontier.resolved_ts if frontier else None),
            feeds=tuple(self._feed_view(feed, entries, now, now_ts) for feed in self.changefeed_ids()),
            topics=self._output_topics(),
            spark_uis=self._spark_uis(),
            images=self._images(),
        )

    def _feed_view(self, changefeed_id: str, entries: Entries, now: float, now_ts: Ts | None) -> FeedView:
        status = self.status(changefeed_id, entries)
        rate = self._out.setdefault(changefeed_id, Rate())
        if status is not None:
            rate.note(now, status.rows_total)
        return FeedView(
            changefeed_id=changefeed_id,
            status=status,
            rows_per_s=rate.per_s(),
            rows_total=rate.total,
            lag_s=_lag_s(now_ts, status.checkpoint_ts if status else None),
            state=self.state(changefeed_id, status),
        )

    def _spark_uis(self) -> tuple[str, ...]:
        paths = ServicePaths(self._paths)
        with contextlib.suppress(*_UNKNOWN):
            names = self._zookeeper.get_children(paths.services)
            nodes = [self._zookeeper.get(paths.service(name))[0] for name in names]
            return tuple(sorted(ui for node in nodes if (ui := decode_service(node).spark_ui)))
        return ()

    def _images(self) -> tuple[ImageBar, ...]:
        """Return what the owner says of images; nothing while ZooKeeper is away, or of an owner that says none."""
        with contextlib.suppress(*_UNKNOWN, ValueError):
            status = read_json(self._zookeeper.get(self._node)[0] or b"{}")
            shown = status.get("images", ()) if isinstance(status, dict) else ()
            return tuple(ImageBar.read(item) for item in shown)
        return ()

    def _output_topics(self) -> tuple[tuple[str, int], ...]:
        try:
            topics = self._admin.list_topics(timeout=2.0).topics
        except KafkaException:
            return ()
        return tuple((name, len(topics[name].partitions)) for name in sorted(topics) if name.startswith(self._prefixes))

    def _clock(self) -> Ts | None:
        try:
            return self._now_ts()
        except BusError:
            return None

    def _count(self, value: bytes) -> None:
        self._rows_in += read_batch_head(value).count

    def _advance(self, value: bytes) -> None:
        self._frontier = follow_frontier(self._frontier, decode_frontier(value))

    def _follow(self, topic: str, take: Callable[[bytes], None]) -> None:
        while not self._stopped.is_set():
            try:
                with TopicFollower(self._addresses.kafka_access, topic) as follower:
                    while not self._stopped.is_set():
                        for record in follower.poll(0.5):
                            with contextlib.suppress(CorruptDataError):  # the sorters' matter: we only count
                                take(record.value or b"")
            except BusError:
                # Not created yet, or the broker restarts; the display shows that nothing moves.
                self._stopped.wait(_RETRY_S)


def _lag_s(now_ts: Ts | None, ts: Ts | None) -> float | None:
    if now_ts is None or ts is None:
        return None
    return max(0.0, (physical_ms(now_ts) - physical_ms(ts)) / 1000)
