"""Spans on the wire: TiCDC's keys are memcomparable-encoded, and a whole table has none."""

from functools import lru_cache

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.proto import tablepb_pb2
from schemas.tidb.codec import decode_bytes
from schemas.tidb.spans import TableSpan

_SPANS_MAX = 1 << 18
"""Spans kept, so that those of a hundred thousand tables are not made anew with each report."""


def encode_span(span: TableSpan) -> tablepb_pb2.Span:
    """Return the message; a whole table has no keys in it."""
    if span.whole:
        return tablepb_pb2.Span(table_id=span.table_id)
    start, end = span.encoded
    return tablepb_pb2.Span(table_id=span.table_id, start_key=start, end_key=end)


def decode_span(raw: tablepb_pb2.Span) -> TableSpan:
    """Read a span; the same object for the same bytes as a rule.

    Raises:
        CorruptDataError: a key is not encoded, or has something behind it.
    """
    return _span(raw.table_id, raw.start_key, raw.end_key)


@lru_cache(maxsize=_SPANS_MAX)
def _span(table_id: int, start_key: bytes, end_key: bytes) -> TableSpan:
    if not start_key and not end_key:
        return TableSpan.of_table(TableId(table_id))
    return TableSpan(TableId(table_id), _key(start_key), _key(end_key))


def _key(encoded: bytes) -> bytes:
    key, end = decode_bytes(encoded)
    if end != len(encoded):
        raise CorruptDataError("bytes behind a span's key", key=encoded[:100], used=end)
    return key
