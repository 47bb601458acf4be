"""A capture's figures: each second, and seldom where asking costs much, by CPU time and not by how long it took."""

from compose.capture.puller_figures import BUSY_SHARE_MAX, EVERY_S, PullerFigures
from producers.pull.feed.types import FeedCounters
from producers.pull.landing.landing import LandingCounters
from producers.pull.puller import PullerStats


class Machine:
    """Its clocks; asking takes and costs what the test says."""

    def __init__(self, takes_s: float, costs_s: float) -> None:
        self.now_s, self.cpu_s, self.asked = 100.0, 5.0, 0
        self._takes_s, self._costs_s = takes_s, costs_s
        self.figures = PullerFigures(self.stats, lambda: self.now_s, lambda: self.cpu_s)

    def stats(self) -> PullerStats:
        self.asked += 1
        self.now_s += self._takes_s
        self.cpu_s += self._costs_s
        return PullerStats(
            at_s=self.now_s, feed=FeedCounters(), landing=LandingCounters(), tables=1, spans=1, regions=self.asked,
            regions_initialized=0, scans_running=0, scans_waiting=0, streams=0, troubles={}, held_bytes=0, in_flight=0,
            stalls=(), broker_reason="",
        )  # fmt: skip

    def regions(self, after_s: float = 0.0) -> int:
        self.now_s += after_s
        figures = self.figures()
        assert figures is not None
        return figures.regions


def test_figures_that_cost_little_are_new_each_second_however_long_asking_takes() -> None:
    machine = Machine(takes_s=20.0, costs_s=0.001)
    assert [machine.regions(), machine.regions(EVERY_S / 2), machine.regions(EVERY_S / 2)] == [1, 1, 2]


def test_figures_that_cost_much_are_seldom_new() -> None:
    machine = Machine(takes_s=1.0, costs_s=1.0)
    assert machine.regions() == 1
    assert machine.regions(0.9 / BUSY_SHARE_MAX) == 1
    assert machine.regions(0.2 / BUSY_SHARE_MAX) == 2
