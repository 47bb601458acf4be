"""The grouped state of a sorter service where answers of ZooKeeper are lost, late or refusals: who was let go on had
its entry there, and nothing that stands there was never put.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.exceptions import BadVersionError, ConnectionLoss, KazooException, NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError

from schemas.ids import Ts
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import FeedFigures, decode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assigned,
    Assignment,
    FeedEntry,
    decode_entries,
    encode_assignment,
    encode_entries,
    with_figures,
)
from sorters.core.service.progress_book import key_of
from sorters.run.nodes.feed_lock import SorterLockLostError
from sorters.service import group_state
from sorters.service.group_state import GroupState

FEEDS, CUTS = 4, 6
PATHS = ServicePaths(ZkPaths("c"))
FATES = ("done", "done", "done", "lost before", "lost after", "late")


class Server:
    """Nodes with versions, and a client whose requests have a fate each: what is late was done, and nobody hears."""

    def __init__(self, fates: list[str]) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {PATHS.service("s"): (b"", 0)}
        self._fates, self._lock = fates, threading.Lock()
        self.is_healed = False
        self.assign(range(FEEDS))

    def assign(self, feeds: Any) -> None:
        """Write the assignment, as an owner."""
        node = encode_assignment(Assignment(feeds=tuple(assigned(number) for number in feeds)))
        version = self.nodes.get(PATHS.assignment("s"), (b"", -1))[1]
        with self._lock:
            self.nodes[PATHS.assignment("s")] = node, version + 1

    def entries(self) -> dict[str, FeedEntry]:
        """Return what stands there."""
        return {
            entry.changefeed_id: entry
            for path, (node, _) in list(self.nodes.items())
            if path.startswith(PATHS.service_progress("s"))
            for entry in decode_entries(node)
        }

    # -- kazoo's

    def ensure_path_async(self, path: str) -> Any:
        return answer(lambda: None)

    def get_children_async(self, path: str) -> Any:
        return answer(lambda: [node[len(path) + 1 :] for node in self.nodes if node.startswith(f"{path}/")])

    def get_async(self, path: str, watch: Any = None) -> Any:
        def ask() -> tuple[bytes, Any]:
            if path not in self.nodes:
                raise NoNodeError
            node, version = self.nodes[path]
            return node, SimpleNamespace(version=version)

        return self._with_fate(ask)

    def exists_async(self, path: str, watch: Any = None) -> Any:
        def ask() -> Any:
            return SimpleNamespace(version=self.nodes[path][1]) if path in self.nodes else None

        return self._with_fate(ask)

    def transaction(self) -> "Transaction":
        return Transaction(self)

    def _with_fate(self, ask: Callable[[], Any]) -> Any:
        fate = "done" if self.is_healed or not self._fates else self._fates.pop()
        if fate == "lost before":
            return answer(_lose)
        if fate == "done":
            return answer(ask)
        ask()  # it was done, or refused
        return answer(_lose if fate == "lost after" else _come_late)

    def commit(self, operations: list[tuple[str, str, Any, int]]) -> Any:
        def ask() -> list[Any]:
            with self._lock:
                failed = [self._fails(operation) for operation in operations]
                if any(failed):
                    return [error or RolledBackError() for error in failed]
                for kind, path, value, version in operations:
                    if kind != "check":
                        self.nodes[path] = value, version + 1
                return [True] * len(operations)

        return self._with_fate(ask)

    def _fails(self, operation: tuple[str, str, Any, int]) -> KazooException | None:
        kind, path, _, version = operation
        known = self.nodes.get(path)
        if kind == "create":
            return None if known is None else KazooException("there is one")
        if known is None:
            return NoNodeError()
        return None if version in (-1, known[1]) else BadVersionError()


class Transaction:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._operations: list[tuple[str, str, Any, int]] = []

    def check(self, path: str, version: int) -> None:
        self._operations.append(("check", path, None, version))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self._operations.append(("set", path, value, version))

    def create(self, path: str, value: bytes) -> None:
        self._operations.append(("create", path, value, -1))

    def commit_async(self) -> Any:
        return self._server.commit(self._operations)


def answer(ask: Callable[[], Any]) -> Any:
    return SimpleNamespace(get=lambda timeout: ask())


def _lose() -> None:
    raise ConnectionLoss


def _come_late() -> None:
    raise KazooTimeoutError


def assigned(number: int) -> Assigned:
    return Assigned(namespace="n", changefeed_id=f"f{number}", created_zxid=1, epoch=0, revision=1)


def begun(number: int, cut: int) -> FeedEntry:
    return FeedEntry(
        namespace="n",
        changefeed_id=f"f{number}",
        created_zxid=1,
        epoch=0,
        revision=1,
        checkpoint_ts=Ts(cut),
        resolved_ts=Ts(cut),
        begun=f"{cut}:{cut + 1}",
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_state, "GROUP_S", 0.0)
    monkeypatch.setattr(group_state, "FLUSH_S", 0.01)


def run_feed(server: Server, state: GroupState, number: int) -> int:
    """Begin cuts one after another, as a changefeed does; return how many were refused."""
    refused = 0
    for cut in range(CUTS):
        entry = begun(number, cut)
        try:
            state.begin(entry)
        except SorterLockLostError:
            refused += 1
            continue
        # Nobody else writes it: what it may write now stands there.
        assert server.entries()[f"f{number}"] == entry
    return refused


@settings(max_examples=60, deadline=None)
@given(fates=st.lists(st.sampled_from(FATES), max_size=60), taken=st.booleans(), seed=st.integers(0, 99))
def test_who_may_go_on_has_its_entry_there_whatever_becomes_of_answers(
    fates: list[str], taken: bool, seed: int
) -> None:
    server: Any = Server([])
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    server._fates = list(fates)
    try:
        with ThreadPoolExecutor(FEEDS) as threads:
            running = [threads.submit(run_feed, server, state, number) for number in range(FEEDS)]
            if taken:
                time.sleep(random.Random(seed).random() / 500)
                server.assign(range(1, FEEDS))
            refused = [each.result(30) for each in running]
        if not fates and not taken:
            assert refused == [0] * FEEDS
        server.is_healed = True
        for number in range(1, FEEDS):  # once answers come again everything goes on, without a new session
            last = replace(begun(number, CUTS), rows_total=7)
            state.begin(last)
            assert server.entries()[f"f{number}"] == last
        if taken:
            with pytest.raises(SorterLockLostError, match="another service"):
                state.ask(key_of(begun(0, 0))).wait()
        state.drop(key_of(begun(1, 0)))
        assert "f1" not in server.entries()
    finally:
        state.close()


def test_who_waits_for_an_answer_that_was_lost_is_refused_though_it_was_done() -> None:
    server: Any = Server([])
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        state.begin(begun(0, 0))
        server._fates = ["lost after"]
        with pytest.raises(SorterLockLostError, match="ConnectionLoss"):
            state.begin(begun(0, 1))
        assert server.entries()["f0"] == begun(0, 1), "it was done, and nobody knew"
        state.begin(begun(0, 2))
        assert server.entries()["f0"] == begun(0, 2)
    finally:
        state.close()


def test_who_asks_goes_on_meanwhile_and_has_leave_when_its_entry_stands_there() -> None:
    server: Any = Server([])
    answered, come = threading.Event(), threading.Event()
    commit = server.commit

    def slow(operations: Any) -> Any:
        come.set()
        assert answered.wait(30)
        return commit(operations)

    server.commit = slow
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        leave, given = state.ask_to_begin(begun(0, 0)), []
        assert come.wait(30)
        given.append(leave.is_given)
        answered.set()
        leave.wait()
        assert [*given, leave.is_given] == [False, True]
        assert server.entries()["f0"] == begun(0, 0)
        server.assign(range(1, FEEDS))
        refused = state.ask_to_begin(begun(0, 1))
        for _ in range(2):
            with pytest.raises(SorterLockLostError, match="another service"):
                refused.wait()
        assert not refused.is_given
    finally:
        answered.set()
        state.close()


def figured(server: Server, number: int = 0) -> tuple[dict[str, FeedFigures], int]:
    """Return whose figures stand there, and how often they were written."""
    node, version = server.nodes.get(PATHS.entry_figures("s", number), (b"[]", -1))
    return {run.changefeed_id: figures for run, figures in decode_figures(node).items()}, version + 1


def test_figures_are_written_at_once_then_only_when_they_are_due_and_go_with_their_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_state, "FIGURES_S", 3600.0)
    server: Any = Server([])
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        for cut in range(CUTS):
            state.begin(replace(begun(0, cut), figures=FeedFigures(windows_proven=cut + 1)))
        state.begin(replace(begun(1, 0), figures=FeedFigures(windows_proven=9)))
        assert figured(server) == ({"f0": FeedFigures(windows_proven=1)}, 1)
        assert server.entries()["f0"].checkpoint_ts == CUTS - 1
        state.drop(key_of(begun(0, 0)))
        assert figured(server) == ({"f1": FeedFigures(windows_proven=9)}, 2)
        monkeypatch.setattr(group_state, "FIGURES_S", 0.0)
        state.note(replace(begun(1, 0), figures=FeedFigures(windows_proven=10)))
        while figured(server)[0]["f1"].windows_proven < 10:
            state.ask(key_of(begun(1, 0))).wait()
    finally:
        state.close()


def test_figures_that_a_former_holder_still_writes_say_nothing_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_state, "FIGURES_S", 0.0)
    server: Any = Server([])
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        former = replace(begun(0, 0), figures=FeedFigures(windows_proven=1))
        state.begin(former)
        server.assign(range(1, FEEDS))
        with pytest.raises(SorterLockLostError, match="another service"):
            state.begin(replace(former, figures=FeedFigures(windows_proven=2)))
        state.ask(key_of(begun(1, 0))).wait()
        stood = decode_figures(server.nodes[PATHS.entry_figures("s", 0)][0])
        assert with_figures(begun(0, 0), stood).figures.windows_proven >= 1
        assert with_figures(replace(begun(0, 0), revision=2), stood).figures == FeedFigures()
    finally:
        state.close()


def test_next_life_of_a_service_keeps_the_figures_that_it_has_left() -> None:
    server: Any = Server([])
    for life in range(3):
        state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
        try:
            state.begin(replace(begun(life, 0), figures=FeedFigures(windows_proven=life + 1)))
        finally:
            state.close()
    assert figured(server) == ({f"f{life}": FeedFigures(windows_proven=life + 1) for life in range(3)}, 3)


def test_transactions_are_further_apart_the_more_the_last_one_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    assert group_state.pause_s(2 * group_state.BYTES_PER_S) == 2.0
    written = list[int]()

    def pause_s(written_bytes: int) -> float:
        written.append(written_bytes)
        return 0.0

    monkeypatch.setattr(group_state, "pause_s", pause_s)
    server: Any = Server([])
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        state.begin(begun(0, 0))
        first = len(server.nodes[PATHS.entries("s", 0)][0])
        state.begin(begun(1, 0))
        state.ask(key_of(begun(0, 0))).wait()
        state.ask(key_of(begun(0, 0))).wait()
    finally:
        state.close()
    assert written == [0, first, len(server.nodes[PATHS.entries("s", 0)][0]), 0]


@pytest.mark.parametrize("node", [b"", b"\x00[", b"[1]", b'[{"namespace": "n"}]'])
def test_service_begins_over_progress_that_nobody_can_read_and_keeps_the_rest(
    node: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = Server([])
    whole = begun(1, 4)
    server.nodes[PATHS.entries("s", 0)] = node, 3
    server.nodes[PATHS.entry_figures("s", 0)] = node, 1
    server.nodes[PATHS.entries("s", 1)] = encode_entries([whole]), 2
    server.nodes[f"{PATHS.service_progress('s')}/of-whom"] = b"[]", 0
    state = GroupState(server, PATHS, "s", lambda assignment: None, lambda: False)
    try:
        assert [record.__dict__["path"] for record in caplog.records] == [
            PATHS.entries("s", 0),
            PATHS.entry_figures("s", 0),
        ]
        state.begin(begun(0, 5))
        del server.nodes[f"{PATHS.service_progress('s')}/of-whom"]
        assert server.entries() == {"f0": begun(0, 5), "f1": whole}
    finally:
        state.close()
