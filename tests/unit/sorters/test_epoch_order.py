"""In which order an epoch is begun: what partitions it uses is found before, and written between it and its records."""

from typing import Any

import pytest

from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from sorters.core.cut.cut import Cut
from sorters.core.cut.runner import Choice, Reason, Runner
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.cut.worker import CutCounts
from sorters.run.cut_job import WrittenCut
from sorters.run.epochs import Epoch, EpochBounds, EpochControl, Epochs, EpochSources, EpochWork
from sorters.run.nodes.feed_lock import SorterLockLostError


class Parts:
    """Stands in for all that an epoch is run with, and notes who is called."""

    def __init__(self, *, writes_ahead: bool = True, error: Exception | None = None, refused: str = "") -> None:
        self.calls: list[str] = []
        self._writes_ahead, self._error, self._refused = writes_ahead, error, refused

    def note(self, call: str, answer: Any = None) -> Any:
        self.calls.append(call)
        return answer

    def follow_growth(self, border_ts: Ts) -> None:
        self.note(f"look {border_ts}")

    def begin(self, cut: Cut) -> None:
        self.note("prepare")

    def asked(self, call: str) -> "Parts":
        """Return a leave: this."""
        self.note(call)
        return self

    def wait(self) -> None:
        self.note("leave given")
        if self._refused:
            raise SorterLockLostError(self._refused)

    def writes_ahead(self, cut: Cut) -> bool:
        return self._writes_ahead

    def note_topics(self) -> None:
        self.note("partitions written")

    def schemas_at_start(self, cut: Cut, encoded_at_ms: int) -> list[str]:
        return ["schemas"]

    def write(self, program: object, records: object) -> None:
        self.note("schemas sent")

    def companions(self, cut: Cut, encoded_at_ms: int) -> None:
        """Of no interest."""

    def run(self, *orders: object, backlog: bool) -> WrittenCut:
        assert orders[-1] is self, "the job gets the leave"
        if self._error is not None:
            raise self._error
        self.note("sent")
        counts = CutCounts(rows=0, raw_bytes=0, corrupt=CorruptRows())
        return WrittenCut(counts, Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER))


def cut(after_ts: int, upto_ts: int) -> Cut:
    return Cut(after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), start=(0,), end=(1,), may_repeat=False, ddl_end=0)


def run(parts: Parts, *, repeat: bool = False) -> list[str]:
    """Run an epoch of two cuts; return who was called."""
    shared: Any = parts
    epochs = Epochs(
        EpochSources(frontier=shared, frontier_topic="f", folder=shared, schemas=shared),
        EpochWork(preparation=shared, job=shared),
        EpochBounds(origin_ts=Ts(10), checkpoint_ts=Ts(10), target_ts=None),
        EpochControl(
            begin=lambda _: shared.asked("epoch asked for"),
            ask=lambda: shared.asked("cut asked for"),
            note=lambda _: parts.note("done"),
            stopping=lambda: False,
        ),
    )
    last: FrontierRecord = shared
    epoch = Epoch(start=0, end=1, last=last, resolved_ts=Ts(30), cuts=(cut(10, 20), cut(20, 30)))
    epochs.run(epoch, repeat=repeat)
    return parts.calls


@pytest.mark.parametrize("repeat", [False, True])
def test_epoch_is_begun_before_its_partitions_are_written_and_these_before_its_records(repeat: bool) -> None:
    records = ["leave given", "partitions written", "schemas sent", "sent", "done"]
    first = ["prepare", "epoch asked for", *records]  # which confirms as well that it may be
    assert run(Parts(), repeat=repeat) == [
        *([] if repeat else ["look 10"]), *first, "prepare", "cut asked for", *records
    ]  # fmt: skip


def test_cut_before_whose_records_nothing_stands_leaves_the_waiting_to_its_job() -> None:
    first, second = ["epoch asked for", "sent", "done"], ["cut asked for", "sent", "done"]
    assert run(Parts(writes_ahead=False)) == ["look 10", "prepare", *first, "prepare", *second]


def test_cut_that_fails_says_so_only_with_leave() -> None:
    parts = Parts(writes_ahead=False, error=ValueError("row"))
    with pytest.raises(ValueError, match="row"):
        run(parts)
    assert parts.calls[-1] == "leave given"
    with pytest.raises(SorterLockLostError, match="given to another"):
        run(Parts(writes_ahead=False, error=ValueError("row"), refused="given to another"))
