"""Who lets the driver's writer take in what its client says while no cut is written: the run, at each look."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.producer_figures import NO_PRODUCER
from sorters.core.records.order import no_records
from sorters.cut.small_cut import SmallCut
from sorters.run.feed_run import FeedRun


class Writer:
    """A writer that counts how often it was tended."""

    def __init__(self) -> None:
        self.tended = 0

    def tend(self) -> None:
        self.tended += 1


def test_small_cut_tends_the_writer_that_it_keeps() -> None:
    small, writer = SmallCut(lambda _: cast("Any", None), lambda _: cast("Any", None), {}), Writer()
    small.tend()  # of none
    small._writer = cast("Any", ((1, 1), writer))
    small.tend()
    assert writer.tended == 1


def test_small_cut_ends_the_writer_that_it_keeps_when_it_needs_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimpleNamespace] = []

    def writer(*_: object, **__: object) -> SimpleNamespace:
        ended: list[bool] = []
        made.append(
            SimpleNamespace(
                ended=ended,
                abandon=lambda: ended.append(True),
                write=lambda *_: None,
                finish=lambda: None,
                figures=lambda: NO_PRODUCER,
            )
        )
        return made[-1]

    monkeypatch.setattr("sorters.cut.small_cut.record_writer", writer)
    small = SmallCut(lambda _: cast("Any", None), lambda _: cast("Any", None), {"bootstrap.servers": "h:1"})
    for sizes in ({"t": 9_000}, {"t": 9_000}, {"t": 9_000, "u": 8_000}):
        small.write(no_records(), cast("Any", SimpleNamespace(feed=SimpleNamespace(topic_message_bytes=sizes))))
    assert [each.ended for each in made] == [[True], []]


@pytest.mark.parametrize("records", [["a record"], []])
def test_run_tends_at_each_look_also_where_no_cut_comes_of_what_it_hears(
    records: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records it looks once in a silence, which is over here as soon as it has begun."""
    monkeypatch.setattr("sorters.run.feed_run._SILENCE_S", 0.0)
    stopping, writer, looks = threading.Event(), Writer(), iter([records, records, records])

    def read(_count: int, _timeout_s: float) -> list[str]:
        heard = next(looks, None)
        if heard is None:
            stopping.set()
        return heard or []

    @contextmanager
    def follow(_start: int) -> Iterator[Any]:
        yield SimpleNamespace(read=read)

    epochs = SimpleNamespace(
        plan=lambda start, end, _records: SimpleNamespace(start=start, end=end),
        missing=lambda _: [],
        run=lambda _: None,
    )
    run = SimpleNamespace(
        _stopping=stopping,
        _sources=SimpleNamespace(follow=follow, check_log=lambda: None),
        _frontier=SimpleNamespace(end=lambda: 0),
        _job=SimpleNamespace(tend=writer.tend, is_small=lambda _: True, record_bytes=1.0),
    )
    FeedRun._follow(cast("FeedRun", run), cast("Any", epochs), 0)
    assert writer.tended >= 3
