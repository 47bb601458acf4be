"""Rows of an event feed, as the matcher reads them, without protobuf."""

from typing import NamedTuple

PUT, DELETE = 1, 2
"""cdcpb ``Event.Row.OpType``."""


class Row(NamedTuple):
    """Has the fields of cdcpb ``Event.Row`` that the matcher looks at."""

    type: int
    start_ts: int = 0
    commit_ts: int = 0
    key: bytes = b""
    value: bytes = b""
    old_value: bytes = b""
    op_type: int = PUT
    txn_source: int = 0
    generation: int = 0
