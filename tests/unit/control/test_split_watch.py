"""Counting regions aside, now and then: what is assigned when, and when PD is away."""

import threading
from collections.abc import Collection

import pytest

from consumers.control.core.frontier.span_split import SplitSettings
from consumers.control.owner.split_watch import SplitWatch
from producers.errors import PdUnreachableError
from schemas.ids import TableId
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan

BIG, SMALL = TableId(45), TableId(46)
ON = SplitSettings(enable_table_across_nodes=True, region_threshold=10)
WHOLE = (TableSpan.of_table(BIG),)


class Regions:
    """Counts as it is told to; a count ends when ``go`` is set."""

    def __init__(self) -> None:
        self.boundaries: dict[TableId, list[bytes]] = {BIG: [row_key(BIG, number) for number in range(20)]}
        self.go, self.away, self.asked = threading.Event(), False, list[tuple[frozenset[TableId], int]]()
        self.go.set()

    def count(self, tables: Collection[TableId], at_least: int) -> dict[TableId, list[bytes]]:
        self.asked.append((frozenset(tables), at_least))
        assert self.go.wait(60)
        if self.away:
            raise PdUnreachableError("PD does not answer")
        return self.boundaries


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def made(settings: SplitSettings = ON) -> tuple[SplitWatch, Regions, Clock]:
    regions, clock = Regions(), Clock()
    return SplitWatch(settings, regions.count, every_s=300, clock=clock), regions, clock


def until_ready(watch: SplitWatch) -> None:
    waited = threading.Event()
    while not watch.ready([BIG, SMALL]):
        waited.wait(0.001)


def next_look(watch: SplitWatch, spans: dict[TableId, tuple[TableSpan, ...]], regions: Regions) -> object:
    """Look until one more count has been taken."""
    waited, before = threading.Event(), len(regions.asked)
    new_spans: dict[TableId, tuple[TableSpan, ...]] = {}
    while not new_spans and (len(regions.asked) == before or watch.counting):
        new_spans = watch.look(spans)
        waited.wait(0.001)
    return new_spans


def test_split_watch_switched_off_never_counts() -> None:
    watch, regions, clock = made(SplitSettings(region_threshold=10))
    assert watch.ready([BIG])
    clock.now_s = 1e6
    assert watch.look({BIG: WHOLE}) == {}
    assert (watch.spans_of(BIG), regions.asked) == (WHOLE, [])


def test_split_watch_first_count_is_awaited_and_large_tables_begin_split() -> None:
    watch, regions, _ = made()
    regions.go.clear()
    assert not watch.ready([BIG, SMALL])
    assert not watch.ready([BIG, SMALL])
    regions.go.set()
    until_ready(watch)
    assert regions.asked == [(frozenset({BIG, SMALL}), 5)]
    assert (len(watch.spans_of(BIG)), watch.spans_of(SMALL)) == (3, (TableSpan.of_table(SMALL),))


def test_split_watch_later_counts_split_and_join_once_each() -> None:
    watch, regions, clock = made()
    regions.boundaries = {}
    until_ready(watch)
    assert (watch.look({BIG: WHOLE}), len(regions.asked)) == ({}, 1)
    regions.boundaries = {BIG: [row_key(BIG, number) for number in range(20)]}
    clock.now_s = 301
    new = next_look(watch, {BIG: WHOLE}, regions)
    parts = watch.spans_of(BIG)
    assert (new, len(parts)) == ({BIG: parts}, 3)
    assert watch.look({BIG: WHOLE}) == {}
    regions.boundaries, clock.now_s = {}, 602
    assert next_look(watch, {BIG: parts}, regions) == {BIG: WHOLE}


def test_split_watch_when_pd_is_away_tables_begin_whole_and_split_ones_stay(caplog: pytest.LogCaptureFixture) -> None:
    watch, regions, clock = made()
    regions.away = True
    until_ready(watch)
    assert watch.spans_of(BIG) == WHOLE
    assert "regions of tables are not counted" in caplog.text
    regions.away, clock.now_s = False, 301
    assert next_look(watch, {BIG: WHOLE}, regions) == {BIG: watch.spans_of(BIG)}
    parts = watch.spans_of(BIG)
    regions.away, clock.now_s = True, 602
    assert next_look(watch, {BIG: parts}, regions) == {}
