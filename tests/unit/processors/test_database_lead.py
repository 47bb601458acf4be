"""What the leader of a database's processors counts of the DDL that it runs."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.lead import DatabaseLead
from consumers.processors.core.apply.barrier import Phase, Ran, Skipped
from consumers.processors.core.apply.barriers import DdlStep
from consumers.processors.core.apply.partition import DdlMark
from schemas.errors import BusError, CorruptDataError

POSITION = b"p"
RUN_S = 0.02


class Runner:
    """Runs nothing, for a while; refuses if it is told to."""

    def __init__(self) -> None:
        self.indexes = SimpleNamespace(held_ts=None, check=lambda: None)
        self.refusal: BusError | None = None

    def resume(self, ignored: frozenset[int]) -> None: ...
    def close(self) -> None: ...
    def run(self, mark: DdlMark) -> None:
        time.sleep(RUN_S)
        if self.refusal:
            raise self.refusal


def lead(runner: Runner, ignored: frozenset[int] = frozenset()) -> DatabaseLead:
    mark = cast(DdlMark, SimpleNamespace(position=POSITION, start_ts=5))
    return DatabaseLead(cast(DdlRunner, runner), lambda *_: mark, syncpoints=None, ignore_start_ts=ignored)


def do(leading: DatabaseLead, phase: Phase) -> Any:
    leading.begin(DdlStep(phase=phase, position=POSITION, offsets={}))
    while (answer := leading.answer()) is None:
        time.sleep(0.002)
    return answer


def test_ddl_that_has_run_is_counted_with_its_time() -> None:
    leading = lead(Runner())
    for _ in range(3):
        assert isinstance(do(leading, Phase.RUN), Ran)
    assert leading.ddls_us.count == 3
    assert leading.ddls_us.total >= 3 * RUN_S * 1e6
    leading.close()


def test_ddl_that_is_refused_or_left_out_is_not() -> None:
    runner = Runner()
    runner.refusal = CorruptDataError("no")
    leading = lead(runner, frozenset({5}))
    assert isinstance(do(leading, Phase.BEGIN), Skipped)
    with pytest.raises(CorruptDataError):
        do(leading, Phase.RUN)
    assert leading.ddls_us.count == 0
    leading.close()
