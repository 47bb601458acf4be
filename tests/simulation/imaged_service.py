"""Changefeeds of one sorter service that share their cuts, over a log with table images: what they run is the product's
(epochs, cuts, preparation, encoders, shared cuts), with Kafka, ZooKeeper and Spark left out. Each has a twin that runs
the same epochs alone, undisturbed, and must write the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

from compose.simulation.images.world import ImageWorld
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.rawlog.topics import raw_topics
from schemas.sink.image_note import WatermarkNote
from schemas.sink_figures import NO_FIGURES, SinkFigures
from sorters.core.cut.beginning import BegunEpoch, left_off
from sorters.core.cut.cut import Cut
from sorters.core.cut.runner import Runner
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.filter.initial_tables import InitialTables
from sorters.core.records.order import OutputRecords
from sorters.core.service.cut_marks import CUT_BYTES, CutMarks
from sorters.cut.leave import GIVEN, Leave
from sorters.cut.raw_cut import RawCut, RawReader
from sorters.cut.small_cut import SmallCut
from sorters.log.topic_admin import SinkTopicLimits
from sorters.run.cut_job import CutJob, RunBy
from sorters.run.epochs import CutProgress, EpochBounds, EpochControl, Epochs, EpochSources, EpochWork
from sorters.run.preparation import Preparation
from sorters.service.raw_window import WindowReader
from sorters.service.shared_cuts import SharedCuts
from tests.simulation.imaged_log import AllSchemas, ImagedLog, MemoryTopic

PROTOCOLS = ("canal-json", "open-protocol", "debezium", "simple", "sql-rows")
TOPIC = "frontier"
MARK_RECORDS = 20
"""Raw records between two marks."""
Message = tuple[OutputRecords, WatermarkNote | None]


class BrokenError(Exception):
    """A promise is broken."""


class KilledError(Exception):
    """The process is gone."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A changefeed as a user has made it. ``image_name``: frontier records may name it so."""

    topic: str
    image_name: str
    rule: str
    protocol: str
    start_ts: Ts
    waits_at: Ts | None

    def compiled(self) -> CompiledFeed:
        """Return it as a run has it."""
        protocol = "canal-json" if self.protocol == "sql-rows" else self.protocol
        extension = "&enable-tidb-extension=true" if protocol in ("canal-json", "debezium") else ""
        rules = ["d.*", "!d.lag*"] if self.rule == "*" else [self.rule]
        uri = f"kafka://h:1/{self.topic}?protocol={protocol}{extension}"
        feed = compile_feed(load_changefeed(uri, {"filter": {"rules": rules}}), "default")
        # Tables come to all of them by a rename, which stops one that wants no images.
        feed = replace(feed, initial=InitialTables((), otherwise=True))
        return replace(feed, encoder=SqlRowsEncoder(), large_messages=None) if self.protocol == "sql-rows" else feed


class Topics:
    """The sink's."""

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        return {topic: SinkTopicLimits(partitions=2, message_bytes_max=1 << 20) for topic in topics}


class NotedCut(SmallCut):
    """A small cut that tells what it would write."""

    def __init__(self, reader: RawReader, images: Any, tell: Callable[[OutputRecords, WatermarkNote | None], None]):
        super().__init__(lambda _: reader, lambda _: images, {})
        self._tell = tell

    def _write(
        self, records: Any, program: Any, fence: bytes, note: Any = None, *, on_queued: Any = lambda: None
    ) -> SinkFigures:
        self._tell(records, note)
        on_queued()
        return NO_FIGURES


class Feed:
    """A changefeed; what it has written outlives its runs."""

    def __init__(self, wanted: Wanted, log: ImagedLog, random: Random | None = None) -> None:
        """With ``random`` its runs die at times in the midst of a cut."""
        self.wanted, self._log, self._random = wanted, log, random
        self.written: dict[Ts, list[Message]] = {}
        """By the end of the cut."""
        self.begun: list[BegunEpoch] = []
        self.counts: Counter[str] = Counter()
        self._checkpoint_ts = wanted.start_ts
        self._tried: dict[Ts, list[Message]] = {}
        """By the cut's beginning, what tries have written that did not come to its end."""
        self._sent: list[Message] = []
        self._epochs: Epochs | None = None

    def begin(self, schemas: AllSchemas, reader: RawReader) -> None:
        """Begin a run."""
        wanted, log, nothing = self.wanted, self._log, SimpleNamespace()
        start_ts, any_spark = wanted.start_ts, lambda: nothing
        preparation = Preparation(any_spark, wanted.compiled(), schemas, Topics(), None, start_ts=start_ts)
        job = CutJob(
            any_spark,
            lambda _: reader,
            topics=raw_topics(UpstreamId("u")),
            raw_config={},
            sink_config={},
            run_by=RunBy(by_service=Runner.DRIVER),
        )
        job._small = NotedCut(reader, MemoryTopic(log.images), self._tell)
        source = log.frontier
        last = self.begun[-1] if self.begun else None
        beginning = left_off(last, TOPIC, self._checkpoint_ts, lambda end: source.record_before(end).resolved_ts)
        origin_ts = self._checkpoint_ts if beginning is None else beginning.after_ts
        self.at = source.find(origin_ts) if beginning is None else beginning.start
        self._sent = []
        self._epochs = Epochs(
            EpochSources(frontier=source, frontier_topic=TOPIC, schemas=schemas, folder=nothing),
            EpochWork(preparation=preparation, job=job),
            EpochBounds(
                origin_ts=origin_ts,
                checkpoint_ts=self._checkpoint_ts,
                target_ts=None,
                image_name=wanted.image_name,
                waits_at=wanted.waits_at,
            ),
            EpochControl(begin=self._begin_epoch, ask=lambda: GIVEN, note=self._end_cut, stopping=lambda: False),
        )
        if beginning is not None and beginning.end is not None:
            self.run(beginning.end, repeat=True)

    def run(self, end: int, *, repeat: bool = False, start: int | None = None) -> None:
        """Run one epoch, to a frontier offset."""
        epochs = self._epochs
        assert epochs is not None
        start = self.at if start is None else start
        if start < end:
            epoch = epochs.plan(start, end)
            for cut in epochs.missing(epoch):
                self._count(cut)
            epochs.run(epoch, repeat=repeat)
        self.at = end

    def _count(self, cut: Cut) -> None:
        self.counts["cuts"] += 1
        self.counts["left out"] += cut.left_out is not None
        self.counts["read again"] += cut.read_again is not None
        self.counts["chunks"] += bool(cut.chunks)
        self.counts["resynced"] += bool(cut.resynced)

    def _begin_epoch(self, epoch: BegunEpoch) -> Leave:
        if not self.begun or (self.begun[-1].start, self.begun[-1].end) != (epoch.start, epoch.end):
            self.begun.append(epoch)
        return GIVEN

    def _tell(self, records: OutputRecords, note: WatermarkNote | None) -> None:
        self._maybe_die()
        self._sent.append((records, note))
        tried = self._tried.setdefault(self._checkpoint_ts, [])
        at = len(self._sent) - 1
        if at < len(tried):
            self.counts["again"] += 1
            if not is_same(tried[at], self._sent[at]):
                raise BrokenError(f"{self.wanted} writes otherwise again, above {self._checkpoint_ts}")
        else:
            tried.append(self._sent[at])
        self._maybe_die()

    def _end_cut(self, progress: CutProgress) -> None:
        self.written[progress.checkpoint_ts] = self._sent
        self._checkpoint_ts, self._sent = progress.checkpoint_ts, []
        self._maybe_die()

    def _maybe_die(self) -> None:
        if self._random is not None and self._random.random() < 0.02:
            self.counts["died"] += 1
            raise KilledError


def is_same(first: Message, second: Message) -> bool:
    """Tell whether two cuts were written alike."""
    return first[1] == second[1] and first[0].equals(second[0])


@dataclass(slots=True)
class Service:
    """One life of a sorter service."""

    log: ImagedLog
    counts: Counter[str]
    schemas: AllSchemas
    cuts: SharedCuts = field(default_factory=SharedCuts)

    def reader(self) -> RawReader:
        """Return what reads for one changefeed."""
        window: Any = SimpleNamespace(
            is_shared=lambda: True, cuts=self, first=lambda partition, start: start, take=self._take
        )
        return WindowReader(window, lambda: False, SimpleNamespace)  # type: ignore[arg-type]

    def find(self, cut: Cut) -> RawCut | None:
        """See :class:`SharedCuts`."""
        kept = self.cuts.find(cut)
        self.counts["shared"] += kept is not None
        self.counts["shared while read again"] += kept is not None and cut.read_again is not None
        return kept

    def keep(self, cut: Cut, raw: RawCut) -> RawCut:
        """See :class:`SharedCuts`."""
        return self.cuts.keep(cut, raw)

    def _take(self, _: int, start: int, end: int, stopped: object) -> list[tuple[int, bytes]]:
        return list(enumerate(self.log.events[start:end], start))


def changefeeds(world: ImageWorld, log: ImagedLog, random: Random) -> list[Wanted]:
    """Return two of each that the world's frontier records speak of, and two of all tables."""
    made = list[Wanted]()
    for name, each in world.readers.items():
        rule = f"d.*_*{name.split('/')[1][0]}*"
        waits_at = each.start_ts if each.is_initial else None
        for protocol in random.sample(PROTOCOLS, 2):
            made.append(Wanted(f"s{len(made)}", name, rule, protocol, each.start_ts, waits_at))
    first_ts = log.frontier.records[0].resolved_ts
    for protocol in random.sample(PROTOCOLS, 2):
        made.append(Wanted(f"s{len(made)}", "default/other@9", "*", protocol, first_ts, None))
    return made


def run_service(world: ImageWorld, seed: int) -> Counter[str]:
    """Run changefeeds over a world's log to its end; return what has happened.

    Raises:
        BrokenError: one has written other than alone.
        BusError: of the product.
    """
    log, random = ImagedLog.of(world), Random(seed)
    feeds = [Feed(wanted, log, random) for wanted in changefeeds(world, log, random)]
    counts, marks, beat, end = Counter[str](), CutMarks(), 1, log.frontier.end()
    service = Service(log, counts, log.schemas())

    def begin(feed: Feed) -> None:
        while True:
            try:
                feed.begin(service.schemas, service.reader())
            except KilledError:
                continue
            return

    for feed in feeds:
        begin(feed)
    while any(feed.at < end for feed in feeds):
        if random.random() < 0.1:  # all of them begin anew, each where it has left off
            counts["restarts"] += 1
            service = Service(log, counts, log.schemas())
            for feed in feeds:
                begin(feed)
        upto = min(end, beat + random.choice((2, 8, 16, 40)))
        for offset in range(beat, upto):
            marks.take(log.frontier.records[offset].high, offset + 1, CUT_BYTES / MARK_RECORDS)
        beat = upto
        # Most take each beat. Where they are behind together, they go on from mark to mark.
        turn = [feed for feed in feeds if random.random() < 0.9]
        random.shuffle(turn)
        for feed in turn:
            mark = marks.end(feed.at, [each.at for each in feeds])
            counts["marks"] += mark is not None
            try:
                feed.run(beat if mark is None else mark)
            except KilledError:
                begin(feed)
    for feed in feeds:
        counts += feed.counts
        check(feed, log)
    return counts


def check(feed: Feed, log: ImagedLog) -> None:
    """Check that a changefeed has written the same as its twin that runs alone.

    Raises:
        BrokenError: it has not.
    """
    alone = Feed(feed.wanted, log)
    alone.begin(log.schemas(), MemoryTopic(list(map(bytes, log.events))))
    for epoch in feed.begun:
        alone.run(epoch.end, start=epoch.start)
    if feed.written.keys() != alone.written.keys():
        raise BrokenError(f"{feed.wanted} ends cuts at other ts than alone")
    for upto_ts, messages in alone.written.items():
        written = feed.written[upto_ts]
        if len(written) != len(messages) or not all(map(is_same, messages, written)):
            raise BrokenError(f"{feed.wanted} writes other than alone in the cut up to {upto_ts}")
