"""A cut: which offsets of the raw log to read, and which rows of them to keep.

The frontier law: for two frontiers F1 before F2 of one changefeed, the distinct row changes with ``R1 < commit_ts <=
R2`` at offsets ``[low1[p], high2[p])`` are exactly the upstream's row changes in that interval. A changefeed does not
wait for tables that it does not contain: :func:`frontier_for` takes a frontier record to the ts and offsets that hold
for its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts
from schemas.rawlog.batch_head import BatchHead
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables, widened
from schemas.rawlog.images import NO_IMAGES, IdRange, ImageChunk, ImageState
from schemas.sink.image_note import WatermarkNote
from sorters.core.cut.images import FeedImages, LeftOut, images_of
from sorters.core.cut.state_plan import StatePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedFrontier:
    """What one frontier record says for one changefeed. Vectors have one item a raw partition."""

    resolved_ts: Ts
    low: tuple[int, ...]
    high: tuple[int, ...]
    repeat_high: tuple[int, ...]
    ddl_high: int
    images: FeedImages | None = None
    """What it says of table images; None: nothing to this changefeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows with ``after_ts < commit_ts <= upto_ts`` at offsets ``[start[p], end[p])``."""

    after_ts: Ts
    upto_ts: Ts
    start: tuple[int, ...]
    end: tuple[int, ...]
    may_repeat: bool
    """The range may hold a change more than once, so equal neighbours must be dropped."""
    ddl_end: int
    """Every DDL up to ``upto_ts`` is below this offset of the ddl topic."""
    left_out: LeftOut | None = None
    """Changes that do not go out, for an image of their keys is still to come."""
    chunks: tuple[ImageChunk, ...] = ()
    """Of table images: they go out at ``upto_ts``, after its changes."""
    resynced: frozenset[TableId] = frozenset()
    """Tables of ``chunks`` that are to lose what their image lacks."""
    resync: tuple[IdRange, ...] = ()
    """All tables that are to lose what their image lacks."""
    read_again: LeftOut | None = None
    """Tables that an image reads again, with what of them is done; all of their changes go out."""
    note: WatermarkNote | None = None
    """What its watermarks say of table images; None: nothing. It is put in as the cut is run."""
    noted: Mapping[tuple[str, str, Ts], TableId] = field(default_factory=dict, compare=False)
    """Tables whose rows strike off noted keys at a database, by name and version there. It is put in as well."""
    states: StatePlan = field(default_factory=dict, compare=False)
    """Which of its rows count for state proofs; what is written does not hang on it."""

    @property
    def offsets(self) -> int:
        """Raw records to read."""
        return sum(self.end) - sum(self.start)

    def share(self, number: int, count: int) -> dict[int, tuple[int, int]]:
        """Return which offsets ``[start, end)`` of each raw partition task ``number`` of ``count`` reads.

        Each task reads a share of every partition, since those of one partition are of about one size. What does not
        divide goes to another task in each partition, so that many short partitions do not all end up with one.
        """

        def bound(partition: int, at: int) -> int:
            start, end = self.start[partition], self.end[partition]
            return start + ((end - start) * at + partition % count) // count if at < count else end

        shares = (
            (p, bound(p, number) if number else start, bound(p, number + 1)) for p, start in enumerate(self.start)
        )
        return {partition: (start, end) for partition, start, end in shares if end > start}


def frontier_for(
    record: FrontierRecord, contains: Callable[[TableId], bool], concerns: Callable[[HeldDdl], bool] = lambda _: True
) -> ChangefeedFrontier:
    """Return the frontier of a changefeed whose tables are those that ``contains`` says; it waits for what ``concerns``
    it of the held DDL jobs.
    """
    mine: list[HeldTables | HeldDdl] = [held for held in record.held if any(contains(table) for table in held.tables)]
    mine += [held for held in record.held_ddl if concerns(held)]
    low, resolved_ts = record.low, record.resolved_ts
    for held in mine:
        low = tuple(min(pair) for pair in zip(low, held.low, strict=True))
        resolved_ts = min(resolved_ts, held.ts)
    return ChangefeedFrontier(
        resolved_ts=resolved_ts,
        low=low,
        high=record.high,
        repeat_high=record.repeat_high,
        ddl_high=record.ddl_high,
    )


def with_images(
    frontier: ChangefeedFrontier, state: ImageState, name: str, *, waits_at: Ts | None = None
) -> ChangefeedFrontier:
    """Return the frontier with what its record says of table images to a changefeed, and no further than that allows.

    Args:
        frontier: as the record's held tables leave it.
        state: the record's images.
        name: :func:`schemas.rawlog.images.image_feed`.
        waits_at: where a changefeed that must be registered stands until it is; None: it need not be.
    """
    if state is NO_IMAGES and waits_at is None:
        return frontier
    images, barrier = images_of(state, name), state.barrier_of(name)
    if barrier is not None and barrier.ts <= frontier.resolved_ts:
        low = tuple(map(min, frontier.low, widened(barrier.low, len(frontier.low))))
        frontier = replace(frontier, resolved_ts=Ts(barrier.ts - 1), low=low)
    elif images is None and waits_at is not None:
        frontier = replace(frontier, resolved_ts=min(waits_at, frontier.resolved_ts))
    return replace(frontier, images=images)


def cut_between(
    first: ChangefeedFrontier,
    second: ChangefeedFrontier,
    after_ts: Ts,
    upto_ts: Ts,
    left_out: LeftOut | None = None,
    chunks: tuple[ImageChunk, ...] = (),
) -> Cut:
    """Return the cut ``(after_ts, upto_ts]``, which must lie within ``(first.resolved_ts, second.resolved_ts]``.

    Raises:
        InvariantBrokenError: it does not, so the law would not hold for it; or an offset went back.
    """
    if not first.resolved_ts <= after_ts <= upto_ts <= second.resolved_ts:
        raise InvariantBrokenError(
            "cut lies outside its two frontier records",
            first_ts=first.resolved_ts,
            after_ts=after_ts,
            upto_ts=upto_ts,
            second_ts=second.resolved_ts,
        )
    # Partitions that region-events has got in between held nothing at the first.
    first_low = widened(first.low, len(second.high))
    if any(low > high for low, high in zip(first_low, second.high, strict=True)):
        raise InvariantBrokenError("frontier low stands above a later high", low=first_low, high=second.high)
    return Cut(
        after_ts=after_ts,
        upto_ts=upto_ts,
        start=first_low,
        end=second.high,
        may_repeat=any(repeat > low for repeat, low in zip(second.repeat_high, first_low, strict=True)),
        ddl_end=second.ddl_high,
        left_out=left_out,
        chunks=chunks,
        resynced=frozenset() if second.images is None else second.images.resynced(chunks),
        resync=() if second.images is None else second.images.resync,
        read_again=None if second.images is None else second.images.read_again_after(after_ts),
    )


def overlaps(head: BatchHead, after_ts: Ts, upto_ts: Ts) -> bool:
    """Tell from the head of a raw record whether any of its rows can be within ``(after_ts, upto_ts]``."""
    return head.max_commit_ts > after_ts and head.min_commit_ts <= upto_ts
