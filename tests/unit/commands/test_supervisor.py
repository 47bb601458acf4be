"""The supervisor over processes that die on a virtual clock."""

from dataclasses import dataclass, field

import pytest

from compose.local.supervisor import PAUSE_MAX_S, STEADY_S, Supervisor
from compose.stack.errors import ChildError


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stub:
    clock: Clock
    name: str = "capture a"
    status: int | None = None
    starts: list[float] = field(default_factory=list)

    def start(self) -> None:
        self.starts.append(self.clock.now)
        self.status = None

    def is_running(self) -> bool:
        return self.status is None

    def exit_status(self) -> int | None:
        return self.status

    def tail(self, lines: int = 12) -> str:
        return "broker is gone"


def _watched(*, restart: bool) -> tuple[Clock, Stub, Supervisor, list[str]]:
    clock, said = Clock(), list[str]()
    process, supervisor = Stub(clock), Supervisor(said.append, clock)
    supervisor.add(process, restart=restart)
    return clock, process, supervisor, said


def _die_and_tick(clock: Clock, process: Stub, supervisor: Supervisor, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        process.status = 1
        supervisor.tick()
        clock.now += 0.25


def test_supervisor_when_process_keeps_dying_doubles_the_pause_up_to_its_limit() -> None:
    clock, process, supervisor, said = _watched(restart=True)
    _die_and_tick(clock, process, supervisor, 200)
    pauses = [later - earlier for earlier, later in zip(process.starts, process.starts[1:], strict=False)]
    assert pauses[:4] == [pytest.approx(pause, abs=0.5) for pause in (2, 4, 8, 16)]
    assert max(pauses) <= PAUSE_MAX_S + 0.5
    assert "capture a has ended with status 1" in said[0] and "broker is gone" in said[0]
    assert supervisor.deaths()["capture a"] == len(said)


def test_supervisor_when_process_ran_steadily_starts_it_soon() -> None:
    clock, process, supervisor, _ = _watched(restart=True)
    _die_and_tick(clock, process, supervisor, 60)
    process.status = None
    clock.now += PAUSE_MAX_S
    supervisor.tick()
    clock.now += STEADY_S + 1
    died_at, process.status = clock.now, -9
    supervisor.tick()
    clock.now += 1.0
    supervisor.tick()
    assert process.starts[-1] == died_at + 1.0


def test_supervisor_when_process_is_not_restarted_raises_its_last_words() -> None:
    _, process, supervisor, _ = _watched(restart=False)
    process.status = -9
    with pytest.raises(ChildError, match=r"capture a has ended \(status=-9, last=broker is gone\)"):
        supervisor.tick()
