"""A table's state proof as a sorter carries it, and its record in the topic of states: docs/formats/state-proofs.md.

A record says what a table holds as of a ts, by itself: of several of one table the highest ts counts, so one that comes
late, or twice, changes nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.json_text import read_int, read_json, read_text
from schemas.state_proof.row_text import TableProof

VERSION: Final = 1
STATE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedState:
    """What one physical table holds."""

    table_id: TableId
    table: str
    """``schema.table``, as the upstream calls it at ``ts``."""
    after_ts: Ts
    """Between it and ``ts`` the table may have changed; from ``ts`` on it has not, until its next record's."""
    ts: Ts
    proof: TableProof = TableProof()
    columns: tuple[tuple[int, str], ...] = ()
    """Id and name of each column whose values are in it, in order."""
    begun_ts: Ts = Ts(0)
    begun_by: str = ""
    """``create``, ``truncate``, ``partition`` (it was empty then) or ``image``."""
    unproven: str = ""
    """Why there is no proof since ``ts``; '': there is one."""
    image: tuple[tuple[bytes, bytes], ...] | None = None
    """The ranges ``[start, end)`` of raw keys that have been imaged, while others have not: of those alone is
    ``proof``. None: no image is under way."""

    @property
    def is_proven(self) -> bool:
        """Whether this is what the table holds."""
        return not self.unproven and self.image is None

    @property
    def is_carried(self) -> bool:
        """Whether changes go on being added up."""
        return not self.unproven

    def lost(self, ts: Ts, reason: str) -> "CarriedState":
        """Return it without a proof from ``ts`` on."""
        return replace(self, after_ts=ts, ts=ts, proof=TableProof(), columns=(), unproven=reason, image=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """A state, and of whom."""

    namespace: str
    changefeed_id: str
    life: str
    """:func:`schemas.sink.topic.life_of`: states of another one count for nothing."""
    run: str
    """Names the sorter's run that wrote it. Each has keys of its own, so that none writes over another one's."""
    state: CarriedState


def state_key(record: StateRecord) -> bytes:
    """Return the record's key: the topic is compacted by it."""
    return feed_key((record.namespace, record.changefeed_id)) + f"{record.run}/{record.state.table_id}".encode()


def feed_key(name: tuple[str, str]) -> bytes:
    """Return what the keys of a changefeed's records begin with, by its namespace and id."""
    return "/".join((*name, "")).encode()


def encode_state(record: StateRecord) -> bytes:
    """Return a record's bytes."""
    plain = {
        "version": VERSION,
        "namespace": record.namespace,
        "changefeed": record.changefeed_id,
        "life": record.life,
        "run": record.run,
        **state_as_plain(record.state),
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def state_as_plain(state: CarriedState) -> dict[str, object]:
    """Return a state as what JSON can hold."""
    plain: dict[str, object] = {
        "table_id": state.table_id,
        "table": state.table,
        "after_ts": state.after_ts,
        "ts": state.ts,
        "rows": state.proof.rows,
        "xor": f"{state.proof.xor:016x}",
        "columns": [list(column) for column in state.columns],
        "begun_ts": state.begun_ts,
        "begun_by": state.begun_by,
        "unproven": state.unproven,
    }
    if state.image is not None:
        plain["image"] = [[start.hex(), end.hex()] for start, end in state.image]
    return plain


def decode_state(content: bytes) -> StateRecord:
    """Read a record.

    Raises:
        CorruptDataError: it is none of this version.
    """
    try:
        if len(content) > STATE_BYTES_MAX:
            raise ValueError("it is too long")
        raw = read_json(content)
        if raw["version"] != VERSION:
            raise ValueError(f"version is {raw['version']!r}, known: {VERSION}")
        return StateRecord(
            namespace=read_text(raw["namespace"]),
            changefeed_id=read_text(raw["changefeed"]),
            life=read_text(raw["life"]),
            run=read_text(raw["run"]),
            state=read_state(raw),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("record is no state of a table", size=len(content), reason=error) from error


def read_state(raw: Mapping[str, Any]) -> CarriedState:
    """Read what :func:`state_as_plain` returned.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    image = raw.get("image")
    return CarriedState(
        table_id=TableId(read_int(raw["table_id"], bits=63)),
        table=read_text(raw["table"]),
        after_ts=Ts(read_int(raw["after_ts"], bits=63)),
        ts=Ts(read_int(raw["ts"], bits=63)),
        proof=TableProof(_read_rows(raw["rows"]), _read_hash(raw["xor"])),
        columns=tuple((read_int(number, bits=63), read_text(name)) for number, name in raw["columns"]),
        begun_ts=Ts(read_int(raw["begun_ts"], bits=63)),
        begun_by=read_text(raw["begun_by"]),
        unproven=read_text(raw["unproven"]),
        image=None if image is None else tuple((bytes.fromhex(start), bytes.fromhex(end)) for start, end in image),
    )


def _read_rows(value: object) -> int:
    """A count below zero is no table's, and yet what a broken raw log would come to: it is to be seen."""
    return -read_int(-value, bits=63) if isinstance(value, int) and value < 0 else read_int(value, bits=63)


def _read_hash(value: object) -> int:
    text = read_text(value, 16)
    if len(text) != 16 or text.lower() != text:
        raise ValueError(f"{text!r} is no hash of sixteen hexadecimal digits")
    return int(text, 16)
