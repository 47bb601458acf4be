"""Records of the ``ddl`` topic: first the schema snapshot, then one record a finished DDL job, in finished_ts order.

JSON, one record a message: ``{"kind": "schema" | "table" | "snapshot_end" | "job" | "undecodable", …}``. A job that was
landed again (the producer restarted) is the same job; readers drop jobs whose ``(finished_ts, job id)`` they have
applied. ``snapshot_end`` carries the snapshot's ts: the schema store is complete at that ts from there on.

``undecodable`` is a row of the job table that the producer could not read, as it is: a reader that can read it takes
the job from it, any other one must not go past its ts. A reader older than this kind refuses the record, and so stops
there too.

The format, for readers in other languages: docs/formats/raw-log.md §4.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from schemas.errors import CorruptDataError, decoding
from schemas.ids import Ts
from schemas.json_text import read_json

DdlRecordKind = Literal["schema", "table", "snapshot_end", "job", "undecodable"]
_KINDS = get_args(DdlRecordKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlRecord:
    """One record. ``payload`` is TiDB's own JSON, unchanged.

    ``schema``: DBInfo. ``table``: TableInfo, with ``schema_id`` of its schema. ``snapshot_end``: empty. ``job``: the
    job's JSON as it stood in ``mysql.tidb_ddl_job`` when its state became done; ``ts`` is the commit_ts of that
    transaction (BinlogInfo.FinishedTS) and ``start_ts`` its start_ts; of a job that has its effect before it is done,
    those of that moment, and the JSON is as if it were done. ``undecodable``: ``key`` and ``value`` of the row
    in hex, the job table's ``cols`` (id and name of each) and the ``reason``; ``ts`` and ``start_ts`` as of a job.
    """

    kind: DdlRecordKind
    ts: Ts
    start_ts: Ts = Ts(0)
    schema_id: int = 0
    payload: dict[str, Any]


_BEGINNING: Final = b'{"kind"'
"""Of each record that a capture of any version has written."""


def encode_ddl_record(record: DdlRecord) -> bytes:
    """Return the Kafka record value."""
    return json.dumps(
        {
            "kind": record.kind,
            "ts": record.ts,
            "start_ts": record.start_ts,
            "schema_id": record.schema_id,
            "payload": record.payload,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def decode_ddl_record(value: bytes) -> DdlRecord:
    """Read a record of the ddl topic.

    Raises:
        CorruptDataError: not JSON, an unknown kind, or a field is missing.
    """
    try:
        raw = read_json(value)
        if raw["kind"] not in _KINDS:
            raise ValueError(f"kind {raw['kind']!r} is none of {_KINDS}")
        return DdlRecord(
            kind=raw["kind"],
            ts=Ts(int(raw["ts"])),
            start_ts=Ts(int(raw["start_ts"])),
            schema_id=int(raw["schema_id"]),
            payload=dict(raw["payload"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise CorruptDataError("ddl record does not decode", value=value[:200], reason=repr(error)) from error


def read_ddl_record(value: bytes, *, topic: str, offset: int) -> DdlRecord | None:
    """Read what stands at an offset of the ddl topic; None: no capture has written it, somebody has put it into the
    wrong topic, say. One that begins as a capture's and does not decode may be a job, and nobody may pass it over.

    Raises:
        CorruptDataError: it does not decode; the error names its topic and offset.
    """
    if not value.startswith(_BEGINNING):
        return None
    with decoding(topic=topic, offset=offset):
        return decode_ddl_record(value)
