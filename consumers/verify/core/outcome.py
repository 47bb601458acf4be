"""What was found of one table, and how it is said."""

from dataclasses import dataclass
from enum import Enum

from consumers.verify.core.differences import KeyDifference
from schemas.ids import Ts
from schemas.state_proof.row_text import TableProof


class Verdict(Enum):
    """Of one table."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """One table, at one ts."""

    source: str
    destination: str
    verdict: Verdict
    ts: Ts = Ts(0)
    """Both sides were read as of it; 0: nothing was read."""
    source_proof: TableProof = TableProof()
    destination_proof: TableProof = TableProof()
    key: tuple[str, ...] = ()
    """Names of the columns by which rows are named."""
    differences: tuple[KeyDifference, ...] = ()
    is_all: bool = True
    """False: there are more differences than are listed."""
    missing_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Columns that were not compared."""
    reason: str = ""
    """Why it was not compared."""
    proof: TableProof | None = None
    """What the sorter says that the table holds at ``ts``; None: it says nothing."""
    odd: str = ""
    """``source``, ``proof`` or ``destination``: that one differs from both others; ``all``: each from each. Of the
    columns of the proof."""
    proof_reason: str = ""
    """Why there is no proof, or what it does not see."""


def as_json(outcome: TableOutcome) -> dict[str, object]:
    """Return an outcome as JSON; hashes are hexadecimal, as they do not fit into a double."""
    return {
        "table": outcome.source,
        "destination": outcome.destination,
        "verdict": outcome.verdict.value,
        "ts": outcome.ts,
        "source": _proof(outcome.source_proof),
        "destination_proof": _proof(outcome.destination_proof),
        "differences": [
            {"key": dict(zip(outcome.key, difference.key, strict=True)), "what": difference.what}
            for difference in outcome.differences
        ],
        "all_differences": outcome.is_all,
        "missing_columns": list(outcome.missing_columns),
        "columns_left_out": list(outcome.left_out),
        "reason": outcome.reason,
        "proof": None if outcome.proof is None else _proof(outcome.proof),
        "odd": outcome.odd,
        "proof_reason": outcome.proof_reason,
    }


def lines(outcome: TableOutcome) -> list[str]:
    """Return an outcome for people."""
    head = f"{outcome.source}: {outcome.verdict.value}"
    if outcome.verdict is Verdict.NOT_COMPARED:
        return [f"{head}: {outcome.reason}"]
    mine, theirs = outcome.source_proof, outcome.destination_proof
    rows = f"{mine.rows} rows" if mine.rows == theirs.rows else f"{mine.rows} rows, at the destination {theirs.rows}"
    said = [f"{head} at {outcome.ts}: {rows}"]
    if outcome.left_out:
        said.append(f"  not compared: columns {', '.join(outcome.left_out)}")
    if outcome.missing_columns:
        said.append(f"  the destination lacks columns {', '.join(outcome.missing_columns)}")
    if outcome.reason:
        said.append(f"  {outcome.reason}")
    if outcome.proof is not None or outcome.proof_reason:
        said.append(f"  {_of_proof(outcome)}")
    for difference in outcome.differences:
        key = ", ".join(f"{name}={_shown(part)}" for name, part in zip(outcome.key, difference.key, strict=True))
        said.append(f"  {difference.what}: {key}")
    if not outcome.is_all:
        said.append("  and more")
    return said


def _of_proof(outcome: TableOutcome) -> str:
    if outcome.proof is None:
        return f"no state proof: {outcome.proof_reason}"
    if not outcome.odd:
        unseen = f", as far as it sees: {outcome.proof_reason}" if outcome.proof_reason else ""
        return f"the state proof says the same{unseen}"
    if outcome.odd == "all":
        return f"the state proof says another thing than both, {outcome.proof.rows} rows"
    said = {"source": "source", "proof": "state proof", "destination": "destination"}
    odd = said.pop(outcome.odd)
    return f"the {odd} differs from {' and '.join(said.values())}, which agree"


def _shown(part: str | None) -> str:
    return "NULL" if part is None else repr(part)


def _proof(proof: TableProof) -> dict[str, object]:
    added = {} if proof.sum is None else {"sum": f"{proof.sum:016x}"}
    return {"rows": proof.rows, "xor": f"{proof.xor:016x}", **added}
