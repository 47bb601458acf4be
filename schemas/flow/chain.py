"""Checks a changefeed's chain of proofs: which records are altered, missing, out of turn, or do not come out even.

What a chain cannot show is that records at its very end were taken away: who must know keeps the newest hash elsewhere.
Nor can it tell at its very beginning whether retention took what was before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.errors import CorruptDataError
from schemas.flow.proof import Proof, decode_proof, is_unaltered
from schemas.ids import Ts


class Fault(StrEnum):
    """What may be wrong with a record."""

    UNREADABLE = "unreadable"
    ALTERED = "altered"
    """Its bytes are not those that its hash was made of."""
    MISSING = "missing"
    """The record before it is not there."""
    NOT_JOINED = "not_joined"
    """Its window does not begin where the one before ends, and it does not say that another run has begun."""
    UNEVEN = "uneven"
    """Rows that were landed are neither written nor left out, or the other way round."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong; ``line`` counts from 1."""

    line: int
    fault: Fault
    said: str
    name: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Unproved:
    """A stretch between two runs of which nobody has told: a process ended before it could."""

    line: int
    name: tuple[str, str]
    after_ts: Ts
    upto_ts: Ts


@dataclass(slots=True)
class ChainReport:
    """What a check has come to."""

    records: int = 0
    rows: int = 0
    """Rows written, of windows that several runs told of as often as told."""
    findings: list[Finding] = field(default_factory=list)
    unproved: list[Unproved] = field(default_factory=list)
    heads: dict[tuple[str, str], Proof] = field(default_factory=dict)
    """The newest record of each changefeed."""
    begins: dict[tuple[str, str], Proof] = field(default_factory=dict)
    """The first record of each."""


_Known = dict[str, tuple[int, Ts]]
"""Of one changefeed, by hash: number and end of each record."""


def check_chain(contents: Iterable[bytes]) -> ChainReport:
    """Check records in the order of their topic; the first one of a changefeed may follow any that retention took."""
    report = ChainReport()
    known: dict[tuple[str, str], _Known] = {}
    for line, content in enumerate(contents, start=1):
        report.records += 1
        try:
            proof = decode_proof(content)
        except CorruptDataError as error:
            report.findings.append(Finding(line, Fault.UNREADABLE, str(error)))
            continue
        mine = known.setdefault(proof.name, {})
        report.findings += _faults(line, content, proof, mine)
        newest = report.heads.get(proof.name)
        if newest is not None and proof.begins and proof.window.after_ts > newest.window.upto_ts:
            report.unproved.append(Unproved(line, proof.name, newest.window.upto_ts, proof.window.after_ts))
        report.heads[proof.name] = proof
        report.begins.setdefault(proof.name, proof)
        mine[proof.hash] = proof.number, proof.window.upto_ts
        report.rows += proof.window.written.count
    return report


def _faults(line: int, content: bytes, proof: Proof, known: _Known) -> Iterator[Finding]:
    window, name = proof.window, proof.name
    if not is_unaltered(content):
        yield Finding(line, Fault.ALTERED, f"record {proof.number} is not what its hash was made of", name)
    if window.rest or window.after_ts > window.upto_ts:
        said = f"record {proof.number}, ({window.after_ts}, {window.upto_ts}]: {window.rest} does not come out even"
        yield Finding(line, Fault.UNEVEN, said, name)
    before = known.get(proof.previous)
    if before is None:
        if known and (proof.previous or proof.begins != "first"):
            said = f"record {proof.number - 1} is not there, which record {proof.number} follows: {proof.previous}"
            yield Finding(line, Fault.MISSING, said, name)
        return
    number, upto_ts = before
    if number + 1 != proof.number or (not proof.begins and upto_ts != window.after_ts):
        said = f"record {proof.number} begins at {window.after_ts}, record {number} before it ends at {upto_ts}"
        yield Finding(line, Fault.NOT_JOINED, said, name)
