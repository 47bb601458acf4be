"""An owner's reign over captures without Kafka, PD, ZooKeeper and processes: everything that is between is real."""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.puller_agent import PullerAgent
from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from consumers.control.core.scheduling.coordinator import Identity
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.owner.reign import Reign
from consumers.control.owner.reign_parts import ReignOptions, ReignParts
from consumers.control.peers.interface import FeedKey
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.tidb.spans import TableSpan
from tests.support.control.local_peers import LocalNet, LocalPeers

CAPTURE = CaptureId("a")
FEED = FeedKey("upstream/u")
VERSION = "0.1.0"


class FakeOwner:
    """Publishes by the real arithmetic, unless the broker is away."""

    def __init__(self) -> None:
        self.published, self.away, self.seen = first_record(1, Ts(0), 1), False, list[set[TableSpan]]()
        self.partitions = 1

    def widen(self, partitions: int) -> None:
        self.partitions = max(partitions, self.partitions)

    def tick(self, inputs: FrontierInputs) -> FrontierRecord | None:
        if self.away:
            raise FrontierUnavailableError("away")
        self.seen.append(set(inputs.spans))
        assert set(inputs.landing) <= inputs.reports.keys(), "a capture was given spans that nobody has heard of"
        record = advance(self.published.widened(self.partitions), inputs)
        moved, self.published = record != self.published, record
        return record if moved else None


class FakePuller:
    """Lands every table up to ``landed`` at once."""

    def __init__(self, capture: CaptureId = CAPTURE) -> None:
        self.capture = capture
        self.regions, self.counting = dict[TableId, list[bytes]](), threading.Event()
        self.counting.set()
        self.starts, self.landed, self.heard = dict[TableSpan, Ts](), Ts(0), list[FrontierRecord]()

    def assign(self, spans: Mapping[TableSpan, Ts]) -> None:
        self.starts.update(spans)

    def remove(self, spans: Iterable[TableSpan]) -> None:
        for span in spans:
            del self.starts[span]

    def table_regions(self, tables: Collection[TableId], at_least: int) -> dict[TableId, list[bytes]]:
        assert self.counting.wait(60)
        return {table: keys for table, keys in self.regions.items() if table in tables and len(keys) + 1 >= at_least}

    def published(self, record: FrontierRecord) -> None:
        self.heard.append(record)

    def report(self) -> LandingReport:
        landed = {span: max(start, self.landed) for span, start in self.starts.items()}
        return LandingReport(
            capture=self.capture, landed_ts=landed, ends=(0,), chunks=(), floors=(0,), repeat_ends=(0,)
        )


class FakeDdl:
    """Hands out records up to a ts."""

    def __init__(self, records: list[DdlRecord]) -> None:
        self.records, self.landed = records, Ts(0)

    def report(self) -> DdlReport:
        return DdlReport(landed_ts=self.landed, end=0)

    def take(self) -> list[DdlRecord]:
        ready = [record for record in self.records if record.ts <= self.landed]
        self.records = self.records[len(ready) :]
        return ready


@dataclass
class Capture:
    """A capture without processes; ``epochs`` counts the starts of its agent."""

    puller: FakePuller
    agent: PullerAgent


class Cluster:
    """Captures that talk without loss, and a reign. Salts and starts of agents are counted, not drawn."""

    def __init__(
        self,
        owner: FakeOwner,
        ddl: FakeDdl,
        options: ReignOptions | None = None,
        captures: tuple[CaptureId, ...] = (CAPTURE,),
    ) -> None:
        self.net, self.epochs, self.salts = LocalNet(), count(), count()
        self.owner, self.ddl, self.options = owner, ddl, options or ReignOptions()
        self.captures = dict[CaptureId, Capture]()
        self.peers = dict[CaptureId, LocalPeers]()
        self.alive: Mapping[CaptureId, CaptureInfo] = {}
        self.saved_epochs = list[int]()
        for capture in captures:
            self.join(capture)
        self.reign = self.elect(captures[0])

    def elect(self, capture: CaptureId, *, epoch: int = 1) -> Reign:
        """Let a capture begin a reign; what it says goes on where the last reign has ended, its own or not."""
        parts = ReignParts(
            me=Identity(
                capture=capture,
                version=VERSION,
                owner_revision=self.owner.published.owner_rev,
                changefeed_epoch=epoch,
            ),
            owner=self.owner,
            ddl=self.ddl,
            peers=self.peers[capture],
            feed=FEED,
            captures=lambda: self.alive,
            count_regions=self.captures[capture].puller.table_regions,
            save_epoch=self.saved_epochs.append,
        )
        self.reign = Reign(
            parts, self.options, had_predecessor=False, sequence=self.sequence, new_salt=lambda: next(self.salts)
        )
        return self.reign

    @property
    def sequence(self) -> int:
        """Of the newest reign."""
        return self.reign.sequence if hasattr(self, "reign") else 0

    def join(self, capture: CaptureId, version: str = VERSION) -> Capture:
        """Register one more, which hears of owners from now on."""
        self.peers[capture], puller = self.net.join(capture), FakePuller(capture)
        info = CaptureInfo(capture_id=capture, address="", version=version, started_at_s=0)
        self.alive = {**self.alive, capture: info}
        agent = PullerAgent(
            capture,
            version,
            0,
            PullerExecutor(puller, self.owner.published),
            self.peers[capture],
            FEED,
            new_epoch=lambda: f"epoch-{next(self.epochs)}",
        )
        self.captures[capture] = Capture(puller, agent)
        self._resolve()
        return self.captures[capture]

    def crash(self, capture: CaptureId) -> None:
        """End a capture, whose node goes at once."""
        del self.captures[capture], self.peers[capture]
        self.net.inboxes.pop(capture)
        self.alive = {name: info for name, info in self.alive.items() if name != capture}
        self._resolve()

    def tick(self, times: int = 8) -> None:
        """Go on until everything that is on its way has come."""
        for _ in range(times):
            for capture in list(self.captures.values()):
                capture.agent.tick()
            self.reign.tick()

    def land(self, ts: int) -> None:
        """Let all that is pulled, and the DDL feed, come to ``ts``."""
        self.ddl.landed = Ts(ts)
        for capture in self.captures.values():
            capture.puller.landed = Ts(ts)

    def pulled(self) -> dict[CaptureId, set[TableSpan]]:
        """Return the spans of each capture."""
        return {name: set(capture.puller.starts) for name, capture in self.captures.items()}

    def close(self) -> None:
        """End the reign."""
        self.reign.close()

    def _resolve(self) -> None:
        for peers in self.peers.values():
            peers.resolve(dict.fromkeys(self.captures, ""))
