"""What a watermark between a sorter and its processors says of the rows before it, for flow proofs.

The value of a watermark record is JSON, ``{"watermark":TS}`` for people; machines go by its position. A sorter of this
version adds ``"flow"``: the sum of the rows that stand in the partition with ``after_ts < commit_ts <= TS``
(:mod:`schemas.sink.message_rows`), and who says so. An older processor does not look at it, and an older sorter does
not write it.

The format on a page: docs/formats/sink-topic.md.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from schemas.flow.flow_sum import FlowSum, parse_sum
from schemas.ids import Ts
from schemas.json_text import read_int, read_json, read_text

_VERSION: Final = 1
"""Of what an id is made of; a mark of another one proves nothing."""
_VALUE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class FlowMark:
    """``rows`` is the sum of a partition's rows between ``after_ts`` and the watermark that the mark stands in."""

    after_ts: Ts
    rows: FlowSum
    writer: str
    """Whose rows: sorters of one writer make the same rows of the same raw log, so they go on where one has ended."""


def marked_watermark(ts: Ts, mark: FlowMark) -> bytes:
    """Return the value of a watermark with a mark."""
    flow = f'"version":{_VERSION},"after_ts":{mark.after_ts},"rows":"{mark.rows}","writer":{_text(mark.writer)}'
    return f'{{"watermark":{ts},"flow":{{{flow}}}}}'.encode()


_text = lru_cache(64)(json.dumps)
"""As JSON has a text."""


def read_mark(value: bytes) -> FlowMark | None:
    """Return what a watermark's value says; None: nothing that can be read here, so that it proves nothing."""
    if b'"flow"' not in value or len(value) > _VALUE_BYTES_MAX:
        return None
    try:
        flow = read_json(value)["flow"]
        if flow["version"] != _VERSION:
            return None
        return FlowMark(Ts(read_int(flow["after_ts"], bits=63)), parse_sum(flow["rows"]), read_text(flow["writer"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def joined_marks(first: FlowMark | None, first_ts: Ts, second: FlowMark | None) -> FlowMark | None:
    """Return what two watermarks say together between which no row stands; the first one's is ``first_ts``."""
    if first is None or second is None or first.writer != second.writer or second.after_ts != first_ts:
        return second
    return FlowMark(first.after_ts, first.rows + second.rows, second.writer)
