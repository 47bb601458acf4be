"""Recorded traffic of a real TiDB as commands of the store (format: the README beside the recording).

A recording says what the storage accepted, in order; requests that it refused are in the file as ``*_failed`` and have
no effect. Each step also gets a **ceiling**: one below the least commit_ts that is still to come on a key that is not
locked yet. A ts at or below it may be promised as resolved before the step, one above it would be a lie.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from producers.region_server.core.store.commands import (
    Command,
    Commit,
    Mutation,
    MutationOp,
    PessimisticLock,
    PessimisticRollback,
    Prewrite,
    ResolveLock,
    Rollback,
    Txn,
)
from schemas.errors import CorruptDataError
from schemas.ids import Ts

_OPS: dict[str, MutationOp] = {"Put": "put", "Insert": "put", "Del": "delete", "Lock": "lock"}
_NO_EFFECT = frozenset({"sql_begin", "sql_end", "check_txn_status", "heartbeat", "end"})


@dataclass(frozen=True, slots=True)
class SplitRegions:
    """Split at raw keys."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One record with an effect. ``ceiling`` holds before the step; ``ts`` is the newest ts seen up to and with it."""

    seq: int
    work: Command | SplitRegions
    ceiling: Ts
    ts: Ts


@dataclass(frozen=True, slots=True)
class Recording:
    """``steps[:bootstrap]`` is the cluster's own bootstrap; ``end_ts`` is above everything in the recording."""

    steps: Sequence[RecordedStep]
    bootstrap: int
    records: int
    end_ts: Ts

    @property
    def bootstrap_ts(self) -> Ts:
        """A ts at which exactly the bootstrap is visible: where a client starts that wants every recorded change."""
        return self.steps[self.bootstrap].ceiling if self.bootstrap < len(self.steps) else self.end_ts


def parse_recording(lines: Iterable[str]) -> Recording:
    """Read the JSON lines of a recording, in ``seq`` order.

    Raises:
        CorruptDataError: a line is not JSON, of an unknown kind, lacks a field, or does not stand in order.
    """
    works: list[tuple[int, Command | SplitRegions, Ts]] = []
    bootstrap, records, seq, newest = -1, 0, 0, Ts(0)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if record["seq"] <= seq:
                raise ValueError(f"seq {record['seq']} does not follow {seq}")
            seq, records = record["seq"], records + 1
            if record["kind"] == "sql_begin" and bootstrap < 0:
                bootstrap = len(works)
            newest = max(newest, _newest_ts(record))
            work = _work(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError("record of the recording does not parse", line=number, reason=repr(error)) from error
        if work is not None:
            works.append((seq, work, newest))
    if bootstrap < 0:
        bootstrap = len(works)
    end_ts = Ts(newest + 1)
    ceilings = _ceilings([work for _, work, _ in works], end_ts)
    steps = [RecordedStep(seq, work, ceiling, ts) for (seq, work, ts), ceiling in zip(works, ceilings, strict=True)]
    return Recording(steps, bootstrap, records, end_ts)


def _newest_ts(record: dict[str, Any]) -> Ts:
    # Markers and status checks count too: whatever ts they name had been given out by then.
    fields = ("start_ts", "commit_ts", "one_pc_commit_ts", "for_update_ts", "min_commit_ts")
    return Ts(max(record.get(name) or 0 for name in fields))


def _work(record: dict[str, Any]) -> Command | SplitRegions | None:
    kind = record["kind"]
    if kind in _NO_EFFECT or kind.endswith("_failed"):
        return None
    if kind == "split_region":
        return SplitRegions(tuple(bytes.fromhex(key) for key in record["split_keys"]))
    start_ts = Ts(record["start_ts"])
    keys = tuple(bytes.fromhex(key) for key in record.get("keys", ()))
    match kind:
        case "prewrite" | "flush":
            mutations = [
                Mutation(_OPS[mutation["op"]], bytes.fromhex(mutation["key"]), bytes.fromhex(mutation.get("value", "")))
                for mutation in record["muts"]
                if mutation["op"] != "CheckNotExists"
            ]
            one_pc = Ts(record.get("one_pc_commit_ts") or 0)
            return Prewrite(txn=_txn(record), mutations=mutations, one_pc_commit_ts=one_pc)
        case "pessimistic_lock":
            locked = tuple(bytes.fromhex(mutation["key"]) for mutation in record["muts"])
            return PessimisticLock(txn=_txn(record), keys=locked)
        case "commit":
            return Commit(start_ts=start_ts, commit_ts=Ts(record["commit_ts"]), keys=keys)
        case "rollback":
            return Rollback(start_ts=start_ts, keys=keys)
        case "pessimistic_rollback":
            return PessimisticRollback(start_ts=start_ts, keys=keys)
        case "resolve_lock":
            return ResolveLock(start_ts=start_ts, commit_ts=Ts(record.get("commit_ts") or 0), keys=keys)
        case _:
            raise ValueError(f"kind {kind!r} is unknown")


def _txn(record: dict[str, Any]) -> Txn:
    return Txn(
        start_ts=Ts(record["start_ts"]),
        primary=bytes.fromhex(record.get("primary", "")),
        txn_source=int(record.get("txn_source", 0)),
        ttl_ms=int(record.get("ttl", 3000)),
        for_update_ts=Ts(record.get("for_update_ts") or 0),
        min_commit_ts=Ts(record.get("min_commit_ts") or 0),
        use_async_commit=bool(record.get("async_commit", False)),
        secondaries=tuple(bytes.fromhex(key) for key in record.get("secondaries") or ()),
        generation=int(record.get("generation", 0)),
    )


def _ceilings(works: Sequence[Command | SplitRegions], end_ts: Ts) -> list[Ts]:
    """For each step: one below the least commit_ts among prewrites at or after it, as they will be committed."""
    commits: dict[Ts, Ts] = {}
    for work in works:
        if isinstance(work, Commit) or (isinstance(work, ResolveLock) and work.commit_ts):
            commits.setdefault(work.start_ts, work.commit_ts)
    ceilings, ceiling = [end_ts] * len(works), end_ts
    for at in range(len(works) - 1, -1, -1):
        work = works[at]
        if isinstance(work, Prewrite):
            commit_ts = work.one_pc_commit_ts or commits.get(work.txn.start_ts)
            if commit_ts:
                ceiling = min(ceiling, Ts(commit_ts - 1))
        ceilings[at] = ceiling
    return ceilings
