"""The frontier: what an agent reports about its landings, and the record that the owner publishes.

The frontier law, the invariant of the whole system: for any two published records F1 before F2 the distinct row changes
with ``F1.resolved_ts < commit_ts <= F2.resolved_ts`` found at offsets ``[F1.low[p], F2.high[p])`` are exactly the
upstream's row changes in that ts interval.

The format, for readers in other languages: docs/formats/raw-log.md §5.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, Final

from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, TableId, Ts
from schemas.json_text import read_int, read_json
from schemas.rawlog.images import NO_IMAGES, ImageState, ScanResult, follow_images
from schemas.rawlog.images_codec import images_json, read_images
from schemas.rawlog.pull_figures import PullFigures
from schemas.tidb.spans import TableSpan


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of records that one agent landed in one raw partition."""

    partition: int
    start_offset: int
    max_commit_ts: Ts


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingReport:
    """What one agent knows at one moment. Vectors have one item a raw partition."""

    capture: CaptureId
    landed_ts: Mapping[TableSpan, Ts]
    """Per span: every row with commit_ts at or below it is acknowledged by the broker."""
    ends: tuple[int, ...]
    """The offset after the last acknowledged record (0: none)."""
    chunks: tuple[Chunk, ...]
    """Acknowledged runs whose max_commit_ts is above the published resolved_ts; older ones are dropped."""
    floors: tuple[int, ...]
    """No row that is in flight, or that will be landed from now on, can get an offset below this."""
    repeat_ends: tuple[int, ...]
    """The offset after the last record that may repeat a change landed before (0: none)."""
    figures: PullFigures | None = None
    """For people; None: not told yet."""
    scans: tuple[ScanResult, ...] | None = None
    """Of scans whose barrier is open in the newest record that the capture has heard of; None: it knows of no images.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlReport:
    """How far the DDL feed has landed."""

    landed_ts: Ts
    end: int
    """The offset of the ddl topic after the last acknowledged record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTables:
    """Tables that lag by more than the bound: they go at their own ts, and only their changefeeds wait for them."""

    tables: tuple[TableId, ...]
    ts: Ts
    low: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDdl:
    """A DDL job that the owner cannot read or apply: rows of tables that it made may be missing from the log.

    A changefeed that it may concern goes no further than ``ts`` by this record. The first record without it is above
    the resolved_ts of all that had it, and all rows up to there have landed.
    """

    ts: Ts
    """The job's finished_ts."""
    start_ts: Ts
    low: tuple[int, ...]
    """Rows above ``ts`` are at or above these offsets."""
    schema: str = ""
    """With ``table`` and ``table_id``: the one table that it concerns. '': any."""
    table: str = ""
    table_id: TableId = TableId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIds:
    """Kafka's ids (KIP-516, base64) of raw topics: one that was created anew has another. '': not known."""

    events: str = ""
    ddl: str = ""

    @property
    def is_known(self) -> bool:
        """Whether there is any."""
        return bool(self.events or self.ddl)

    def or_else(self, other: "TopicIds") -> "TopicIds":
        """Return these, and the other's where they are not known."""
        return TopicIds(events=self.events or other.events, ddl=self.ddl or other.ddl)


NO_TOPIC_IDS: Final = TopicIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRecord:
    """One record of the frontier topic: ``(R, high, low)`` and what belongs to them. None of them ever goes back."""

    owner_rev: int
    resolved_ts: Ts
    high: tuple[int, ...]
    low: tuple[int, ...]
    ddl_high: int
    repeat_high: tuple[int, ...]
    """Per partition, the offset after the last record that may repeat an earlier one: at or below low, no repeats."""
    held: tuple[HeldTables, ...] = ()
    held_ddl: tuple[HeldDdl, ...] = ()
    topic_ids: TopicIds = NO_TOPIC_IDS
    """Of the topics that all offsets are of; those of versions that did not know them are empty."""
    images: ImageState = NO_IMAGES
    """Table images: their own changes, at any R."""

    def widened(self, partitions: int) -> "FrontierRecord":
        """Return the record for a region-events of so many partitions; of more than there were when it was published.

        A partition that is new held nothing by then: all of it lies above every ts of the record, from offset 0 on.
        """
        if len(self.high) >= partitions:
            return self
        return replace(
            self,
            high=widened(self.high, partitions),
            low=widened(self.low, partitions),
            repeat_high=widened(self.repeat_high, partitions),
            held=tuple(replace(held, low=widened(held.low, partitions)) for held in self.held),
            held_ddl=tuple(replace(held, low=widened(held.low, partitions)) for held in self.held_ddl),
        )


NOBODYS: Final = FrontierRecord(owner_rev=-1, resolved_ts=Ts(0), high=(), low=(), ddl_high=0, repeat_high=())
"""What readers take in place of a record that no owner has written: like one of an owner that was replaced before any
other, it says nothing (:func:`follow_frontier`), and all readers agree on that."""
_BEGINNING: Final = b'{"owner_rev"'
"""Of each record that an owner of any version has written."""


def widened(offsets: tuple[int, ...], partitions: int) -> tuple[int, ...]:
    """Return offsets of partitions, with 0 for those that have come since."""
    return offsets + (0,) * (partitions - len(offsets))


def needed_ts(record: FrontierRecord) -> Ts:
    """Return from where on TiKV's history is needed: a restart begins there."""
    return min((record.resolved_ts, *(held.ts for held in record.held), *(held.ts for held in record.held_ddl)))


def follow_frontier(last: FrontierRecord | None, record: FrontierRecord) -> FrontierRecord:
    """Return where a reader of the frontier topic stands after ``record``, having stood at ``last``; all readers agree.

    A record of a lower owner revision comes from an owner that was replaced: ignored. The first record of a new owner
    may stand behind the last one of its predecessor, which it had not read yet: it closes the topic to the predecessor
    and takes nothing back, and the new owner goes on from what stood before it.
    """
    if last is None:
        return record
    if record.owner_rev < last.owner_rev:
        return last
    partitions = max(len(last.high), len(record.high))
    last, record = last.widened(partitions), record.widened(partitions)
    return FrontierRecord(
        owner_rev=record.owner_rev,
        resolved_ts=max(last.resolved_ts, record.resolved_ts),
        high=_later(last.high, record.high),
        low=_later(last.low, record.low),
        ddl_high=max(last.ddl_high, record.ddl_high),
        repeat_high=_later(last.repeat_high, record.repeat_high),
        held=record.held if record.resolved_ts >= last.resolved_ts else last.held,
        held_ddl=record.held_ddl if record.resolved_ts >= last.resolved_ts else last.held_ddl,
        topic_ids=record.topic_ids.or_else(last.topic_ids),
        images=follow_images(last.images, record.images),
    )


def _later(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Return the greater of each two offsets, of as many partitions."""
    return left if left == right else tuple(starmap(max, zip(left, right, strict=True)))


def encode_frontier(record: FrontierRecord) -> bytes:
    """Return the Kafka record value: JSON, so that any Kafka tool shows it."""
    return json.dumps(
        {
            "owner_rev": record.owner_rev,
            "resolved_ts": record.resolved_ts,
            "high": record.high,
            "low": record.low,
            "ddl_high": record.ddl_high,
            "repeat_high": record.repeat_high,
            "held": [{"tables": held.tables, "ts": held.ts, "low": held.low} for held in record.held],
            **({"held_ddl": [_held_ddl_json(held) for held in record.held_ddl]} if record.held_ddl else {}),
            **({"topic_ids": {"events": ids.events, "ddl": ids.ddl}} if (ids := record.topic_ids).is_known else {}),
            **({"images": images_json(record.images)} if record.images != NO_IMAGES else {}),
        },
        separators=(",", ":"),
    ).encode()


def is_nobodys(value: bytes) -> bool:
    """Tell whether no owner has written a record: somebody has put it into the wrong topic, say. One that begins as an
    owner's and does not decode may have been published, and nobody may pass it over."""
    return not value.startswith(_BEGINNING)


def decode_frontier(value: bytes) -> FrontierRecord:
    """Read a record of the frontier topic.

    Raises:
        CorruptDataError: not JSON, or a field is missing or of another type.
    """
    try:
        raw = read_json(value)
        return FrontierRecord(
            owner_rev=int(raw["owner_rev"]),
            resolved_ts=Ts(read_int(raw["resolved_ts"])),
            high=_vector(raw["high"]),
            low=_vector(raw["low"]),
            ddl_high=read_int(raw["ddl_high"], bits=63),
            repeat_high=_vector(raw["repeat_high"]),
            held=tuple(
                HeldTables(
                    tables=tuple(TableId(int(table)) for table in held["tables"]),
                    ts=Ts(int(held["ts"])),
                    low=_vector(held["low"]),
                )
                for held in raw["held"]
            ),
            held_ddl=tuple(_held_ddl(held) for held in raw.get("held_ddl", ())),
            topic_ids=_topic_ids(raw.get("topic_ids")),
            images=read_images(raw.get("images")),
        )
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError, IndexError) as error:
        raise CorruptDataError("frontier record does not decode", value=value[:200], reason=repr(error)) from error


def _held_ddl_json(held: HeldDdl) -> dict[str, object]:
    return {
        "ts": held.ts,
        "start_ts": held.start_ts,
        "low": held.low,
        "schema": held.schema,
        "table": held.table,
        "table_id": held.table_id,
    }


def _held_ddl(raw: dict[str, Any]) -> HeldDdl:
    return HeldDdl(
        ts=Ts(int(raw["ts"])),
        start_ts=Ts(int(raw["start_ts"])),
        low=_vector(raw["low"]),
        schema=str(raw["schema"]),
        table=str(raw["table"]),
        table_id=TableId(int(raw["table_id"])),
    )


def _topic_ids(raw: dict[str, Any] | None) -> TopicIds:
    return TopicIds(events=str(raw["events"]), ddl=str(raw["ddl"])) if raw else NO_TOPIC_IDS


def _vector(items: list[int]) -> tuple[int, ...]:
    return tuple(read_int(item, bits=63) for item in items)
