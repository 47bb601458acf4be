"""Joins open-protocol messages of one row to messages of several: the version once, then all lengths and bodies."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sorters.core.columnar.spans import IntArray, Spans, spans_of

VERSION_HEAD = (1).to_bytes(8, "big")
"""Of a key, before its rows."""


@dataclass(frozen=True, slots=True)
class OpenJoiner:
    """See :class:`sorters.core.encode.wire.protocol.Joiner`."""

    rows_per_message: int
    same_key: bool = False
    head_bytes: int = len(VERSION_HEAD)

    def added_bytes(self, keys: Any, values: Any) -> IntArray:
        """Return how much longer each row makes a message: int64, one a row."""
        return spans_of(keys).length - len(VERSION_HEAD) + spans_of(values).length

    def join(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Join the keys and the values of each list."""
        each = spans_of(keys.values)
        bodies = Spans(each.buffer, each.start + len(VERSION_HEAD), each.end).to_arrow()
        joined = pc.binary_join(pa.ListArray.from_arrays(keys.offsets, bodies), b"")
        return pc.binary_join_element_wise(VERSION_HEAD, joined, b""), pc.binary_join(values, b"")
