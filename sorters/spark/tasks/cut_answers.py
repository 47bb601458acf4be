"""What tasks answer about a cut, as JSON: counts, an error of ours, or what they lack."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from schemas.errors import BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.sink_figures import figures_json, read_figures
from sorters.core.flow.books import flow_as_plain, read_flow
from sorters.core.mount.corrupt_rows import CorruptRow, CorruptRows
from sorters.core.state_proof.deltas import read_deltas
from sorters.cut.damaged_records import DamagedRecord
from sorters.cut.worker import CutCounts
from sorters.log.failures import error_as_json, error_from_json


@dataclass(frozen=True, slots=True)
class NotReady:
    """Nothing was written: the cut has rows of tables for which something must be made first."""

    tables: frozenset[TableId]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Nothing was written: the cut is larger than one task may hold."""


def counts_as_json(counts: CutCounts) -> bytes:
    """Return what one task has counted."""
    named = [[row.table, row.key, row.commit_ts] for row in counts.corrupt.named]
    return json.dumps(
        {
            "rows": counts.rows,
            "raw_bytes": counts.raw_bytes,
            "corrupt": counts.corrupt.count,
            "named": named,
            "flow": flow_as_plain(counts.flow),
            "states": counts.states.as_plain(),
            "cpu_s": round(counts.cpu_s, 4),
            "sent": figures_json(counts.sent),
            "damaged": [[*each.where, each.table_id, each.max_commit_ts, each.is_skipped] for each in counts.damaged],
        }
    ).encode()


def sum_of_counts(answers: Iterable[bytes]) -> CutCounts:
    """Return the counts of a cut whose tasks have answered by :func:`counts_as_json`.

    Raises:
        CorruptDataError: one has not.
    """
    total = CutCounts(rows=0, raw_bytes=0, corrupt=CorruptRows(), by_spark=True)
    for answer in answers:
        counts = _counts(answer)
        total = replace(
            total,
            rows=total.rows + counts.rows,
            raw_bytes=total.raw_bytes + counts.raw_bytes,
            corrupt=total.corrupt + counts.corrupt,
            flow=total.flow + counts.flow,
            states=total.states + counts.states,
            cpu_s=total.cpu_s + counts.cpu_s,
            sent=total.sent.plus(counts.sent),
            damaged=total.damaged | counts.damaged,
        )
    return total


def error_answer(error: BusError) -> bytes:
    """Return an error of the changefeed as an answer, so that it fails no job."""
    return b'{"error": ' + error_as_json(error).encode() + b"}"


def not_ready_answer(tables: Iterable[TableId]) -> bytes:
    return json.dumps({"not_ready": sorted(tables)}).encode()


def too_large_answer() -> bytes:
    return b'{"too_large": true}'


def cut_answer(answer: bytes) -> CutCounts | NotReady | TooLarge:
    """Read what a task that runs a whole cut has answered.

    Raises:
        BusError: what the task raised.
        CorruptDataError: it is no such answer.
    """
    try:
        raw = json.loads(answer)
        if "error" in raw:
            error = error_from_json(json.dumps(raw["error"]))
            if error is None:
                raise ValueError("error is none of ours")
            raise error
        if "not_ready" in raw:
            return NotReady(frozenset(TableId(int(table)) for table in raw["not_ready"]))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError("answer of a spark task does not decode", bytes=len(answer), reason=error) from error
    return TooLarge() if "too_large" in raw else sum_of_counts([answer])


def _counts(answer: bytes) -> CutCounts:
    try:
        raw = json.loads(answer)
        named = tuple(CorruptRow(str(table), str(key), int(ts)) for table, key, ts in raw["named"])
        return CutCounts(
            rows=int(raw["rows"]),
            raw_bytes=int(raw["raw_bytes"]),
            corrupt=CorruptRows(int(raw["corrupt"]), named),
            flow=read_flow(raw["flow"]),
            states=read_deltas(raw["states"]),
            cpu_s=float(raw["cpu_s"]),
            sent=read_figures(raw["sent"]),
            damaged=frozenset(
                DamagedRecord((int(partition), int(offset)), TableId(int(table)), Ts(int(ts)), bool(is_skipped))
                for partition, offset, table, ts, is_skipped in raw["damaged"]
            ),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptDataError("counts of a spark task do not decode", bytes=len(answer), reason=error) from error
