"""Tables that move by one transaction of a catalog: what each says afterwards decides, whatever was answered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from schemas.ids import Ts
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.errors import LakeOvertakenError
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.moves import Move, NotOfferedError, Tagging, publish_all
from sorters.run.lake.names import LakeName
from sorters.run.lake.table import LakeTable, StagedMove

WATERMARK_TS = Ts(20)


class _JavaError(Py4JJavaError):  # type: ignore[misc] # it has no types
    """Of a class of Java's, without a JVM."""

    def __init__(self, kind: str) -> None:
        Exception.__init__(self, kind)
        self.java_exception = self
        self._kind = kind

    def getClass(self) -> "_JavaError":  # noqa: N802 # Java's
        return self

    def getSimpleName(self) -> str:  # noqa: N802 # Java's
        return self._kind

    def __str__(self) -> str:
        return self._kind


@dataclass
class _Table:
    """A table as a catalog has it, and as who moves it sees it since the last refresh."""

    name: LakeName
    main: int = 0
    tags: set[Ts] = field(default_factory=set)
    is_late: bool = False
    """Another process of the changefeed has written it."""
    begun: int = 0
    written: int = 0
    seen: int = 0

    def prepare(self) -> LakeResync | None:
        self.begun, self.written = self.main, self.written + 1
        return None

    def refresh(self) -> None:
        self.seen = self.main

    def is_overtaken(self) -> bool:
        return self.begun != self.main and not self.is_late

    def staged_move(self, watermark_ts: Ts, resync: object, tags_kept: int | None) -> StagedMove:
        if self.begun != self.main:
            raise LakeOvertakenError("written by another process")
        return StagedMove(self.main, (self, tags_kept is not None), self.main + 10)

    def staged_tag(self, watermark_ts: Ts, tags_kept: int) -> StagedMove:
        return StagedMove(self.main, (self, True), self.main)

    def note_tag(self, staged: StagedMove, watermark_ts: Ts, tags_kept: int) -> None:
        pass

    def has_had(self, staged: StagedMove) -> bool:
        return self.seen == staged.main

    def progress(self) -> LakeProgress:
        return LakeProgress(Ts(0), frozenset(self.tags))


@dataclass
class _Catalog:
    """Carries out what it is told to, and says what it is told to say."""

    answers: list[Callable[[list[StagedMove]], None]]
    asked: list[list[str]] = field(default_factory=list)

    def commit(self, moves: list[tuple[LakeName, StagedMove]]) -> None:
        self.asked.append([name.table for name, _ in moves])
        self.answers.pop(0)([move for _, move in moves])


def _carry_out(moves: list[StagedMove]) -> None:
    for move in moves:
        table, is_tagged = cast("tuple[_Table, bool]", move.after)
        table.main = move.main
        table.tags |= {WATERMARK_TS} if is_tagged else set()


def _refuse(kind: str, carried_out: int = 0) -> Callable[[list[StagedMove]], None]:
    def answer(moves: list[StagedMove]) -> None:
        _carry_out(moves[:carried_out])
        raise _JavaError(kind)

    return answer


def _tables() -> tuple[_Table, _Table, _Table]:
    return _Table(LakeName(("s",), "a")), _Table(LakeName(("s",), "b")), _Table(LakeName(("s",), "idle"))


def _publish_all(catalog: _Catalog, moved: list[_Table], idle: list[_Table]) -> None:
    moves = {}
    for table in moved:
        table.prepare()
        moves[table.name] = Move(cast("LakeTable", table), table.prepare, WATERMARK_TS)
    tagging = Tagging(WATERMARK_TS, 100, cast("list[LakeTable]", idle))
    publish_all(cast("LakeCatalog", catalog), moves, tagging, lambda: None)


def test_transaction_moves_all_tables_and_tags_the_idle_ones_by_one_request() -> None:
    a, b, idle = _tables()
    catalog = _Catalog([_carry_out])
    _publish_all(catalog, [a, b], [idle])
    assert catalog.asked == [["a", "b", "idle"]]
    assert all(table.tags == {WATERMARK_TS} for table in (a, b, idle))


@pytest.mark.parametrize("kind", ["CommitStateUnknownException", "RESTException", "CommitFailedException"])
def test_transaction_that_was_carried_out_is_not_asked_for_again_whatever_was_answered(kind: str) -> None:
    a, b, idle = _tables()
    catalog = _Catalog([_refuse(kind, carried_out=3)])
    _publish_all(catalog, [a, b], [idle])
    assert len(catalog.asked) == 1 and (a.written, b.written) == (1, 1)


def test_transaction_of_which_one_table_was_overtaken_is_written_anew_for_that_table_alone() -> None:
    a, b, idle = _tables()

    def overtaken(moves: list[StagedMove]) -> None:
        b.main = 5
        _refuse("CommitFailedException")(moves)

    catalog = _Catalog([overtaken, _carry_out])
    _publish_all(catalog, [a, b], [idle])
    assert (a.written, b.written) == (1, 2)
    assert catalog.asked == [["a", "b", "idle"]] * 2


def test_transaction_that_a_server_has_done_in_part_is_asked_for_the_rest() -> None:
    a, b, idle = _tables()
    catalog = _Catalog([_refuse("CommitFailedException", carried_out=1), _carry_out])
    _publish_all(catalog, [a, b], [idle])
    assert catalog.asked == [["a", "b", "idle"], ["b", "idle"]]
    assert (a.main, b.main) == (10, 10)


def test_transaction_of_unknown_end_that_no_table_shows_fails_and_nothing_is_written() -> None:
    a, b, idle = _tables()
    with pytest.raises(Py4JJavaError):
        _publish_all(_Catalog([_refuse("CommitStateUnknownException")]), [a, b], [idle])
    assert (a.written, b.written) == (1, 1)


def test_transaction_of_a_process_that_goes_on_late_is_refused() -> None:
    a, b, idle = _tables()

    def heir_writes(moves: list[StagedMove]) -> None:
        b.main, b.is_late = 7, True
        _refuse("CommitFailedException")(moves)

    with pytest.raises(LakeOvertakenError):
        _publish_all(_Catalog([heir_writes, _carry_out]), [a, b], [idle])
    assert (a.main, b.main) == (0, 7)


@pytest.mark.parametrize("kind", ["UnsupportedOperationException", "NoSuchTableException"])
def test_catalog_without_transactions_says_so_before_anything_has_moved(kind: str) -> None:
    a, b, idle = _tables()
    with pytest.raises(NotOfferedError):
        _publish_all(_Catalog([_refuse(kind)]), [a, b], [idle])


def test_transaction_that_is_overtaken_again_and_again_fails_by_name() -> None:
    a, b, idle = _tables()
    answers: list[Any] = [_refuse("CommitFailedException")] * 3
    with pytest.raises(LakeOvertakenError):
        _publish_all(_Catalog(answers), [a, b], [idle])
