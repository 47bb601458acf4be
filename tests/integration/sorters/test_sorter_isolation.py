"""One changefeed's trouble in a real sorter service, under a capture's fleet and an owner: its neighbours go on.

The trouble is planted where rows become records. A changefeed has it whose name begins with its kind.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from consumers.control.core.changefeeds.service_plan import dedicated_id
from consumers.control.fleets import service_fleet
from schemas.nodes.changefeed import ZkPaths
from sorters.core.service.quotas import BURST_S
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.sorter_fleet import CANAL, ROWS, Fleet, FleetBus, eventually

NIGHTLY = pytest.mark.skipif(
    not os.environ.get("NIGHTLY_ISOLATION"),
    reason="a service that ends by itself is seen by `abort`, in make test; make nightly ends it in other ways as well",
)
MEMORY_BYTES_MAX = 900_000_000
LEAK_BYTES = 150_000_000
STILL_S = 8.0
"""Sooner than a capture says that a service stands still; a busy machine lets one wait for some seconds, too."""
FLOODS = 8
FLOOD_PIECES, FLOOD_PIECE_S = 10, 0.1
"""What a cut of the flood computes, in CPU time: together some 8 s for each time that rows are written."""
TROUBLE = f"""
import ctypes, os, sys, threading, time
from pathlib import Path
from sorters.cut import small_cut

def flood():
    until = time.thread_time() + {FLOOD_PIECE_S}
    while time.thread_time() < until:
        sum(range(1000))

leaked = []
def leak():
    # While the neighbour has no cut under way: cuts that are share what the process grows by.
    now, until = Path("@LEAK_NOW@"), time.monotonic() + 60
    while not now.exists() and time.monotonic() < until:
        time.sleep(0.02)
    leaked.append(b"x" * {LEAK_BYTES})
    now.unlink(missing_ok=True)

troubles = {{
    "abort": os.abort,
    "null": lambda: ctypes.memset(0, 0, 1),
    "hang": lambda: ctypes.PyDLL(None).sleep(600),
    "leak": leak,
}}
whole = small_cut.whole_cut

def troubled(cut, raw, program, extras, encoded_at_ms, output_bytes_max, between):
    has_rows, name = bool(raw.tables(cut)), threading.current_thread().name
    for kind, trouble in troubles.items():
        if has_rows and name.startswith("feed default/" + kind):
            trouble()
    if has_rows and name.startswith("feed default/flood"):
        for _ in range({FLOOD_PIECES}):
            flood()
            between()
    return whole(cut, raw, program, extras, encoded_at_ms, output_bytes_max, between)

small_cut.whole_cut = troubled
from compose.cli import main
if sys.argv[1] == "sorters":
    sys.argv += ["--spark-on-demand", "--memory-bytes-max", "{MEMORY_BYTES_MAX}"]
sys.exit(main())
"""


class World:
    """A capture and an owner, with a neighbour that has no trouble."""

    def __init__(self, bus: FleetBus, fleet: Fleet, fresh_name: Callable[[str], str], leak_now: Path) -> None:
        self.bus, self.fleet, self._fresh_name, self.leak_now = bus, fleet, fresh_name, leak_now
        self.topic = fresh_name("topic")
        self.bus.create("neighbour", f"{self.topic}?{CANAL}")
        self.write()

    def create(self, name: str, **config: object) -> str:
        """Create a changefeed, and return its topic."""
        topic = self._fresh_name("topic")
        self.bus.create(name, f"{topic}?{CANAL}", config={"sorter": config})
        return topic

    def write(self) -> float:
        """Write rows, and return after how many seconds the neighbour had them downstream."""
        upto, began_at = self.bus.write(), time.monotonic()
        self.bus.wait_checkpoint("neighbour", upto)
        return time.monotonic() - began_at

    def let_leak(self, deaths: int) -> None:
        """Let what leaks do so once, unless it has died so often."""
        self.leak_now.touch()
        eventually(
            lambda: (
                not self.leak_now.exists()
                or ((status := self.bus.status("leak")) is not None and status.sorter_deaths >= deaths)
            )
        )

    def own(self, name: str) -> str:
        """Return the id of a changefeed's own service."""
        return dedicated_id(self.fleet.services.service_id, ("default", name))

    def has_own(self, name: str) -> bool:
        return self.fleet.assigned().get(("default", name)) == self.own(name)

    def repeats(self) -> int:
        """Return how many of the neighbour's rows came more than once, and hold that none is lost or out of order."""
        ids = self.bus.ids(self.topic)
        firsts = list(dict.fromkeys(ids))
        written = self.bus.landed_rows
        assert firsts == list(range(written))
        return len(ids) - written


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[World]:
    with lasting_session(stack.zookeeper_access) as session:
        bus = FleetBus(stack, session, ZkPaths(fresh_name("cluster")), fresh_name("up"))
        leak_now = tmp_path / "leak-now"
        fleet = Fleet(bus, tmp_path, (sys.executable, "-c", TROUBLE.replace("@LEAK_NOW@", str(leak_now))))
        with fleet.services, fleet.services.attached(session), fleet.assigner:
            yield World(bus, fleet, fresh_name, leak_now)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("abort", "signal 6"),
        pytest.param("null", "signal 11", marks=NIGHTLY),
        ("hang", "standing still"),
        pytest.param("leak", "status 1", marks=NIGHTLY),
    ],
)
def test_changefeed_that_ends_its_service_is_named_and_then_runs_alone(
    world: World, kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "hang":
        monkeypatch.setattr(service_fleet, "STILL_S", STILL_S)
    pid = world.fleet.pid
    world.create(kind)
    for deaths in (1, 2):
        while (status := world.bus.status(kind)) is None or status.sorter_deaths < deaths:
            world.write()  # the neighbour goes on; what leaks needs some cuts to be noticed
            if kind == "leak":
                world.let_leak(deaths)
        assert status.error is not None
        assert (status.error.code, words in status.error.message) == ("sorter.died", True), status.error.message
    eventually(lambda: world.has_own(kind))
    eventually(lambda: world.own(kind) in world.fleet.services.pids())
    shared = world.fleet.pid
    assert shared != pid
    repeats = world.repeats()
    for _ in range(5):
        world.write()
    assert (world.fleet.pid, world.repeats()) == (shared, repeats), "nobody else dies of it any more"
    neighbour = world.bus.status("neighbour")
    assert neighbour is not None
    assert neighbour.state == "normal"
    if kind != "hang":  # nobody can tell which of those that computed held the interpreter
        assert neighbour.sorter_deaths == 0


def test_service_that_is_asked_by_a_signal_says_where_its_threads_stand_and_goes_on(world: World) -> None:
    pid, log = world.fleet.pid, service_fleet.service_log(world.fleet.folder)
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: "thread stands thread_name=feed default/neighbour stack=" in log.read_text())
    world.write()
    assert (world.fleet.pid, world.repeats()) == (pid, 0)


def test_changefeed_that_wants_a_process_has_it_from_the_start_and_harms_nobody(world: World) -> None:
    pid = world.fleet.pid
    world.create("abort", isolation="process")
    while (status := world.bus.status("abort")) is None or status.sorter_deaths < 1:
        world.write()
    assert status.error is not None
    assert status.error.code == "sorter.died"
    world.write()
    assert (world.fleet.pid, world.repeats()) == (pid, 0)


def test_changefeeds_that_flood_leave_their_neighbour_its_turns_and_one_that_is_given_up_nobodys_records(
    world: World,
) -> None:
    pid = world.fleet.pid
    floods = [f"flood-{number}" for number in range(FLOODS)]
    topics = [world.create(name) for name in floods]
    for name in floods:
        world.bus.wait(name, lambda status: status.state == "normal")
    lags = sorted(world.write() for _ in range(5))
    world.bus.control.remove(floods[0])  # its thread computes, or waits for a turn: it is given up in mid-cut
    written_at = time.monotonic()
    lags = sorted([*lags, world.write()])
    assert (world.fleet.pid, world.repeats()) == (pid, 0)
    upto = world.bus.newest_ts
    for name, topic in zip(floods[1:], topics[1:], strict=True):
        world.bus.wait_checkpoint(name, upto)
        assert world.bus.ids(topic) == list(range(world.bus.landed_rows)), name
    flood_s = time.monotonic() - written_at
    assert lags[len(lags) // 2] < flood_s / 2, "the neighbour has its turn between two pieces of the flood's"


def test_changefeed_over_its_rows_per_second_is_deferred_alone_and_loses_nothing(world: World) -> None:
    topic = world.create("slow", **{"rows-per-second-max": ROWS // 4})
    world.bus.wait_checkpoint("slow", world.bus.newest_ts)
    began_at, alone = time.monotonic(), 0
    for _ in range(3):
        world.write()
        status = world.bus.status("slow")
        alone += status is not None and status.checkpoint_ts < world.bus.newest_ts
        world.bus.wait_checkpoint("slow", world.bus.newest_ts)
    slow_s = time.monotonic() - began_at
    assert slow_s > 3 * 4 - BURST_S - 1, "each cut is of ROWS rows, and begins when the one before has been earned"
    assert alone, "the neighbour has its rows while the other waits"
    assert world.bus.ids(topic) == list(range(world.bus.landed_rows))


def test_service_that_stands_still_is_killed_and_nobody_is_named_where_nobody_computed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_fleet, "STILL_S", STILL_S)
    pid = world.fleet.pid
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: world.fleet.services.pids().get(world.fleet.services.service_id, pid) != pid)
    world.write()
    status = world.bus.status("neighbour")
    assert status is not None
    assert status.sorter_deaths == 0
    world.repeats()
