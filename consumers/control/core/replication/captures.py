"""The captures as one owner knows them: UNINITIALIZED ──first answer──▶ INITIALIZED ──liveness 1──▶ STOPPING.

Immutable. A capture is in here as long as it is registered; its id never comes again. Who was registered when the owner
took over must have answered before anything is assigned: any of them may hold any span. Who comes later holds nothing
(:mod:`consumers.control.core.replication.staleness` says why), so nobody waits for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from consumers.control.core.replication.messages import HeartbeatResponse, Liveness, TableStatus
from consumers.control.core.replication.staleness import is_same_epoch
from schemas.ids import CaptureId
from schemas.tidb.spans import TableSpan


class CaptureState(Enum):
    """STOPPING is final: the capture takes no new spans and hands over those it has."""

    UNINITIALIZED = "uninitialized"
    INITIALIZED = "initialized"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """``processor_epoch``: of the agent, learnt from its first answer."""

    state: CaptureState = CaptureState.UNINITIALIZED
    processor_epoch: str | None = None

    def answered(self, liveness: Liveness, processor_epoch: str) -> "CaptureStatus":
        """Return the status after a heartbeat's answer."""
        if self.state is CaptureState.STOPPING or liveness is Liveness.STOPPING:
            state = CaptureState.STOPPING
        else:
            state = CaptureState.INITIALIZED
        epoch = processor_epoch if self.processor_epoch is None else self.processor_epoch
        if (state, epoch) == (self.state, self.processor_epoch):
            return self
        return CaptureStatus(state, epoch)


_NOBODY: Mapping[CaptureId, CaptureStatus] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CaptureSet:
    """``first_reports`` is None once all first captures have answered: their answers have been handed out."""

    captures: Mapping[CaptureId, CaptureStatus] = field(default_factory=lambda: _NOBODY)
    first: frozenset[CaptureId] | None = None
    """Who was registered when the owner took over and has not answered; None before the first look."""
    first_reports: Mapping[CaptureId, tuple[TableStatus, ...]] | None = field(default_factory=dict)

    @property
    def is_initialized(self) -> bool:
        """Everybody who may hold a span has said what it holds, and that has been taken in."""
        return self.first_reports is None

    def with_alive(self, alive: frozenset[CaptureId]) -> tuple["CaptureSet", frozenset[CaptureId]]:
        """Return the set of just those who are registered, and who is gone."""
        gone = self.captures.keys() - alive
        first = alive if self.first is None else self.first - gone
        if not gone and alive == self.captures.keys() and first == self.first:
            return self, frozenset()
        reports = self.first_reports
        return (
            CaptureSet(
                {capture: self.captures.get(capture, CaptureStatus()) for capture in sorted(alive)},
                first,
                None if reports is None else {who: statuses for who, statuses in reports.items() if who not in gone},
            ),
            frozenset(gone),
        )

    def is_known(self, capture: CaptureId, processor_epoch: str) -> bool:
        """Tell whether an answer comes from a registered capture's agent, the one that answered before."""
        status = self.captures.get(capture)
        return status is not None and is_same_epoch(status.processor_epoch, processor_epoch)

    def with_answer(self, capture: CaptureId, answer: HeartbeatResponse, processor_epoch: str) -> "CaptureSet":
        """Return the set after a heartbeat's answer of a known capture."""
        before = self.captures[capture]
        after = before.answered(answer.liveness, processor_epoch)
        reports, first = self.first_reports, self.first or frozenset()
        if reports is not None:
            reports = {**reports, capture: answer.tables}
        elif after is before:
            return self
        captures = self.captures if after is before else {**self.captures, capture: after}
        return CaptureSet(captures, first - {capture}, reports)

    def take_first_reports(self) -> tuple["CaptureSet", dict[TableSpan, dict[CaptureId, TableStatus]] | None]:
        """Return what all captures have reported, by span, once: when the last of the first ones has answered."""
        if self.first_reports is None or self.first is None or self.first:
            return self, None
        by_span: dict[TableSpan, dict[CaptureId, TableStatus]] = {}
        for capture, tables in self.first_reports.items():
            for status in tables:
                by_span.setdefault(status.span, {})[capture] = status
        return replace(self, first_reports=None), by_span
