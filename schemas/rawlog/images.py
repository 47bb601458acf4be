"""Table images: what a frontier record says of them, and what a capture reports of its scans.

A **table image** is the rows of a table that were there before, scanned chunk by chunk, each chunk at a *barrier ts* S.
Its laws stand in docs/architecture.md, the format, for readers in other languages, in docs/formats/table-images.md.

Owner and captures talk by what is there anyway. A scan is ordered by the frontier record that announces its barrier, so
nobody can scan before the announcement counts; what came of it stands in the capture's landing reports until a record
without the barrier is heard. Both are of the newest only: nothing is lost with a message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.keys import table_span


class ImageMode(StrEnum):
    """What a changefeed wants of a table's image."""

    INITIAL = "initial"
    """The table is new to the changefeed: changes of ranges that are not imaged yet are left out."""
    BACKFILL = "backfill"
    """All changes go out as ever; at S the rows that there are, once more."""
    RESYNC = "resync"
    """As backfill, and at S deletes of rows that the image lacks; its first chunk is :func:`opening_of` the table."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Raw TiKV keys ``[start, end)`` of the records of one physical table."""

    start: bytes
    end: bytes

    @classmethod
    def of_table(cls, table_id: TableId) -> "KeyRange":
        """Return all records of a table."""
        return cls(*table_span(table_id))


def opening_of(table_id: TableId) -> KeyRange:
    """Return the range that a resync scans first: one that no row's key can be in. At its ts nothing of the image goes
    out, so there is room for what stands before all of it.
    """
    start = KeyRange.of_table(table_id).start
    return KeyRange(start, start + b"\0")


@dataclass(frozen=True, slots=True, order=True)
class IdRange:
    """Physical table ids, both ends included. It may hold ids that are no table, or none of the changefeed's."""

    first: TableId
    last: TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFeed:
    """A changefeed that wants images, from its registration on and for as long as it lives.

    Tables leave the ranges once they are whole, or gone. One that is in none of them has no image to come.
    """

    feed: str
    """:func:`image_feed`."""
    initial: tuple[IdRange, ...] = ()
    backfill: tuple[IdRange, ...] = ()
    resync: tuple[IdRange, ...] = ()

    def ids(self, mode: ImageMode) -> tuple[IdRange, ...]:
        """Return the tables that it waits for so."""
        return {ImageMode.INITIAL: self.initial, ImageMode.BACKFILL: self.backfill, ImageMode.RESYNC: self.resync}[mode]

    def with_ids(self, mode: ImageMode, ids: tuple[IdRange, ...]) -> "ImageFeed":
        """Return it with other tables that it waits for so."""
        return ImageFeed(
            feed=self.feed,
            initial=ids if mode is ImageMode.INITIAL else self.initial,
            backfill=ids if mode is ImageMode.BACKFILL else self.backfill,
            resync=ids if mode is ImageMode.RESYNC else self.resync,
        )

    @property
    def waits(self) -> bool:
        """Whether an image is to come."""
        return bool(self.initial or self.backfill or self.resync)

    def mode_of(self, table_id: TableId) -> ImageMode | None:
        """Return how the changefeed waits for a table's image; None: it does not."""
        if holds_id(self.initial, table_id):
            return ImageMode.INITIAL
        if holds_id(self.resync, table_id):
            return ImageMode.RESYNC
        return ImageMode.BACKFILL if holds_id(self.backfill, table_id) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableImage:
    """A table that has been begun, for changefeeds that have got the same of it. Of one table there may be several,
    without a changefeed in common.
    """

    table_id: TableId
    feeds: tuple[str, ...]
    done: tuple[KeyRange, ...]
    """What went out at barriers that all readers have passed; ascending, no two touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScan:
    """One range that a capture is to scan at the barrier that the scan belongs to, and to land in the images topic."""

    number: int
    """With the barrier's ts it names the scan, for ever: no ts is a barrier's twice."""
    capture: CaptureId
    table_id: TableId
    feeds: tuple[str, ...]
    """Those that get it: some of the barrier's."""
    keys: KeyRange
    bytes_max: int
    """Of keys and values: a scan ends after the row that reaches it, and says how far it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBarrier:
    """Scans at one ts, not finished. Its changefeeds go no further than ``ts - 1``; no other open one has any of them.

    It was announced by a record with a resolved_ts below ``ts``.
    """

    ts: Ts
    feeds: tuple[str, ...]
    scans: tuple[ImageScan, ...]
    low: tuple[int, ...]
    """Of the record that announced it: changes at or above ``ts`` stand at or above these offsets of region-events. By
    a later record's own low they may stand below it, and still be to come for the changefeeds that are held here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChunk:
    """A range that is landed whole as of ``ts``: its rows go out to its changefeeds at ``ts``.

    It stands in each record from its completion on, up to the first of which every reader had passed ``ts`` at the
    record before; from there on it is among ``TableImage.done``.
    """

    ts: Ts
    number: int
    attempt: int
    """With ``ts`` and ``number`` it names the records: others may stand between them."""
    table_id: TableId
    feeds: tuple[str, ...]
    keys: KeyRange
    partition: int
    """Of the images topic."""
    offsets: tuple[int, int]
    """``[start, end)``; equal: the range has no row."""
    rows: int
    bytes: int


def is_opening(chunk: ImageChunk) -> bool:
    """Tell whether a chunk is its table's :func:`opening_of`. One of a single row's key ends as an opening does."""
    return chunk.keys == opening_of(chunk.table_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    """The images part of a frontier record. Whoever changes it gives it a higher version."""

    version: tuple[int, int] = (0, 0)
    """The revision of the owner that changed it last, and a number that grows with each change under it."""
    feeds: tuple[ImageFeed, ...] = ()
    tables: tuple[TableImage, ...] = ()
    barriers: tuple[ImageBarrier, ...] = ()
    chunks: tuple[ImageChunk, ...] = ()
    cancelled: tuple[Ts, ...] = ()
    """Of the barriers that ended last, those with a scan that nothing came of."""

    def feed(self, name: str) -> ImageFeed | None:
        """Return what a changefeed waits for; None: it is not registered."""
        return next((feed for feed in self.feeds if feed.feed == name), None)

    def barrier_of(self, feed: str) -> ImageBarrier | None:
        """Return the open barrier that holds a changefeed back."""
        return next((barrier for barrier in self.barriers if feed in barrier.feeds), None)

    def done_of(self, feed: str, table_id: TableId) -> tuple[KeyRange, ...]:
        """Return the ranges of a table that a changefeed has got."""
        return next(
            (image.done for image in self.tables if image.table_id == table_id and feed in image.feeds),
            (),
        )


NO_IMAGES: Final = ImageState()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What came of a scan, as its capture reports it. With a ``failure`` nothing else counts."""

    barrier_ts: Ts
    number: int
    attempt: int = 0
    """Grows where the capture begins the scan once more: what it landed before is nobody's."""
    reached: bytes = b""
    """Everything of the scan's range below this key is landed and acknowledged; the range's end: all of it."""
    partition: int = 0
    offsets: tuple[int, int] = (0, 0)
    rows: int = 0
    bytes: int = 0
    failure: str = ""
    """The code of an error. '': none."""
    reason: str = field(default="", compare=False)
    """For people."""


def image_feed(namespace: str, changefeed_id: str, created_zxid: int) -> str:
    """Return the name under which frontier records know a changefeed: one that is created anew has another.

    >>> image_feed("default", "a", 7)
    'default/a@7'
    """
    return f"{namespace}/{changefeed_id}@{created_zxid}"


def holds_id(ranges: Sequence[IdRange], table_id: TableId) -> bool:
    """Tell whether a table is in one of the ranges."""
    return any(item.first <= table_id <= item.last for item in ranges)


def holds_key(ranges: Sequence[KeyRange], key: bytes) -> bool:
    """Tell whether a key is in one of the ranges."""
    return any(item.start <= key < item.end for item in ranges)


def merge_keys(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Return the same keys in the fewest ranges, ascending.

    >>> merge_keys([KeyRange(b"b", b"c"), KeyRange(b"a", b"b"), KeyRange(b"e", b"f")])
    (KeyRange(start=b'a', end=b'c'), KeyRange(start=b'e', end=b'f'))
    """
    merged: list[KeyRange] = []
    for item in sorted(item for item in ranges if item.start < item.end):
        if merged and item.start <= merged[-1].end:
            merged[-1] = KeyRange(merged[-1].start, max(merged[-1].end, item.end))
        else:
            merged.append(item)
    return tuple(merged)


def missing_keys(whole: KeyRange, done: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Return what of ``whole`` is in none of ``done``, ascending.

    >>> missing_keys(KeyRange(b"a", b"f"), [KeyRange(b"b", b"c")])
    (KeyRange(start=b'a', end=b'b'), KeyRange(start=b'c', end=b'f'))
    """
    missing, at = [], whole.start
    for item in merge_keys(done):
        if at < min(item.start, whole.end):
            missing.append(KeyRange(at, min(item.start, whole.end)))
        at = max(at, item.end)
    if at < whole.end:
        missing.append(KeyRange(at, whole.end))
    return tuple(missing)


def merge_ids(ranges: Iterable[IdRange]) -> tuple[IdRange, ...]:
    """Return the same ids in the fewest ranges, ascending."""
    merged: list[IdRange] = []
    for item in sorted(item for item in ranges if item.first <= item.last):
        if merged and item.first <= merged[-1].last + 1:
            merged[-1] = IdRange(merged[-1].first, max(merged[-1].last, item.last))
        else:
            merged.append(item)
    return tuple(merged)


def without_id(ranges: Iterable[IdRange], table_id: TableId) -> tuple[IdRange, ...]:
    """Return the ranges without one id."""
    kept: list[IdRange] = []
    for item in ranges:
        if item.first <= table_id <= item.last:
            kept += [IdRange(item.first, TableId(table_id - 1)), IdRange(TableId(table_id + 1), item.last)]
        else:
            kept.append(item)
    return merge_ids(kept)


def follow_images(last: ImageState, state: ImageState) -> ImageState:
    """Return what counts of two: the newer one. A record that says nothing of images takes none back."""
    return state if state.version > last.version else last


def grown(state: ImageState, owner_rev: int) -> ImageState:
    """Return it as the next version, changed by this owner."""
    before = state.version
    return replace(state, version=(owner_rev, before[1] + 1 if before[0] == owner_rev else 1))
