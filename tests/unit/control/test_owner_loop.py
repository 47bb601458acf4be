"""A capture's candidacy: whose thread has the reign, and how it comes and goes between the two."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from consumers.control.owner.owner_loop import OwnerLoop, OwnerParts
from consumers.control.owner.reign_parts import ReignOptions
from consumers.control.peers.interface import upstream_feed
from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.frontier import NO_TOPIC_IDS, DdlReport, FrontierRecord, TopicIds
from tests.support.control.local_peers import LocalNet

CAPTURE = CaptureId("a")
WAIT_S = 60.0


class OneElection:
    """Wins at once, as often as it is asked to; knows whether it holds the office."""

    def __init__(self) -> None:
        self.revision = 0
        self.resigned = threading.Event()

    def campaign(self, is_over: Any) -> int | None:
        if is_over():
            return None
        self.revision += 1
        self.resigned.clear()
        return self.revision

    def resign(self) -> None:
        self.resigned.set()


class FrontierInMemory:
    """The frontier topic; notes who publishes."""

    def __init__(self) -> None:
        self.records: list[FrontierRecord] = []

    def publish(self, record: FrontierRecord) -> int:
        self.records.append(record)
        return len(self.records) - 1

    def newest(self) -> FrontierRecord | None:
        return self.records[-1] if self.records else None

    def close(self) -> None:
        """Nothing is open."""


class WatchedDdl:
    """A DDL feed with nothing to say that notes which threads ask it for a report."""

    reason, kind, still_s, span = "", "", 0.0, None

    def __init__(self) -> None:
        self.askers: set[str] = set()
        self.is_stopped = False
        self.error: Exception | None = None

    def start(self) -> Ts:
        return Ts(10)

    def stop(self) -> None:
        self.is_stopped = True

    def status(self) -> Any:
        return self

    def report(self) -> DdlReport:
        self.askers.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return DdlReport(landed_ts=Ts(10), end=0)

    def take(self) -> list[Any]:
        return []


class OneUpstream:
    """An upstream whose parts are all here."""

    def __init__(self) -> None:
        self.topic, self.ddls, self.kept = FrontierInMemory(), list[WatchedDdl](), list[Ts]()

    def ensure_topics(self) -> int:
        return 1

    def count_partitions(self) -> int:
        return 1

    def look_at_log(self, frontier: FrontierRecord | None) -> TopicIds:
        return NO_TOPIC_IDS

    def watch_log(self, newest: Callable[[], FrontierRecord]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def clock_bound(self) -> contextlib.AbstractContextManager[Callable[[Ts], bool]]:
        return contextlib.nullcontext(lambda _: True)

    def ts_source(self) -> contextlib.AbstractContextManager[Callable[[], Ts]]:
        return contextlib.nullcontext(lambda: Ts(1))

    def open_frontier(self) -> Any:
        return self.topic

    def new_ddl_feed(self, frontier: FrontierRecord | None) -> Any:
        self.ddls.append(WatchedDdl())
        return self.ddls[-1]

    @contextlib.contextmanager
    def keep_history(self, ts: Ts) -> Iterator[Any]:
        self.keep(ts)
        yield self

    def keep(self, ts: Ts) -> None:
        self.kept.append(ts)


class Anything:
    """A session whose lease lasts, a node that takes everything, a watch that sees nobody, a puller that is silent."""

    def __init__(self) -> None:
        self.captures: dict[CaptureId, Any] = {}
        self.landed = threading.Event()

    def check_lease(self) -> None:
        """It lasts."""

    def refresh(self) -> None:
        """Nobody comes."""

    def wishes(self) -> None:
        """Nobody wants table images."""

    def epoch(self) -> int:
        return 1

    def write_epoch(self, epoch: int) -> None:
        """Nobody reads it."""

    def tell(self, status: Any) -> None:
        """Nobody reads it."""

    def table_regions(self, tables: Any, at_least: int) -> dict[Any, Any]:
        return {}


class Rig:
    """One candidacy, whose agent's thread is the test's."""

    def __init__(self) -> None:
        self.election, self.upstream, self.failures = OneElection(), OneUpstream(), list[BusError]()
        anything = cast("Any", Anything())
        parts = OwnerParts(
            capture=CAPTURE,
            version="0.1.0",
            session=anything,
            election=cast("Any", self.election),
            node=anything,
            peers=cast("Any", LocalNet().join(CAPTURE)),
            feed=upstream_feed(UpstreamId("u")),
            watch=anything,
            puller=anything,
            upstream=self.upstream,
            replicated=lambda info: lambda table: False,
            sorters=lambda revision, held: contextlib.nullcontext(),
            image_wishes=lambda: contextlib.nullcontext(anything),
        )
        self.is_stopping = threading.Event()
        self.loop = OwnerLoop(parts, ReignOptions(tick_s=0.001), self.failures.append, self.is_stopping.is_set)

    def tick_until_reigning(self) -> None:
        """Wait for the owner's thread to begin a reign, and take it over."""
        waited = threading.Event()
        for _ in range(int(WAIT_S * 1000)):
            self.loop.tick()
            if self.loop.reigning is not None and self.upstream.ddls[-1].askers:
                return
            waited.wait(0.001)
        raise AssertionError(f"no reign was begun: {self.failures}")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    rig.loop.start()
    yield rig
    rig.loop.close()
    assert "owner" not in {thread.name for thread in threading.enumerate()}


def test_owner_loop_lets_only_the_agents_thread_tick_a_reign(rig: Rig) -> None:
    rig.tick_until_reigning()
    for _ in range(10):
        rig.loop.tick()
        rig.loop.rest(0.0, is_agent_settled=True, interrupted=threading.Event())
    (ddl,) = rig.upstream.ddls
    assert ddl.askers == {threading.current_thread().name}
    assert rig.upstream.kept[0] == Ts(10)


def test_owner_loop_when_it_leaves_then_it_gives_the_reign_back_and_the_other_thread_winds_it_up(rig: Rig) -> None:
    rig.tick_until_reigning()
    rig.loop.leave()
    assert not rig.election.resigned.is_set()  # nobody takes a reign from the thread that ticks it
    rig.loop.tick()
    assert rig.election.resigned.wait(WAIT_S)
    rig.loop.close()
    assert rig.upstream.ddls[-1].is_stopped
    assert rig.loop.orders is None
    assert rig.failures == []


def test_owner_loop_of_a_capture_that_is_stopping_is_not_elected_before_it_leaves() -> None:
    rig = Rig()
    rig.is_stopping.set()
    rig.loop.start()
    assert rig.election.resigned.wait(WAIT_S)
    assert rig.election.revision == 0
    rig.loop.close()


def test_owner_loop_when_an_operator_wants_another_owner_then_a_later_reign_has_a_higher_revision(rig: Rig) -> None:
    rig.tick_until_reigning()
    reigning = rig.loop.reigning
    assert reigning is not None
    reigning.reign.is_resigning = True
    rig.loop.tick()
    assert reigning.given_back.is_set()
    waited = threading.Event()
    while rig.loop.reigning in (None, reigning):
        waited.wait(0.001)
    rig.tick_until_reigning()
    assert [record.owner_rev for record in rig.upstream.topic.records] == sorted(
        record.owner_rev for record in rig.upstream.topic.records
    )
    assert rig.election.revision == 2


def test_owner_loop_closed_before_a_reign_was_taken_over_ends_it_all_the_same(rig: Rig) -> None:
    waited = threading.Event()
    while rig.loop.reigning is None:
        waited.wait(0.001)
    rig.loop.close()
    assert rig.upstream.ddls[-1].is_stopped


class DdlError(BusError):
    """What a DDL feed may say."""

    code, action = "scheduling.move_refused", Action.STOP_CHANGEFEED


@pytest.mark.parametrize(
    ("error", "raised"), [(DdlError("the schema cannot take it"), DdlError), (KeyError("a bug"), InvariantBrokenError)]
)
def test_owner_loop_when_a_reign_fails_then_the_ticking_thread_hears_of_it(
    rig: Rig, error: Exception, raised: type[BusError]
) -> None:
    rig.tick_until_reigning()
    rig.upstream.ddls[-1].error = error
    with pytest.raises(raised):
        rig.loop.tick()
