"""The simulated images: one clock, one Random, owners that change in the midst of a step, captures that scan."""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random

from compose.simulation.broker import Broker
from compose.simulation.images.owner import SimOwner
from compose.simulation.images.reader import SimReader
from compose.simulation.images.scanner import ImageRecord, SimScanner
from compose.simulation.images.tables import FEEDS, KEYS, Tables
from compose.simulation.law import BrokenPromiseError
from compose.simulation.surroundings import EPOCH_MS, TICK_MS
from consumers.control.log.frontier_topic import FrontierUnavailableError
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId, TableId, Ts, compose_ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import ImageChunk, ImageMode, KeyRange
from schemas.tidb.keys import row_key

DEPTH_MAX = 2
SCANNERS_MAX = 3


class ImageWorld:
    """The seed decides how bad things are, too."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.chances = Random(seed)  # noqa: S311 - of what came later: seeds go on as they did
        self.initial_share = 0.8
        """Of changefeeds that want images by themselves; of the others some are asked for by hand."""
        self.now = self.depth = self.births = self.revision = 0
        self.ts = Ts(0)
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.has_faults = True
        self.broker = Broker(1)
        self.topic: list[ImageRecord] = []
        self.late: list[ImageRecord] = []
        self.tables = Tables(random, self.next_ts)
        self.landed_ts = self.laggard_ts = self.known_ts = self.next_ts()
        self.trouble = random.choice((0.05, 0.1, 0.25))
        self.failures = random.choice((0.0, 0.05, 0.2))
        self.hangs = random.choice((0.0, 0.1))
        self.held_lag_s = random.choice((0.2, 1e6))
        self.stuck_until = self.lags_until = self.blind_until = 0
        self.looks = Random(seed)  # noqa: S311 - likewise
        self.blindness = 0.0
        """How often nobody can see, for a while, which changefeeds want images."""
        self.come_unread: set[tuple[str, TableId]] = set()
        """Tables that came to changefeeds while the owner had not seen yet what those want."""
        self.owners: list[SimOwner] = []
        self.scanners: dict[CaptureId, SimScanner] = {}
        self.readers: dict[str, SimReader] = {}
        self.rests = Random(seed)  # noqa: S311 - likewise
        self.parts = Random(seed)  # noqa: S311 - likewise
        self.paused: set[str] = set()
        self.resting: dict[str, set[TableId]] = {}
        """Tables of which no chunk is begun, by changefeed."""
        self.ranks: dict[str, dict[TableId, int]] = {}
        self.lag_max_s = self.rests.choice((0.0, 0.0, 0.3))
        self.asked: dict[str, list[TableId]] = {}
        """Tables whose image was asked for by hand."""
        self.asked_mode: dict[str, ImageMode] = {}
        self.asked_part: dict[str, range] = {}
        """Keys of each table, where an image of no more was asked for."""
        self.resynced: set[tuple[str, TableId]] = set()
        """Which changefeeds were to delete what the image of a table lacks, by the records that counted."""
        self.removed: set[str] = set()
        self.settled_waits: dict[tuple[str, TableId], bool] = {}
        self._registered: dict[str, FrontierRecord] = {}
        self._registered_tables: dict[str, list[TableId]] = {}
        self._seen = 0
        for _ in range(random.randint(1, 2)):
            self.start_scanner()
        self.elect()
        self.create_feed()

    # -- time and traces

    def next_ts(self) -> Ts:
        """Return the next TSO."""
        self.ts = max(Ts(self.ts + 1), compose_ts(self.now_ms))
        return self.ts

    @property
    def now_ms(self) -> int:
        """PD's clock."""
        return EPOCH_MS + self.now * TICK_MS

    def clock(self) -> float:
        """Return seconds."""
        return self.now * TICK_MS / 1000

    def note(self, kind: str, *what: object) -> None:
        """Write a line of the trace."""
        self.counts[kind] += 1
        self.trace.append((self.now, kind, *what))

    def trace_hash(self) -> str:
        """Return what two runs of a seed must have in common."""
        return blake2b(repr((self.trace, self.broker.frontier)).encode(), digest_size=8).hexdigest()

    # -- who is there

    def start_scanner(self) -> None:
        """Start a capture."""
        self.births += 1
        capture = CaptureId(f"c{self.births}")
        self.scanners[capture] = SimScanner(self, capture, self.random)
        newest = self.broker.newest_followed()
        if newest is not None:
            self.scanners[capture].hear(newest)

    def kill_scanner(self) -> None:
        """End a capture; what it was about to land may land, and nobody hears of it."""
        capture = self.random.choice(sorted(self.scanners))
        scanner = self.scanners.pop(capture)
        for key in list(scanner.running):
            scanner._give_up(key)
        self.note("crash", capture)
        if not self.scanners:
            self.start_scanner()

    def elect(self) -> None:
        """Let there be another owner; those before it may not know yet."""
        for owner in self.owners:
            owner.is_deposed = True
        self.revision += 1
        self.note("elect", self.revision)
        try:
            self.owners.append(SimOwner(self, self.revision))
        except (LeaseLostError, FrontierUnavailableError):
            self.note("unelected", self.revision)

    def create_feed(self) -> None:
        """Create a changefeed; most want images."""
        newest = self.broker.newest_followed()
        name = next((feed for feed in FEEDS if feed not in self.readers and feed not in self.removed), None)
        if name is None or newest is None:
            return
        is_initial = self.random.random() < self.initial_share
        reader = SimReader(self, name, is_initial, self.random.random() < 0.5, newest.resolved_ts)
        reader.is_topic = self.chances.random() < 0.5
        self.readers[name] = reader
        self.note("create", name, is_initial, reader.is_topic)

    # -- what they do to each other

    def tell(self, record: FrontierRecord) -> None:
        """Let captures hear of a record, or not: they hear of the next one."""
        for scanner in self.scanners.values():
            if self.random.random() < 0.7:
                scanner.hear(record)

    def land(self, record: ImageRecord) -> None:
        """Append to the images topic."""
        self.topic.append(record)

    def is_of(self, chunk: ImageChunk, record: ImageRecord) -> bool:
        """Tell whether a record within a chunk's offsets is of its scan."""
        return (record.barrier_ts, record.number, record.attempt) == (chunk.ts, chunk.number, chunk.attempt)

    @staticmethod
    def key(table_id: TableId, number: int) -> bytes:
        """Return a raw key."""
        return row_key(table_id, number)

    def maybe_stand_still(self, owner: SimOwner) -> None:
        """Let the world go on in the midst of a step of an owner."""
        if not self.has_faults or self.depth >= DEPTH_MAX or self.random.random() > 0.02:
            return
        self.depth += 1
        ticks = self.random.choice((1, 3, 10))
        self.note("freeze", owner.owner_rev, ticks)
        if self.random.random() < 0.5:
            self.elect()
        for _ in range(ticks):
            self.tick()
        self.depth -= 1

    # -- one tick

    def tick(self) -> None:
        """Let everything happen that happens in 50 ms."""
        self.now += 1
        random = self.random
        if random.random() < 0.5:
            self.tables.commit()
        if self.has_faults and random.random() < self.trouble:
            self._disturb()
        if self.has_faults and self.rests.random() < 0.03:
            self._rest()
        if self.has_faults and self.looks.random() < self.blindness:
            self.blind_until = self.now + self.looks.choice((2, 8, 20))
            self.note("blind", self.blind_until)
        if self.now >= self.stuck_until and random.random() < 0.7:
            self.landed_ts = self.next_ts()
            if self.now >= self.lags_until:
                self.laggard_ts = self.landed_ts
        for scanner in list(self.scanners.values()):
            if random.random() < 0.7:
                newest = self._current()
                if newest is not None and random.random() < 0.3:
                    scanner.hear(newest)
                scanner.work()
        if self.late and random.random() < 0.2:
            self.land(self.late.pop(0))
        for owner in list(self.owners):
            self._run(owner)
        self.owners = [owner for owner in self.owners if not owner.is_dead]
        if not self.owners:
            self.elect()
        self._look()

    def _current(self) -> FrontierRecord | None:
        owner = self.owners[-1] if self.owners else None
        return owner.owner.published if owner is not None and not owner.is_deposed else None

    def _run(self, owner: SimOwner) -> None:
        if owner.busy:
            return
        owner.busy = True
        try:
            owner.topic.straggle()
            owner.tick()
        except LeaseLostError:
            owner.is_dead = True
        except FrontierUnavailableError:
            if owner.is_deposed:
                owner.is_dead = True
        finally:
            owner.busy = False

    def _disturb(self) -> None:
        random = self.random
        what: list[Callable[[], object]] = [
            lambda: self.note("ddl", self.tables.alter()),
            lambda: self.note("ddl", self.tables.alter()),
            self.kill_scanner,
            self.elect,
            self.create_feed,
            self._stick,
            self._lag,
            self._pause,
            self._ask,
        ]
        if len(self.readers) > 1:
            what.append(self._remove)
        if len(self.scanners) < SCANNERS_MAX:
            what.append(self.start_scanner)
        random.choice(what)()

    def _stick(self) -> None:
        self.stuck_until = self.now + self.random.choice((3, 10, 30))
        self.note("stick", self.stuck_until)

    def _lag(self) -> None:
        self.lags_until = self.now + self.random.choice((10, 40))
        self.note("lag", self.lags_until)

    def _pause(self) -> None:
        name = self.random.choice(FEEDS)
        if name in self.paused:
            self.paused.remove(name)
        elif name in self.readers:
            self.paused.add(name)
        self.note("pause", name)

    def _rest(self) -> None:
        """Pause some tables of a changefeed, or resume all."""
        name, tables = self.rests.choice(FEEDS), sorted(self.tables.tables)
        resting = self.resting.pop(name, None)
        if resting is None:
            self.resting[name] = set(self.rests.sample(tables, min(len(tables), 2)))
            self.ranks[name] = {table: self.rests.randrange(2) for table in self.rests.sample(tables, 1)}
        self.note("rest", name, sorted(self.resting.get(name, ())))

    def _ask(self) -> None:
        """An operator asks for the tables of a changefeed that wants no images by itself."""
        for name, reader in self.readers.items():
            if not reader.is_initial and name not in self.asked:
                self.asked[name] = self.tables.of_feed(name, self.known_ts, self.known_ts)
                self.asked_mode[name] = self.chances.choice((ImageMode.BACKFILL, ImageMode.RESYNC, ImageMode.RESYNC))
                if self.asked_mode[name] is ImageMode.BACKFILL and self.rests.random() < 0.5:
                    self.asked_part[name] = _some_keys(self.rests)
                elif self.asked_mode[name] is ImageMode.RESYNC and not reader.is_topic and self.parts.random() < 0.7:
                    # Topics have no word for it.
                    self.asked_part[name] = _some_keys(self.parts)
                self.note("ask", name, self.asked[name], self.asked_mode[name], self.asked_part.get(name))
                return

    def part(self, feed: str, table_id: TableId) -> KeyRange:
        """Return what of a table was asked for."""
        keys = self.asked_part[feed]
        return KeyRange(self.key(table_id, keys.start), self.key(table_id, keys.stop))

    def _remove(self) -> None:
        if self.random.random() < 0.3:
            name = self.random.choice(sorted(self.readers))
            del self.readers[name]
            self.removed.add(name)
            self.note("remove", name)

    # -- what must hold

    def _look(self) -> None:
        followed = self.broker.followed
        for number in range(self._seen, len(followed)):
            self._check(followed[number - 1] if number else None, followed[number])
        self._seen = len(followed)
        for reader in self.readers.values():
            if reader.name not in self.paused and self.random.random() < 0.3:
                reader.read(self.random.randint(reader.at, len(followed)))
                if self.random.random() < 0.1:
                    reader.read_again()

    def _check(self, before: FrontierRecord | None, record: FrontierRecord) -> None:
        state = record.images
        was_open = {barrier.ts for barrier in before.images.barriers} if before else set()
        for barrier in state.barriers:
            if barrier.ts not in was_open:
                self.note("open", barrier.ts, barrier.feeds)
                if record.resolved_ts >= barrier.ts:
                    raise BrokenPromiseError(f"a barrier at {barrier.ts} is announced at {record.resolved_ts}")
        open_feeds = [feed for barrier in state.barriers for feed in barrier.feeds]
        if len(open_feeds) > len(set(open_feeds)):
            raise BrokenPromiseError(f"a changefeed is in two barriers: {state.barriers}")
        if before is not None and state.version != before.images.version:
            self.note("images", state.version, len(state.chunks), state.cancelled)
        for feed in state.feeds:
            if feed.resync:
                self.resynced.update(
                    (feed.feed, table) for table in self.tables.tables if feed.mode_of(table) is ImageMode.RESYNC
                )
            if feed.feed not in self._registered:
                self._registered[feed.feed] = record
                self._registered_tables[feed.feed] = [
                    table
                    for table in self.tables.tables
                    if feed.mode_of(table) in (ImageMode.BACKFILL, ImageMode.RESYNC)
                ]
                for table in self.tables.tables.values():
                    if feed.mode_of(table.table_id) is ImageMode.INITIAL and table.covered(
                        feed.feed, record.resolved_ts
                    ):
                        self.settled_waits[feed.feed, table.table_id] = True

    def backfilled(self, feed: str) -> list[tuple[TableId, Ts]]:
        """Return the tables that were asked for, with when the changefeed was registered."""
        registered = self._registered.get(feed)
        if registered is None:
            return []
        tables = self._registered_tables[feed]
        return [(table, registered.resolved_ts) for table in tables]

    def note_entered(self) -> None:
        """Note which tables came into changefeeds that were registered before."""
        for job in self.tables.jobs:
            for feed, table in job.entered:
                registered, reader = self._registered.get(feed), self.readers.get(feed)
                is_initial = reader and reader.is_initial and (feed, table) not in self.come_unread
                if is_initial and registered and registered.resolved_ts < job.ts:
                    self.settled_waits[feed, table] = True

    def unsettled(self) -> str | None:
        """Return who has not got all images, or not come to the newest R, or None."""
        followed = self.broker.followed
        if not self.readers:
            return "there is no changefeed"
        for reader in self.readers.values():
            feed = followed[-1].images.feed(reader.name)
            if (feed is None and reader.is_initial) or (feed and feed.waits):
                return f"{reader.name} waits for {feed}"
            # What is gone before the owner saw that it was asked for is refused.
            own = self.tables.of_feed(reader.name, self.known_ts, self.known_ts)
            if promised := [table for table in self.asked.get(reader.name, ()) if not self.blindness or table in own]:
                return f"{reader.name} was promised {promised}"
            reader.read(len(followed))
            if reader.checkpoint_ts < followed[-1].resolved_ts:
                return f"{reader.name} stands at {reader.checkpoint_ts} of {followed[-1].resolved_ts}"
        return None


def _some_keys(random: Random) -> range:
    start = random.randrange(KEYS)
    return range(start, random.randint(start + 1, KEYS))
