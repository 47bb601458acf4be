"""One record of a changefeed's proofs: what was read and written between two ts, chained to the record before by hash.

A record is one JSON object in its canonical form (keys sorted, no blanks, ASCII), whose ``hash`` is the SHA-256 of the
same without ``hash``. The format, for readers in other languages: docs/formats/proofs.md.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.errors import CorruptDataError
from schemas.flow.flow_sum import NOTHING, FlowSum, TableSums, add_sums, parse_sum
from schemas.ids import TableId, Ts
from schemas.json_text import read_int, read_json, read_text
from schemas.state_proof.carried import CarriedState, read_state, state_as_plain

VERSION: Final = 1
TABLES_MAX: Final = 32
"""Tables of which a record names what was written: those with the most rows."""
PROOF_BYTES_MAX: Final = 256 * 1024
STATES_BYTES_MAX: Final = PROOF_BYTES_MAX // 2
BEGINS_FIRST: Final = "first"
"""The topic held no record of the changefeed, or none that is near its end."""
BEGINS_RUN: Final = "run"
"""The window does not join the one before: another run has begun, behind it or, where the last one could not tell
everything, beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofWindow:
    """What came to pass with rows of ``after_ts < commit_ts <= upto_ts``; repeats count as often as they came."""

    after_ts: Ts
    upto_ts: Ts
    cuts: int = 1
    landed: FlowSum = NOTHING
    """Read from the raw log."""
    left_out: Mapping[str, FlowSum] = field(default_factory=dict)
    """By reason."""
    split: FlowSum = NOTHING
    """DELETE halves that updates have become beside their PUT."""
    repeats: FlowSum = NOTHING
    """Dropped as the same as the row before."""
    written: FlowSum = NOTHING
    tables: TableSums = field(default_factory=dict)
    """What was written, by physical table."""
    tables_total: int = 0
    """How many tables had rows, at least; a record read back holds the largest only."""
    states: Mapping[TableId, CarriedState] = field(default_factory=dict)
    """What tables hold at the window's end by their state proofs, of those of which that is another than before."""
    states_total: int = 0
    """How many these were, at least; a record read back holds those that it had room for."""

    @property
    def rest(self) -> FlowSum:
        """What does not come out even; nothing, by the law."""
        left = sum(self.left_out.values(), NOTHING)
        return self.landed + self.split - left - self.repeats - self.written


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A window in a changefeed's chain."""

    namespace: str
    changefeed_id: str
    number: int
    """In the chain, from 0 on."""
    previous: str
    """Hash of the record before; '': this one begins a chain."""
    begins: str
    """Why its window need not join the one before; '': it must."""
    window: ProofWindow
    hash: str = ""
    """Of the record; '': not made yet."""

    @property
    def name(self) -> tuple[str, str]:
        """Namespace and id of the changefeed."""
        return self.namespace, self.changefeed_id


def join_windows(first: ProofWindow, second: ProofWindow) -> ProofWindow:
    """Return both windows as one; the second begins where the first ends."""
    reasons = sorted({*first.left_out, *second.left_out})
    tables = add_sums(first.tables, second.tables)
    return ProofWindow(
        after_ts=first.after_ts,
        upto_ts=second.upto_ts,
        cuts=first.cuts + second.cuts,
        landed=first.landed + second.landed,
        left_out={
            reason: first.left_out.get(reason, NOTHING) + second.left_out.get(reason, NOTHING) for reason in reasons
        },
        split=first.split + second.split,
        repeats=first.repeats + second.repeats,
        written=first.written + second.written,
        tables=tables,
        tables_total=max(len(tables), first.tables_total, second.tables_total),
        states={**first.states, **second.states},
        states_total=max(first.states_total, second.states_total),
    )


def encode_proof(proof: Proof) -> tuple[bytes, str]:
    """Return a record's bytes, and its hash."""
    window = proof.window
    largest = sorted(window.tables.items(), key=lambda item: (-item[1].count, item[0]))[:TABLES_MAX]
    plain = {
        "version": VERSION,
        "namespace": proof.namespace,
        "changefeed": proof.changefeed_id,
        "number": proof.number,
        "previous": proof.previous,
        "begins": proof.begins,
        "after_ts": window.after_ts,
        "upto_ts": window.upto_ts,
        "cuts": window.cuts,
        "landed": str(window.landed),
        "left_out": {reason: str(each) for reason, each in window.left_out.items()},
        "split": str(window.split),
        "repeats": str(window.repeats),
        "written": str(window.written),
        "tables": {str(table): str(each) for table, each in largest},
        "tables_total": max(len(window.tables), window.tables_total),
    }
    if window.states:
        plain["states"] = _with_room(window.states)
        plain["states_total"] = max(len(window.states), window.states_total)
    made = _hash_of(plain)
    return _canonical({**plain, "hash": made}), made


def decode_proof(content: bytes) -> Proof:
    """Read a record. Whether its hash is right, and whether its sums come out even, is :func:`is_unaltered`'s and the
    checker's matter.

    Raises:
        CorruptDataError: it is no record of this version.
    """
    try:
        if len(content) > PROOF_BYTES_MAX:
            raise ValueError("it is too long")
        raw = read_json(content)
        if raw["version"] != VERSION:
            raise ValueError(f"version is {str(raw['version'])[:40]}, known: {VERSION}")
        window = ProofWindow(
            after_ts=Ts(read_int(raw["after_ts"], bits=63)),
            upto_ts=Ts(read_int(raw["upto_ts"], bits=63)),
            cuts=read_int(raw["cuts"], bits=63),
            landed=parse_sum(raw["landed"]),
            left_out={read_text(reason): parse_sum(each) for reason, each in raw["left_out"].items()},
            split=parse_sum(raw["split"]),
            repeats=parse_sum(raw["repeats"]),
            written=parse_sum(raw["written"]),
            tables={TableId(int(table)): parse_sum(each) for table, each in raw["tables"].items()},
            tables_total=read_int(raw["tables_total"], bits=63),
            states={state.table_id: state for state in map(read_state, raw.get("states", ()))},
            states_total=read_int(raw.get("states_total", 0), bits=63),
        )
        return Proof(
            namespace=read_text(raw["namespace"]),
            changefeed_id=read_text(raw["changefeed"]),
            number=read_int(raw["number"], bits=63),
            previous=read_text(raw["previous"]),
            begins=read_text(raw["begins"]),
            window=window,
            hash=read_text(raw["hash"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("record is no proof", size=len(content), reason=error) from error


def is_unaltered(content: bytes) -> bool:
    """Tell whether a record that decodes is the one that its hash was made of, byte for byte."""
    raw = dict(read_json(content))
    said = raw.pop("hash", None)
    return said == _hash_of(raw) and content == _canonical({**raw, "hash": said})


def follow_up(head: Proof | None, name: tuple[str, str], window: ProofWindow) -> tuple[bytes, Proof]:
    """Return the record of a window that follows ``head`` in its chain, and the chain's new head.

    ``head`` is the newest record that is known of the changefeed; None: there is none.
    """
    joins = head is not None and head.window.upto_ts == window.after_ts
    begins = BEGINS_FIRST if head is None else "" if joins else BEGINS_RUN
    number, previous = (0, "") if head is None else (head.number + 1, head.hash)
    proof = Proof(
        namespace=name[0], changefeed_id=name[1], number=number, previous=previous, begins=begins, window=window
    )
    content, made = encode_proof(proof)
    return content, replace(proof, hash=made)


def _with_room(states: Mapping[TableId, CarriedState]) -> list[dict[str, object]]:
    """Return as many states as a record has room for, by table id."""
    taken, size = list[dict[str, object]](), 0
    for _, state in sorted(states.items()):
        plain = state_as_plain(replace(state, image=None if state.image is None else ()))
        size += len(_canonical(plain))
        if size > STATES_BYTES_MAX:
            break
        taken.append(plain)
    return taken


def _canonical(plain: Mapping[str, object]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _hash_of(plain: Mapping[str, object]) -> str:
    return hashlib.sha256(_canonical(plain)).hexdigest()
