"""TiDB's meta keys to the snapshot records of the ddl topic (docs/formats/tidb-encoding.md §2, §5.4)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject
from schemas.tidb.keys import decode_meta_hash_key, decode_meta_json, meta_hash_key, meta_hash_prefix

KeyValue = tuple[bytes, bytes]
_DATABASES: Final = b"DBs"


def snapshot_records(scan: Callable[[bytes, bytes], Iterable[KeyValue]], ts: Ts) -> Iterator[DdlRecord]:
    """Yield all schemas, each before its tables, and then ``snapshot_end``.

    Args:
        scan: yields the raw keys and values in ``[start, end)`` as they stood at ``ts``, ascending.
        ts: the snapshot's.

    Raises:
        CorruptDataError: a meta key or value does not decode.
    """
    for schema_id, schema in list(_fields(scan, _DATABASES, b"DB:")):
        yield DdlRecord(kind="schema", ts=ts, schema_id=schema_id, payload=decode_meta_json(schema))
        for _, table in _fields(scan, b"DB:%d" % schema_id, b"Table:"):
            yield DdlRecord(kind="table", ts=ts, schema_id=schema_id, payload=decode_meta_json(table))
    yield DdlRecord(kind="snapshot_end", ts=ts, payload={})


def database_count(scan: Callable[[bytes, bytes], Iterable[KeyValue]]) -> int:
    """Return how many databases there were; ``scan`` as of :func:`snapshot_records`.

    Raises:
        CorruptDataError: a meta key or value does not decode.
    """
    return sum(bool(decode_meta_json(schema)) for _, schema in _fields(scan, _DATABASES, b"DB:"))


def table_info_at(
    scan: Callable[[bytes, bytes], Iterable[KeyValue]], schema_id: object, table_id: object
) -> JsonObject | None:
    """Return the TableInfo of one table; None: there is none. ``scan`` as of :func:`snapshot_records`.

    Raises:
        CorruptDataError: the ids are no numbers, or the value does not decode.
    """
    if not isinstance(schema_id, int) or not isinstance(table_id, int):
        raise CorruptDataError("job has no ids of a table", schema_id=str(schema_id), table_id=str(table_id))
    key = meta_hash_key(b"DB:%d" % schema_id, b"Table:%d" % table_id)
    return next((decode_meta_json(value) for _, value in scan(key, key + b"\0")), None)


def _fields(
    scan: Callable[[bytes, bytes], Iterable[KeyValue]], name: bytes, field: bytes
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(id, value)`` of the fields ``{field}{id}`` of a meta hash; it has fields of other kinds too."""
    prefix = meta_hash_prefix(name)
    for key, value in scan(prefix, prefix[:-1] + bytes([prefix[-1] + 1])):
        hash_key = decode_meta_hash_key(key)
        if hash_key is not None and hash_key[1].startswith(field):
            yield int(hash_key[1][len(field) :]), value
