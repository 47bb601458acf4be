"""Joining literals and columns into messages.

Other ways, and their figures: docs/decisions/2026-11-22-columnar-mount-and-encode.md.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.errors import Action, BusError
from sorters.core.columnar.spans import Spans, spans_of


class BatchTooLargeError(BusError):
    """A caller gave the encoder more rows than one Arrow array can hold as messages."""

    code, action = "sink.batch_too_large", Action.CRASH


Segment = bytes | BinaryArray
"""``bytes``: the same in every message; or a ``pyarrow.BinaryArray``: one part per message."""


def join(count: int, segments: Iterable[Segment]) -> BinaryArray:
    """Return ``count`` messages; neighbouring literals are joined first. A null in a segment makes a null message."""
    merged: list[Segment] = []
    for segment in segments:
        if isinstance(segment, bytes):
            if not segment:
                continue
            if merged and isinstance(merged[-1], bytes):
                merged[-1] += segment
                continue
        merged.append(segment)
    literals = [segment for segment in merged if isinstance(segment, bytes)]
    if len(literals) == len(merged):
        return pa.repeat(pa.scalar(b"".join(literals), pa.binary()), count)
    scalars = [pa.scalar(segment, pa.binary()) if isinstance(segment, bytes) else segment for segment in merged]
    try:
        return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))
    except pa.ArrowCapacityError as error:
        raise BatchTooLargeError("messages of one batch exceed 2 GiB: mount fewer rows at once", rows=count) from error


def without_first_byte(array: BinaryArray) -> BinaryArray:
    """Cut off the first byte of each value; empty ones stay. (``pc.binary_slice`` fails on those, pyarrow 26.)"""
    inner = spans_of(array)
    return Spans(inner.buffer, np.minimum(inner.start + 1, inner.end), inner.end).to_arrow()


def or_else(array: BinaryArray, literal: bytes) -> BinaryArray:
    """Put a literal in place of nulls."""
    return pc.fill_null(array, pa.scalar(literal, pa.binary())) if array.null_count else array
