"""Records of the raw log and of output topics as JSON for people: one object a row, DDL job, frontier or message."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from compose.kafka_follower import Record
from schemas.changes import Op
from schemas.errors import decoding
from schemas.rawlog.ddl_record import decode_ddl_record
from schemas.rawlog.frontier import decode_frontier
from schemas.rawlog.record_check import CHECK_HEADER, RawRecord
from schemas.rawlog.region_batch import check_record, decode_region_batch, read_batch_head
from schemas.rawlog.row_parts import read_part
from schemas.sink.position import POSITION_HEADER, PositionClass, decode_position

_OF_A_RAW_LOG: Final = re.compile(r"tidebus\..+\.(region-events|ddl|frontier)")
"""A user's topic may end in the same word: of a table ``ddl``, it is ``shop.ddl``."""


def decode_record(topic: str, record: Record) -> Iterator[dict[str, object]]:
    """Yield what one record of ``topic`` holds; the topic's name tells which of a raw log's three it is, or none.

    Raises:
        CorruptDataError: it does not decode; topic, partition and offset are named.
    """
    where = {"partition": record.partition, "offset": record.offset}
    with decoding(topic=topic, **where):
        log_topic = _OF_A_RAW_LOG.fullmatch(topic)
        match log_topic and log_topic[1]:
            case "region-events":
                yield from _rows(where, _raw_record(topic, record))
            case "ddl":
                ddl = decode_ddl_record(record.value or b"")
                start = {"start_ts": ddl.start_ts, "schema_id": ddl.schema_id}
                yield where | {"kind": ddl.kind, "ts": ddl.ts} | start | {"payload": ddl.payload}
            case "frontier":
                decode_frontier(record.value or b"")
                yield where | json.loads(record.value or b"")
            case _:
                yield where | _message(record)


def _raw_record(topic: str, record: Record) -> RawRecord:
    said = dict(record.headers).get(CHECK_HEADER)
    return RawRecord.known(record.value or b"", said, (topic, record.partition, record.offset))


def _rows(where: Mapping[str, object], value: RawRecord) -> Iterator[dict[str, object]]:
    check_record(value)
    value.check_damage()
    head = read_batch_head(value)
    if not head.count:  # a whole one is a row of many MiB, which a line of JSON helps nobody to read
        part = read_part(value)
        whose = {"table_id": head.table_id, "region_id": head.region_id, "commit_ts": head.max_commit_ts}
        part_fields = {"part": part.number, "parts": part.count, "landing": part.landing, "bytes": len(part.content)}
        yield {**where, **whose, **part_fields}
        return
    batch = decode_region_batch(value)
    rows = batch.rows
    for at in range(len(rows)):
        yield {
            **where,
            "table_id": rows.table_id,
            "region_id": batch.region_id,
            "may_repeat": batch.may_repeat,
            "commit_ts": int(rows.commit_ts[at]),
            "start_ts": int(rows.start_ts[at]),
            "op": Op(int(rows.op[at])).name.lower(),
            "key": rows.key[at].as_py().hex(),
            "value": rows.value[at].as_py().hex(),
            "old_value": rows.old_value[at].as_py().hex(),
            "txn_source": int(rows.txn_source[at]),
        }


def _message(record: Record) -> dict[str, object]:
    out: dict[str, object] = {}
    header = dict(record.headers).get(POSITION_HEADER)
    if header is not None:
        position = decode_position(header)
        out = {"commit_ts": position.commit_ts, "class": position.position_class.name.lower()}
        if position.position_class is PositionClass.ROW:
            out |= {"start_ts": position.start_ts, "op": position.op.name.lower(), "row_key": position.key.hex()}
    return out | {"key": _shown(record.key), "value": _shown(record.value)}


def _shown(data: bytes | None) -> object:
    """Return JSON as it is, other text as a string, and all else as base64."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
    try:
        return json.loads(text)
    except ValueError:
        return text
