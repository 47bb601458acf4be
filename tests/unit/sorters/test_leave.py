"""A cut is encoded while its leave is asked for, and nothing of it is written before it is given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import no_records
from sorters.cut import small_cut
from sorters.cut.feed_share import WholeProcess
from sorters.cut.leave import GIVEN, asked_at_once
from sorters.cut.raw_cut import RawCut
from sorters.cut.record_writer import NOWHERE, Nowhere
from sorters.cut.small_cut import SmallCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from sorters.run.nodes.feed_lock import SorterLockLostError
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE, TS = TableId(112), 445644800000000001


class Watched:
    """A leave, a share and a writer that note who is called."""

    def __init__(self, *, is_given: bool = False, refused: str = "") -> None:
        self.calls: list[str] = []
        self.is_given, self._refused = is_given, refused

    def wait(self) -> None:
        self.calls.append("leave")
        if self._refused:
            raise SorterLockLostError(self._refused)

    def writer(self, *_: object, stopped: Callable[[], bool], **__: object) -> Nowhere:
        calls = self.calls

        class Writer(Nowhere):
            def write(self, *_: object, **__: object) -> None:
                calls.append("written")

        return Writer(stopped)

    def share(self) -> WholeProcess:
        calls = self.calls

        class Share(WholeProcess):
            @contextmanager
            def computing(self, stopped: Callable[[], bool]) -> Iterator[None]:
                calls.append("turn")
                yield

            @contextmanager
            def waiting(self) -> Iterator[None]:
                calls.append("turn given up")
                yield
                calls.append("turn")

        return Share()


def run_small(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> int:
    infos = [table_info(TABLE, "t", columns=[column(1, "id", not_null=True, flag=PRIMARY), column(2, "c")])]
    feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", {}), "default", {"t": 3})
    change = CommittedChange(TS, TS - 1, row_key(TABLE, 1), "put", encode_row_v2({2: b"\x01"}), b"", 0)
    batch = RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(TABLE, [change]))
    raw = RawCut([encode_region_batch(batch, 1)], 0)
    cut = Cut(after_ts=Ts(TS - 1), upto_ts=Ts(TS), start=(0,), end=(1,), may_repeat=False, ddl_end=0)

    def noted(*args: Any, **named: Any) -> Any:
        watched.calls.append("encoded")
        return whole_cut(*args, **named)

    monkeypatch.setattr(small_cut, "record_writer", watched.writer)
    monkeypatch.setattr(small_cut, "whole_cut", noted)
    unread: Any = None
    small = SmallCut(lambda _: unread, lambda _: unread, NOWHERE, watched.share())
    program = FeedProgram(snapshot(("test", 1, infos)), feed)
    counts = small.run(cut, raw, program, no_records(), 1, leave=watched)
    assert counts is not None
    return counts.rows


def test_driver_encodes_a_cut_before_its_leave_and_writes_it_behind_it_without_keeping_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    assert run_small(watched, monkeypatch) == 1
    assert watched.calls == ["turn", "encoded", "turn given up", "leave", "turn", "written"]


def test_driver_that_has_leave_already_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(is_given=True)
    assert run_small(watched, monkeypatch) == 1
    assert watched.calls == ["turn", "encoded", "written"]


def test_driver_writes_nothing_of_a_cut_whose_leave_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(refused="given to another service")
    with pytest.raises(SorterLockLostError, match="given to another service"):
        run_small(watched, monkeypatch)
    assert "written" not in watched.calls


def test_leave_that_is_asked_for_at_once_is_refused_at_once() -> None:
    def refuse() -> None:
        raise SorterLockLostError("no lock")

    with pytest.raises(SorterLockLostError, match="no lock"):
        asked_at_once(refuse)
    GIVEN.wait()
    assert GIVEN.is_given
