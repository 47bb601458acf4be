"""In which order an epoch is begun: what partitions it uses is found before, and written between it and its records."""

from typing import Any

import pytest

from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from sorters.core.cut.cut import Cut
from sorters.core.cut.runner import Choice, Reason, Runner
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.cut.worker import CutCounts
from sorters.run.cut_job import Ran
from sorters.run.epochs import Epoch, Epochs


class Parts:
    """Stands in for all that an epoch is run with, and notes who is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def note(self, call: str, answer: Any = None) -> Any:
        self.calls.append(call)
        return answer

    def follow_growth(self, border_ts: Ts) -> None:
        self.note(f"look {border_ts}")

    def begin(self, cut: Cut) -> None:
        self.note("prepare")

    def note_topics(self) -> None:
        self.note("partitions written")

    def schemas_at_start(self, cut: Cut, encoded_at_ms: int) -> list[str]:
        return ["schemas"]

    def write(self, program: object, records: object) -> None:
        self.note("schemas sent")

    def companions(self, cut: Cut, encoded_at_ms: int) -> None:
        """Of no interest."""

    def run(self, *_: object, backlog: bool) -> Ran:
        self.note("sent")
        counts = CutCounts(rows=0, raw_bytes=0, corrupt=CorruptRows())
        return Ran(counts, Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER))


def cut(after_ts: int, upto_ts: int) -> Cut:
    return Cut(after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), start=(0,), end=(1,), may_repeat=False, ddl_end=0)


@pytest.mark.parametrize("repeat", [False, True])
def test_epoch_is_begun_before_its_partitions_are_written_and_these_before_its_records(repeat: bool) -> None:
    parts = Parts()
    shared: Any = parts
    epochs = Epochs(
        frontier=shared,
        frontier_topic="f",
        folder=shared,
        schemas=shared,
        preparation=shared,
        job=shared,
        origin_ts=Ts(10),
        checkpoint_ts=Ts(10),
        target_ts=None,
        on_begin=lambda _: parts.note("epoch written"),
        before_cut=lambda: parts.note("may write"),
        on_progress=lambda _: parts.note("done"),
        stopping=lambda: False,
    )
    last: FrontierRecord = shared
    epoch = Epoch(start=0, end=1, last=last, resolved_ts=Ts(30), cuts=(cut(10, 20), cut(20, 30)))
    epochs.run(epoch, repeat=repeat)
    records = ["partitions written", "schemas sent", "sent", "done"]
    first = ["prepare", "epoch written", *records]  # which confirms as well that it may be
    assert parts.calls == [*([] if repeat else ["look 10"]), *first, "prepare", "may write", *records]
