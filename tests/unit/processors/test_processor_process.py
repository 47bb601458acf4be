"""What becomes of a processor's lock and registration when ZooKeeper fails while a run is left; its exit statuses."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.control.changefeeds.processor_nodes import AppliedNode, ProcessorInfo
from consumers.control.core.replication.messages import Barrier
from consumers.processors import processor as module
from consumers.processors.apply.errors import DestinationUnreachableError, RowRefusedError
from consumers.processors.board import Wanted
from consumers.processors.core.apply.barriers import Barriers
from consumers.processors.processor import DONE, ProcessorOptions, ProcessorProcess
from edges.zookeeper.session import LeaseLostError, ZooKeeperError, ZooKeeperUnreachableError
from schemas.errors import BusError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import life_of
from schemas.sink_figures import Spread

INFO = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="mysql://h/", start_ts=Ts(1))


@dataclass
class ZooKeeper:
    """One changefeed's nodes: board and session in one. ``refusals`` are raised when its lock is to be given back."""

    refusals: list[BusError] = field(default_factory=list)
    registered: dict[CaptureId, ProcessorInfo] = field(default_factory=dict)
    locked: int | None = None
    sessions: int = 0
    failed: list[BusError] = field(default_factory=list)
    version: int = 1
    """Of the changefeed's node: a run ends when another is seen."""
    _zxid: int = 0

    def __enter__(self) -> "ZooKeeper":
        self.sessions += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.registered, self.locked = {}, None

    def check_lease(self) -> None: ...
    def register(self, info: ProcessorInfo) -> int:
        self._zxid += 1
        self.registered[info.processor] = info
        return self._zxid

    def leader_revision(self) -> int | None:
        return self.locked

    def lock(self, _: str) -> int:
        self._zxid += 1
        self.locked = self._zxid
        return self.locked

    def release(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.locked = None

    def processors(self, *_: object, **__: object) -> dict[CaptureId, ProcessorInfo]:
        return dict(self.registered)

    def unregister(self, processor: CaptureId) -> None:
        del self.registered[processor]

    def mark_stopping(self, _: ProcessorInfo) -> None: ...
    def tell(self, _: object) -> None: ...
    def report(self, _: object) -> None: ...
    def read(self) -> None: ...
    def look(self) -> Wanted:
        return Wanted(INFO, (1, self.version), None, None)

    def change(self) -> None:
        self.version += 1

    def fail(self, error: BusError, _: Wanted) -> None:
        self.failed.append(error)


class Peers:
    """Nobody else is there."""

    address = "here"

    def take(self, *_: object) -> list[object]:
        return []

    def send(self, *_: object) -> None: ...
    def resolve(self, _: object) -> None: ...
    def leave(self, _: object) -> None: ...
    def close(self) -> None: ...


@dataclass
class Work:
    """Share, lead and work in one. Raises once it leads, or as it ends; without an error it is done then."""

    done: Callable[[], None] = lambda: None
    in_turn: Exception | None = None
    at_end: Exception | None = None
    leads: bool = False
    is_busy = False
    held_ts = None
    ddls_us = Spread()

    @property
    def share(self) -> "Work":
        return self

    def lead(self, _: int) -> tuple["Work", Barriers]:
        self.leads = True
        return self, Barriers(frozenset({0}))

    def turn(self, _: Barrier, *, is_restless: bool) -> list[object]:
        if self.leads and self.in_turn is not None:
            raise self.in_turn
        if self.leads:
            self.done()
        return []

    def finish(self) -> None:
        if self.at_end is not None:
            raise self.at_end

    def obey(self, _: object) -> None: ...
    def answer(self) -> None: ...
    def note(self, _: Ts) -> None: ...
    def end_writes(self) -> None: ...
    def close(self) -> None: ...


def run(zookeeper: ZooKeeper, first: Work, patch: pytest.MonkeyPatch) -> list[Work]:
    """Let a processor run, with ``first`` and then until it leads once more, as it must; return what it ran with."""
    works: list[Work] = []

    def begin(_: object) -> Any:
        assert len(works) < 4, "nobody leads"
        works.append(Work(lambda: process.stop()) if works else first)
        return works[-1]

    patch.setattr(module, "Session", lambda _: zookeeper)
    patch.setattr(module, "ProcessorBoard", lambda *_: zookeeper)
    patch.setattr(module, "load_with_secrets", lambda _: None)
    options = ProcessorOptions(changefeed_id="f", kafka=cast(Any, None), zookeeper=cast(Any, SimpleNamespace()))
    process = ProcessorProcess(options, begin, lambda _: cast(Any, Peers()))
    watches = [threading.Timer(10, process.stop) for _ in range(2)]  # the second stop is at once
    for watch in watches:
        watch.start()
    assert process.run() == DONE
    for watch in watches:
        watch.cancel()
    return works


@pytest.mark.parametrize(
    "refusal",
    [ZooKeeperError("no answer"), LeaseLostError("gone"), ZooKeeperUnreachableError("away")],
    ids=lambda error: error.code,
)
def test_processor_that_cannot_give_its_lock_back_ends_its_session_and_leads_again(
    refusal: BusError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = ZooKeeper([refusal])
    works = run(zookeeper, Work(in_turn=DestinationUnreachableError("server has gone away")), monkeypatch)
    assert [work.leads for work in works] == [True, True]
    assert (zookeeper.sessions, zookeeper.failed) == (2, [])
    said = [vars(record).get("reason", "") for record in caplog.records if record.levelname == "WARNING"]
    assert [text in line for text, line in zip(("gone away", str(refusal)), said, strict=True)] == [True, True]


@pytest.mark.parametrize("when", ["in_turn", "at_end"])
@pytest.mark.parametrize(
    ("error", "code"),
    [(RowRefusedError("no such column"), "apply.row_refused"), (KeyError("a bug"), "processor.unforeseen")],
    ids=["refused", "unforeseen"],
)
@pytest.mark.parametrize("refusals", [[], [ZooKeeperError("no answer")]], ids=["answers", "fails"])
def test_processor_tells_what_its_run_has_failed_with_whatever_fails_after_it(
    when: str, error: Exception, code: str, refusals: list[BusError], monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = ZooKeeper(list(refusals))
    first = Work(in_turn=error) if when == "in_turn" else Work(zookeeper.change, at_end=error)
    works = run(zookeeper, first, monkeypatch)
    assert [work.leads for work in works] == [True, True]
    assert zookeeper.sessions == 1 + len(refusals)
    assert [failure.code for failure in zookeeper.failed] == [code]
    assert (zookeeper.registered, zookeeper.locked) == ({}, None)


@dataclass
class Looks(ZooKeeper):
    """Where a changefeed is as it is, unless ``on_look`` does something."""

    wanted: Wanted | None = None
    on_look: Callable[[], None] = lambda: None

    def look(self) -> Wanted | None:  # type: ignore[override] # there may be none
        self.on_look()
        return self.wanted


PAUSED = Wanted(replace(INFO, desired_state="stopped"), (1, 1), None, None)
REMOVED = Wanted(replace(INFO, desired_state="removed"), (1, 1), None, None)
APPLIED = Wanted(
    replace(INFO, target_ts=Ts(50)),
    (1, 1),
    None,
    AppliedNode(life=life_of(INFO), checkpoint_ts=Ts(50)),
)


@pytest.mark.parametrize(
    ("capture", "wanted", "is_told", "status"),
    [
        ("c-1", PAUSED, True, 143),
        ("", PAUSED, True, 0),  # a supervisor must not take that for a failure
        ("c-1", REMOVED, False, 0),
        ("c-1", None, False, 0),
        ("c-1", APPLIED, False, 0),
    ],
)
def test_processor_that_was_told_to_stop_says_so_to_the_capture_that_has_started_it(
    capture: str, wanted: Wanted | None, is_told: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = Looks(wanted=wanted)
    monkeypatch.setattr(module, "Session", lambda _: zookeeper)
    monkeypatch.setattr(module, "ProcessorBoard", lambda *_: zookeeper)
    options = ProcessorOptions(
        changefeed_id="f", kafka=cast(Any, None), zookeeper=cast(Any, SimpleNamespace()), capture=capture
    )
    process = ProcessorProcess(options, cast(Any, None), cast(Any, None))
    if is_told:
        zookeeper.on_look = process.stop
    assert process.run() == status
