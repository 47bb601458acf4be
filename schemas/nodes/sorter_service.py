"""Sorter services as ZooKeeper keeps them: who is there, which changefeeds each has, and how far those are.

    services/{service}            ephemeral, by the service: who it is, and whose changefeeds it takes
    assignments/{service}         by the owner: which changefeeds it runs; its version is checked by all that it writes
    progress/{service}/{number}   by the service: for each of its changefeeds what it has begun last and how far it is
    figures/{service}/{number}    likewise: what else is counted of these (:mod:`schemas.nodes.feed_figures`)

A service writes the entries of all its changefeeds together, in one transaction that checks its registration and its
assignment: what a service says of a changefeed that it has no more is refused by ZooKeeper itself. Where a changefeed
rests, its own ``status`` and ``begun`` nodes say all; where it runs, an entry may be newer
(docs/formats/zookeeper.md).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, TypedDict

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.json_text import read_int, read_json, read_text
from schemas.nodes.changefeed import ChangefeedStatus
from schemas.nodes.feed_figures import NOTHING_COUNTED, FeedFigures, RunKey, read_feed_figures

FeedName = tuple[str, str]
"""Namespace and id of a changefeed."""
ENTRIES_MAX: Final = 16
"""Entries in one node, of some 450 bytes each. A transaction writes the nodes of the changefeeds that have begun or
ended a cut, some five, so what is written hangs on how many cuts there are and not on how many changefeeds; each node
that has changed costs whoever looks a request."""
NODE_BYTES_MAX: Final = 512 * 1024
"""What a reader takes; ZooKeeper itself takes 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFigures:
    """What a service has had Spark do since its process began."""

    sessions: int = 0
    """That were begun: more than one where a JVM has died."""
    jobs: int = 0
    """That have ended well: with small cuts of several changefeeds, or with a large one."""
    jobs_failed: int = 0
    """Failed, cancelled or given up; cuts in them were run again, or their changefeeds stopped."""
    cuts: int = 0
    """In the jobs that have ended well."""
    queries: int = 0
    """Streaming queries over backlogs, that were begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """Who a sorter service is."""

    service: str
    """Its id, made anew at each start by hand; a capture names the one that it starts."""
    host: str
    pid: int
    version: str
    started_at_s: int
    master: str
    """Spark's."""
    dedicated: str = ""
    """``namespace/id`` of the one changefeed that it takes; empty: whatever it is given."""
    spark_ui: str = ""
    """Where its Spark shows itself; empty: not started, or switched off."""
    is_stopping: bool = False
    """It takes nothing more, and its changefeeds go elsewhere."""
    knows_images: bool = False
    """Its changefeeds stop below barriers of table images, as frontier records say."""
    knows_prologues: bool = False
    """Its changefeeds run their prologue before the upstream's raw log, as their nodes say."""
    knows_lives: bool = False
    """It tells lives of a changefeed that begin at the same ts apart."""
    spark: SparkFigures = SparkFigures()
    """As it has said at most some seconds ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One changefeed of an assignment."""

    namespace: str
    changefeed_id: str
    created_zxid: int
    """Of its ``info`` node: one that was removed and created again is another."""
    epoch: int
    """Under which it is to run."""
    revision: int
    """Grows whenever the changefeed gets another service; the highest one has it."""

    @property
    def name(self) -> FeedName:
        return self.namespace, self.changefeed_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one service is to run, and which changefeeds its capture is to give processes of their own."""

    owner_rev: int = 0
    feeds: tuple[Assigned, ...] = ()
    dedicated: tuple[FeedName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """How far a running changefeed is, as its service says."""

    namespace: str
    changefeed_id: str
    created_zxid: int
    epoch: int
    revision: int
    checkpoint_ts: Ts
    resolved_ts: Ts
    begun: str = ""
    """What is begun, as :func:`sorters.core.cut.beginning.encode_begun` writes it; empty: nothing yet."""
    rows_total: int = 0
    """Row messages written since the changefeed began to run there."""
    spark_rows_total: int = 0
    """Rows among them that Spark's tasks wrote; the driver wrote the others."""
    corrupt_rows_total: int = 0
    batch_rows: int = 0
    batch_s: float = 0.0
    last_synced_ts: Ts = Ts(0)
    cpu_s: float = 0.0
    """CPU time that the changefeed's thread and Spark's tasks have spent on it, wherever those run."""
    figures: FeedFigures = field(default=NOTHING_COUNTED, hash=False)
    """As of some seconds ago, in a node of their own."""

    @property
    def name(self) -> FeedName:
        return self.namespace, self.changefeed_id

    @property
    def run(self) -> RunKey:
        """Which run of the changefeed it is of."""
        return RunKey(self.namespace, self.changefeed_id, self.created_zxid, self.epoch, self.revision)


class StatusCounts(TypedDict):
    """Fields of :class:`~schemas.nodes.changefeed.ChangefeedStatus` that only count."""

    rows_total: int
    spark_rows_total: int
    corrupt_rows_total: int
    damaged_records_total: int
    states_proven: int
    states_unproven: int
    batch_rows: int
    batch_s: float
    windows_proven: int


_SPARK_FIELDS: Final = tuple(field.name for field in fields(SparkFigures))
_ENTRY_FIELDS: Final = tuple(field.name for field in fields(FeedEntry) if field.name != "figures")


def newest_entries(entries: Iterable[FeedEntry]) -> dict[tuple[FeedName, int], FeedEntry]:
    """Return for each changefeed, by name and creation, the entry of the highest revision."""
    newest: dict[tuple[FeedName, int], FeedEntry] = {}
    for entry in entries:
        key = (entry.name, entry.created_zxid)
        known = newest.get(key)
        if known is None or (entry.revision, entry.checkpoint_ts) > (known.revision, known.checkpoint_ts):
            newest[key] = entry
    return newest


def with_figures(entry: FeedEntry, figures: Mapping[RunKey, FeedFigures]) -> FeedEntry:
    """Return an entry with the figures of its run; those that it brings with it, as of a version before, count first.

    What another run of the changefeed has left, here or at a former holder, says nothing of this one.
    """
    counted = figures.get(entry.run)
    return entry if counted is None or entry.figures != NOTHING_COUNTED else replace(entry, figures=counted)


def with_progress(status: ChangefeedStatus | None, entry: FeedEntry | None) -> ChangefeedStatus | None:
    """Return a changefeed's status with what its service says of how far it is.

    An entry from before a user has set the checkpoint says nothing any more; elsewhere the higher checkpoint counts.
    """
    if entry is None or (status is not None and entry.epoch < status.set_epoch):
        return status
    if status is None:
        status = ChangefeedStatus(state="normal", checkpoint_ts=entry.checkpoint_ts, resolved_ts=entry.resolved_ts)
    if entry.checkpoint_ts < status.checkpoint_ts:
        return status
    return replace(
        status,
        checkpoint_ts=entry.checkpoint_ts,
        resolved_ts=max(status.resolved_ts, entry.resolved_ts),
        last_synced_ts=max(status.last_synced_ts, entry.last_synced_ts),
        **status_counts(entry),
    )


def status_counts(entry: FeedEntry) -> StatusCounts:
    """Return what a changefeed's status has of an entry beside its ts."""
    return {
        "rows_total": entry.rows_total,
        "spark_rows_total": entry.spark_rows_total,
        "corrupt_rows_total": entry.corrupt_rows_total,
        "damaged_records_total": entry.figures.damaged_records_total,
        "states_proven": entry.figures.states_proven,
        "states_unproven": entry.figures.states_unproven,
        "batch_rows": entry.batch_rows,
        "batch_s": entry.batch_s,
        "windows_proven": entry.figures.windows_proven,
    }


def encode_service(info: ServiceInfo) -> bytes:
    return json.dumps(asdict(info)).encode()


def decode_service(node: bytes) -> ServiceInfo:
    """Read a ``services/…`` node.

    Raises:
        CorruptDataError: it is no such node.
    """
    raw = _document(node, "sorter service")
    try:
        return ServiceInfo(
            service=_text(raw, "service"),
            host=_text(raw, "host"),
            pid=_number(raw, "pid"),
            version=_text(raw, "version"),
            started_at_s=_number(raw, "started_at_s"),
            master=_text(raw, "master"),
            dedicated=_text(raw, "dedicated"),
            spark_ui=_text(raw, "spark_ui"),
            is_stopping=raw.get("is_stopping") is True,
            # Absent from nodes of earlier versions.
            knows_images=raw.get("knows_images") is True,
            knows_prologues=raw.get("knows_prologues") is True,
            knows_lives=raw.get("knows_lives") is True,
            spark=_spark_figures(raw.get("spark", {})),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError("sorter service does not decode", bytes=len(node), reason=repr(error)) from error


def _spark_figures(raw: object) -> SparkFigures:
    if not isinstance(raw, dict):
        raise TypeError("spark is no object")
    return SparkFigures(**{name: _number(raw, name) for name in _SPARK_FIELDS if name in raw})


def encode_assignment(assignment: Assignment) -> bytes:
    return json.dumps(
        {
            "owner_rev": assignment.owner_rev,
            "feeds": [
                [feed.namespace, feed.changefeed_id, feed.created_zxid, feed.epoch, feed.revision]
                for feed in assignment.feeds
            ],
            "dedicated": [list(name) for name in assignment.dedicated],
        }
    ).encode()


def decode_assignment(node: bytes) -> Assignment:
    """Read an ``assignments/…`` node.

    Raises:
        CorruptDataError: it is no such node.
    """
    raw = _document(node, "assignment of a sorter service")
    try:
        feeds = tuple(
            Assigned(
                namespace=read_text(namespace),
                changefeed_id=read_text(changefeed_id),
                created_zxid=read_int(created_zxid),
                epoch=read_int(epoch),
                revision=read_int(revision),
            )
            for namespace, changefeed_id, created_zxid, epoch, revision in raw["feeds"]
        )
        dedicated = tuple(
            (read_text(namespace), read_text(changefeed_id)) for namespace, changefeed_id in raw["dedicated"]
        )
        return Assignment(owner_rev=_number(raw, "owner_rev"), feeds=feeds, dedicated=dedicated)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            "assignment of a sorter service does not decode", bytes=len(node), reason=repr(error)
        ) from error


def encode_entries(entries: Iterable[FeedEntry]) -> bytes:
    """Return a ``progress/…`` node: entries without their figures."""
    return f"[{','.join(map(_entry_text, entries))}]".encode()


@lru_cache(maxsize=4096)
def _entry_text(entry: FeedEntry) -> str:
    # Kept: a group's write holds many entries, most of which are as they were in the last one.
    plain = {name: getattr(entry, name) for name in _ENTRY_FIELDS}
    # Nobody reads the reason here, but a version before takes no entry without one.
    return json.dumps({**plain, "reason": ""}, separators=(",", ":"))


def decode_entries(node: bytes) -> list[FeedEntry]:
    """Read a ``progress/…`` node.

    Raises:
        CorruptDataError: it is no such node.
    """
    raw = _document(node, "progress of a sorter service", kind=list)
    try:
        return [
            FeedEntry(
                namespace=_text(entry, "namespace"),
                changefeed_id=_text(entry, "changefeed_id"),
                created_zxid=_number(entry, "created_zxid"),
                epoch=_number(entry, "epoch"),
                revision=_number(entry, "revision"),
                checkpoint_ts=Ts(_number(entry, "checkpoint_ts")),
                resolved_ts=Ts(_number(entry, "resolved_ts")),
                begun=_text(entry, "begun"),
                rows_total=_number(entry, "rows_total"),
                spark_rows_total=_number(entry, "spark_rows_total"),
                corrupt_rows_total=_number(entry, "corrupt_rows_total"),
                batch_rows=_number(entry, "batch_rows"),
                batch_s=_seconds(entry, "batch_s"),
                last_synced_ts=Ts(_number(entry, "last_synced_ts")),
                cpu_s=_seconds(entry, "cpu_s"),
                figures=read_feed_figures(entry),  # of a version before
            )
            for entry in raw
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            "progress of a sorter service does not decode", bytes=len(node), reason=repr(error)
        ) from error


def _document(node: bytes, what: str, kind: type = dict) -> Any:
    if len(node) > NODE_BYTES_MAX:
        raise CorruptDataError(f"{what} is too large", bytes=len(node), bytes_max=NODE_BYTES_MAX)
    try:
        raw = read_json(node)
    except ValueError as error:
        raise CorruptDataError(f"{what} does not decode", bytes=len(node), reason=repr(error)) from error
    if not isinstance(raw, kind):
        raise CorruptDataError(f"{what} does not decode", bytes=len(node), seen=type(raw).__name__)
    return raw


def _text(raw: Mapping[str, object], key: str) -> str:
    return read_text(raw[key])


def _number(raw: Mapping[str, object], key: str) -> int:
    return read_int(raw[key])


def _seconds(raw: Mapping[str, object], key: str) -> float:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError(f"{key} is no number of seconds")
    return float(value)
