"""Changefeeds that share a service's cuts while images of their tables are to come, under way, whole or asked for
anew, and whose runs die in the midst of cuts, write what each writes alone.

Seen, each planted: a key of shared cuts that has no hash, as was on a live bus; cuts that are shared although one
leaves out changes or sends chunks; chunks that go out to others with a shared cut; a key without a cut's beginning;
and passes that are shared across protocols.

``IMAGED_SERVICE_SEEDS`` says how many seeds to run (`make nightly`: a tenth of the simulations' schedules).
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compose.simulation.images.run import outcome_of
from compose.simulation.images.world import ImageWorld
from schemas.errors import BusError
from schemas.ids import Ts
from sorters.core.cut.cut import Cut
from sorters.core.rows import shared_pass
from sorters.core.rows.settled_rows import SettledKey
from sorters.core.rows.shared_pass import PassKey
from sorters.cut import small_cut
from sorters.cut.raw_cut import RawCut, read_cut, with_chunks
from sorters.service import raw_window, shared_cuts
from sorters.service.shared_cuts import SharedCut, SharedCuts
from tests.simulation.imaged_service import BrokenError, run_service

SEEDS = int(os.environ.get("IMAGED_SERVICE_SEEDS", "5"))
TRIES_MAX = 20
"""Within so many seeds a planted fault must show; most show in the first."""


@pytest.fixture(autouse=True)
def _few_rows_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pass, "SMALL_ROWS", 2)


def _asks(world: ImageWorld) -> None:
    """Let most images be asked for by hand: all changes of their tables go out, so cuts are shared meanwhile."""
    world.initial_share = 0.4


def world_of(seed: int) -> ImageWorld:
    """Return the world of a seed at its end."""
    outcome = outcome_of(seed, _asks)
    assert not outcome.broken, outcome
    return outcome.world


@pytest.mark.timeout(max(600, SEEDS * 10))
def test_changefeeds_that_share_cuts_beside_images_write_what_each_writes_alone() -> None:
    happened = Counter[str]()
    for seed in range(SEEDS):
        try:
            happened += run_service(world_of(seed), seed)
        except (BrokenError, BusError) as error:
            pytest.fail(f"seed {seed}: {error!r}")
    wanted = (
        *("shared", "shared while read again", "left out", "chunks", "resynced", "marks"),
        *("died", "again", "restarts"),
    )
    assert not [what for what in wanted if not happened[what]], happened


def test_an_imaged_service_goes_the_same_way_each_time_that_a_seed_is_run() -> None:
    assert run_service(world_of(3), 3) == run_service(world_of(3), 3)


_read_of, _find = shared_cuts._Read.of, SharedCuts.find
_encoded, _covering = SharedCut.encoded, SharedCut.covering
_settled = SharedCut.settled


def _by_the_cut_itself(cut: Cut) -> Any:
    return cut


def _without_its_beginning(cut: Cut) -> Any:
    return _read_of(cut)._replace(after_ts=Ts(0))


def _shares_whatever_a_cut_says(self: raw_window.WindowReader, cut: Cut, raw_bytes_max: int) -> RawCut | None:
    cuts = self._window.cuts
    raw = cuts.find(cut) or read_cut(self, cut, raw_bytes_max)
    return raw if raw is None or raw.shared is not None else cuts.keep(cut, raw)


def _lets_chunks_leak() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what keeps the chunks that were read last, and what gives them to whoever finds a cut."""
    last: list[RawCut] = []

    def read(raw: RawCut, reader: Any, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        made = with_chunks(raw, reader, cut, raw_bytes_max)
        last[:] = [made] if made is not None else last
        return made

    def find(self: SharedCuts, cut: Cut) -> RawCut | None:
        kept = _find(self, cut)
        return replace(kept, chunks=last[0].chunks) if kept is not None and last else kept

    return read, find


def _across_protocols(self: SharedCut, key: PassKey, keeps: object, make: Any) -> Any:
    how: Any = key.how
    return _encoded(self, key._replace(how=how[1:]), keeps, make)


def _settled_across_protocols(self: SharedCut, key: SettledKey, keeps: object, make: Any) -> Any:
    how: Any = key.how
    return _settled(self, key._replace(how=(how[0][1:], *how[1:])), keeps, make)


def _settled_for_any_tables(self: SharedCut, key: SettledKey, keeps: object, make: Any) -> Any:
    return _settled(self, key._replace(tables=()), keeps, make)


def _of_the_next_table(self: SharedCut, key: PassKey) -> Any:
    covering = _covering(self, key)
    return covering and (covering[0], [(at + 1) % covering[0].tables for at in covering[1]])


Fault = list[tuple[Any, str, Callable[..., Any]]]
_keeps_last, _gives_last = _lets_chunks_leak()
FAULTS: dict[str, Fault] = {
    "a key that has no hash": [(shared_cuts._Read, "of", _by_the_cut_itself)],
    "a key without the beginning": [(shared_cuts._Read, "of", _without_its_beginning)],
    "shared whatever the cut says": [(raw_window.WindowReader, "read_cut", _shares_whatever_a_cut_says)],
    "leaking chunks": [(small_cut, "with_chunks", _keeps_last), (SharedCuts, "find", _gives_last)],
    "passes across protocols": [(SharedCut, "encoded", _across_protocols)],
    "settled across protocols": [(SharedCut, "settled", _settled_across_protocols)],
    "settled for any tables": [(SharedCut, "settled", _settled_for_any_tables)],
    "rows of the next table of a pass": [(SharedCut, "covering", _of_the_next_table)],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_changefeeds_of_a_service_with_a_planted_fault_are_found_out(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, name, broken in FAULTS[fault]:
        monkeypatch.setattr(where, name, broken)
    for seed in range(TRIES_MAX):
        try:
            run_service(world_of(seed), seed)
        except (BrokenError, BusError, TypeError):
            return
    raise AssertionError(f"nobody noticed within {TRIES_MAX} seeds")
