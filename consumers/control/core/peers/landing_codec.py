"""Landing reports as columns, each told as what has changed since the one before it on the same stream.

Both ends keep a list of spans with a column of landed_ts, so that a report costs little where little has changed
(docs/decisions/2026-11-22-very-many-tables.md). Lists are replaced and never changed, so that a report that waits stays
as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from consumers.control.core.peers.figures_codec import figures_of, put_figures
from consumers.control.core.peers.scans_codec import put_scans, scans_of
from consumers.control.core.peers.span_codec import decode_span, encode_span
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, Ts
from schemas.proto.landingpb_pb2 import LandingReport as RawReport
from schemas.rawlog.frontier import Chunk, LandingReport
from schemas.rawlog.pull_figures import PullFigures
from schemas.tidb.spans import TableSpan

_Column = NDArray[np.int64]

SOME_SHARE = 4
"""Where fewer than one in so many spans have moved, only those are reported: an index costs as much as a ts."""
_INDEX, _INDEX_U4, _ABOVE, _FAR_ABOVE = np.dtype("<u1"), np.dtype("<u4"), np.dtype("<u4"), np.dtype("<i8")
_DISTINCT_MAX = 256


class ReportEncoder:
    """The sending end of one stream."""

    def __init__(self) -> None:
        self._spans: list[TableSpan] = []
        self._landed: _Column = np.empty(0, np.int64)
        self._figures: PullFigures | None = None

    def encode(self, report: LandingReport) -> bytes:
        """Return what turns the report before this one into it."""
        raw = RawReport(
            ends=report.ends,
            floors=report.floors,
            repeat_ends=report.repeat_ends,
            chunk_partitions=[chunk.partition for chunk in report.chunks],
            chunk_start_offsets=[chunk.start_offset for chunk in report.chunks],
            chunk_max_commit_ts=[chunk.max_commit_ts for chunk in report.chunks],
        )
        spans = list(report.landed_ts)
        landed = np.fromiter(report.landed_ts.values(), np.int64, len(spans))
        before = self._landed
        if spans != self._spans:
            gone, added = _difference(self._spans, spans)
            raw.removed = np.array(gone, _INDEX_U4).tobytes()
            raw.added.extend(map(encode_span, added))
            before = np.concatenate([np.delete(before, gone), np.zeros(len(added), np.int64)])
        self._spans, self._landed = spans, landed
        moved = np.flatnonzero(landed != before)
        if len(moved) * SOME_SHARE <= len(landed):
            raw.some = True
            raw.places = moved.astype(_INDEX_U4).tobytes()
            landed = landed[moved]
        _put_column(raw, landed)
        if report.figures is not None and report.figures != self._figures:
            self._figures = report.figures
            put_figures(raw.figures, report.figures)
        put_scans(raw, report.scans)
        return raw.SerializeToString()


class ReportDecoder:
    """The receiving end of one stream."""

    def __init__(self, sender: CaptureId) -> None:
        self._sender = sender
        self._spans: list[TableSpan] = []
        self._landed: _Column = np.empty(0, np.int64)
        self._figures: PullFigures | None = None

    def decode(self, content: bytes) -> "PackedReport":
        """Read the next report of the stream.

        Raises:
            CorruptDataError: it does not go on from the one before.
        """
        raw = RawReport()
        try:
            raw.ParseFromString(content)
            spans, landed = self._spans, self._landed
            if raw.removed or raw.added:
                gone = np.frombuffer(raw.removed, _INDEX_U4)
                stay = np.ones(len(spans), np.bool_)
                stay[gone] = False
                added = list(map(decode_span, raw.added))
                spans = [*(compress(spans, stay.tolist()) if len(gone) else spans), *added]
                landed = np.concatenate([landed[stay], np.zeros(len(added), np.int64)])
            if raw.some:
                indexes = np.frombuffer(raw.places, _INDEX_U4)
                landed = landed.copy()
                landed[indexes] = _column(raw, len(indexes))
            else:
                landed = _column(raw, len(spans))
        except (DecodeError, ValueError, IndexError, OverflowError) as error:
            raise CorruptDataError(
                "landing report does not decode", capture=self._sender, size=len(content), reason=repr(error)
            ) from error
        if len({len(raw.chunk_partitions), len(raw.chunk_start_offsets), len(raw.chunk_max_commit_ts)}) > 1:
            raise CorruptDataError("columns of chunks differ in length", capture=self._sender)
        self._spans, self._landed = spans, landed
        if raw.HasField("figures"):
            self._figures = figures_of(raw.figures)
        return PackedReport(self._sender, spans, landed, raw, self._figures)


@dataclass(frozen=True, slots=True, eq=False)
class PackedReport:
    """A report that nobody has looked at: its dictionary is made only for one who does."""

    sender: CaptureId
    spans: list[TableSpan]
    landed: _Column
    raw: RawReport
    figures: PullFigures | None

    def unpack(self) -> LandingReport:
        """Return the report."""
        raw = self.raw
        chunks = zip(raw.chunk_partitions, raw.chunk_start_offsets, raw.chunk_max_commit_ts, strict=True)
        make_ts: Callable[[int], Ts] = Ts
        return LandingReport(
            capture=self.sender,
            landed_ts=dict(zip(self.spans, map(make_ts, self.landed.tolist()), strict=True)),
            ends=tuple(raw.ends),
            chunks=tuple(Chunk(partition, start, Ts(ts)) for partition, start, ts in chunks),
            floors=tuple(raw.floors),
            repeat_ends=tuple(raw.repeat_ends),
            figures=self.figures,
            scans=scans_of(raw),
        )


def _difference(before: list[TableSpan], after: list[TableSpan]) -> tuple[list[int], list[TableSpan]]:
    """Return which indexes of ``before`` to delete, and what to append, to have ``after``.

    A span that has changed its index is deleted and appended. Spans are compared by identity first, as the landing book
    keeps its own, and come and go at the end of its list as a rule.
    """
    if after[: len(before)] == before:
        return [], after[len(before) :]
    gone: list[int] = []
    reached = 0
    for index, span in enumerate(before):
        if reached < len(after) and (after[reached] is span or after[reached] == span):
            reached += 1
        else:
            gone.append(index)
    return gone, after[reached:]


def _put_column(raw: RawReport, landed: _Column) -> None:
    if not len(landed):
        return
    base_ts = int(landed.min())
    far = int(landed.max()) - base_ts
    if far == 0:
        raw.base_ts = base_ts
        return
    distinct, indexes = np.unique(landed, return_inverse=True)
    if len(distinct) <= _DISTINCT_MAX:
        raw.distinct_ts.extend(distinct.tolist())
        raw.indexes = indexes.astype(_INDEX).tobytes()
        return
    raw.base_ts = base_ts
    if far < 1 << 32:
        raw.above = (landed - base_ts).astype(_ABOVE).tobytes()
    else:
        raw.far_above = (landed - base_ts).astype(_FAR_ABOVE).tobytes()


def _column(raw: RawReport, count: int) -> _Column:
    """Return the landed_ts of the ``count`` spans that the report is about."""
    if raw.indexes:
        column = np.array(raw.distinct_ts, np.int64)[np.frombuffer(raw.indexes, _INDEX)]
    elif raw.above or raw.far_above:
        above = np.frombuffer(raw.above, _ABOVE) if raw.above else np.frombuffer(raw.far_above, _FAR_ABOVE)
        column = above.astype(np.int64) + raw.base_ts
    else:
        column = np.full(count, raw.base_ts, np.int64)
    if len(column) != count:
        raise CorruptDataError("a column of landed_ts has another length", seen=len(column), allowed=count)
    return column
