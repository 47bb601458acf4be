"""The state proofs of a run of a changefeed: read when it begins, followed cut by cut, told before each checkpoint."""

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.record_check import NO_TABLE
from schemas.state_proof.carried import CarriedState, StateRecord, state_key
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.state_proof.deltas import StateDeltas
from sorters.core.state_proof.states import TABLES_MAX, CutView, States, after_cut, at_start, before_cut, plan_of

log = logging.getLogger(__name__)

RECORD_SKIPPED = "a damaged raw record was skipped"


class StateStore(Protocol):
    """What a :class:`~sorters.run.proofs.state_log.StateLog` does."""

    def read(self, name: tuple[str, str], life: str) -> tuple[dict[TableId, CarriedState], list[bytes]]:
        """Return what runs of a life of a changefeed have told last, and the keys of all of its records."""
        ...

    def write(self, records: list[StateRecord], gone: list[bytes]) -> None:
        """Write records, then take those of the keys ``gone`` back; return once all is acknowledged."""
        ...


@dataclass(frozen=True, slots=True)
class _Begun:
    view: CutView
    states: States


class StateProofs:
    """Cuts come one at a time and in order: :meth:`plan`, then :meth:`tell` once the cut is written."""

    def __init__(self, store: StateStore, name: tuple[str, str], life: str) -> None:
        """``life`` is :func:`schemas.sink.topic.life_of` the changefeed."""
        self._store, self._name, self._life = store, name, life
        self._run = secrets.token_hex(8)
        self._told: dict[TableId, CarriedState] | None = None
        """As they stand in the topic under this run's keys; None: the first cut is to come."""
        self._begun: _Begun | None = None
        self._has_told = False

    def plan(self, cut: Cut, schemas: SchemaStore, feed: CompiledFeed) -> Cut:
        """Return the cut with what of it counts.

        Raises:
            KafkaUnreachableError, CorruptDataError: what is known of the tables cannot be read.
        """

        def wanted(stored: StoredTable) -> bool:
            rules = feed.state_proofs
            return (
                rules is not None
                and stored.has_rows
                and feed.contains(stored.schema, stored.table, eligible=stored.eligible)
                and rules.matches(stored.schema, stored.table)
            )

        if self._told is None:
            self._told = self._begin(schemas, cut.after_ts, wanted)
        changes = schemas.changes_between(cut.after_ts, cut.upto_ts)
        view = CutView(
            after_ts=cut.after_ts,
            upto_ts=cut.upto_ts,
            changes=changes,
            left_out=cut.left_out,
            read_again=cut.read_again,
        )
        states = before_cut(self._told, view, wanted, lambda table_id: _table_at(schemas, table_id, cut.after_ts))
        self._begun = _Begun(view, states)
        return replace(cut, states=plan_of(states, cut.after_ts, cut.read_again))

    def tell(self, deltas: StateDeltas, lacking: Collection[TableId] = ()) -> Mapping[TableId, CarriedState]:
        """Write what the planned cut has made of the tables, before its checkpoint is known; return what is new,
        of the first cut all. ``lacking`` are tables of which the cut had not all changes, with NO_TABLE perhaps any.

        Raises:
            KafkaUnreachableError: the topic did not take it.
        """
        assert self._told is not None and self._begun is not None
        begun, self._begun = self._begun, None
        states = after_cut(begun.states, deltas.settled(), begun.view)
        for table_id in list(states) if NO_TABLE in lacking else lacking:
            if table_id in states and not states[table_id].unproven:
                states[table_id] = states[table_id].lost(begun.view.upto_ts, RECORD_SKIPPED)
        new = {table_id: state for table_id, state in states.items() if self._told.get(table_id) != state}
        gone = [state_key(self._record(state)) for table_id, state in self._told.items() if table_id not in states]
        self._store.write([self._record(state) for state in new.values()], gone)
        for state in new.values():
            before = self._told.get(state.table_id)
            if state.unproven and (before is None or not before.unproven):
                named = {"changefeed": "/".join(self._name), "table": state.table, "table_id": state.table_id}
                log.warning("table has no state proof", extra={**named, "ts": state.ts, "reason": state.unproven})
        self._told = states
        if self._has_told:
            return new
        self._has_told = True
        return states

    @property
    def states(self) -> States:
        """What is told, by physical table."""
        return self._told or {}

    def _begin(
        self, schemas: SchemaStore, after_ts: Ts, wanted: Callable[[StoredTable], bool]
    ) -> dict[TableId, CarriedState]:
        loaded, keys = self._store.read(self._name, self._life)
        states = at_start(loaded, schemas.stored_at(after_ts), after_ts, wanted)
        if len(states) == TABLES_MAX:
            log.warning("more tables have no state proofs", extra={"changefeed": self._name, "tables": TABLES_MAX})
        self._store.write([self._record(state) for state in states.values()], keys)
        return states

    def _record(self, state: CarriedState) -> StateRecord:
        namespace, changefeed_id = self._name
        return StateRecord(
            namespace=namespace, changefeed_id=changefeed_id, life=self._life, run=self._run, state=state
        )


def _table_at(schemas: SchemaStore, table_id: TableId, ts: Ts) -> StoredTable | None:
    """Return the table that a physical id is of, as DDLs up to ``ts`` left it."""
    known = schemas.newest_of(table_id)
    return None if known is None else schemas.stored_table_at(known.table_id, ts)
