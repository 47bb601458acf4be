"""What a reader gets: rows and DDL of a changefeed, by transaction, between two watermarks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from consumers.client.core.partition import PartitionKey
from consumers.client.core.stream import ReadPosition
from schemas.ids import Ts
from schemas.sink.image_note import TableName

Op = Literal["insert", "update", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row change.

    Values are int, float, Decimal, bytes (binary types), str or None; a BIT is an int in canal-json, bytes in Avro.
    Dates and times are MySQL's text: a ``0000-00-00`` has no Python date. ENUM and SET are as the protocol has them:
    numbers in canal-json, names in Avro.
    """

    schema: str
    table: str
    op: Op
    commit_ts: Ts
    start_ts: Ts
    columns: Mapping[str, Any]
    """After the change; of a DELETE what the message has of the row that went: all of it, or the handle key."""
    old: Mapping[str, Any] | None = None
    """Before an update, as far as the message has it: in Avro with ``avro-include-before-value`` alone."""
    key_names: tuple[str, ...] = ()
    """Of the handle key: the primary key, or the unique key that stands for it. canal-json names a primary key alone:
    empty for a table that has none.
    """
    types: Mapping[str, str] = field(default_factory=dict, repr=False)
    """TiDB's name of each column's type, as far as the message tells it: ``int unsigned``, ``enum('a')``, ``enum``."""

    @property
    def is_image(self) -> bool:
        """Whether it is a row that was there before, as a table image has it: no transaction commits when it begins."""
        return self.commit_ts == self.start_ts

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of :attr:`key_names`, of a row as it is after the change; empty for every row where those are."""
        return tuple(self.columns.get(name) for name in self.key_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """One schema change: it stands behind all rows of its ts and before all later ones."""

    schema: str
    table: str
    query: str
    commit_ts: Ts
    start_ts: Ts


Change = Row | Ddl


@dataclass(frozen=True, slots=True)
class Transaction:
    """The rows that one upstream transaction changed in the tables of this reader's partitions, or one DDL."""

    commit_ts: Ts
    start_ts: Ts
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """Everything up to ``watermark_ts`` that earlier batches did not have, in commit order, each change once.

    ``watermark_ts`` is at or above that of the batch before, but for topics found later that hold more than the
    stream's ``pending_bytes_max``: until they have caught up, what was applied is of no one ts.
    """

    watermark_ts: Ts
    changes: tuple[Change, ...]
    positions: Mapping[PartitionKey, ReadPosition] = field(default_factory=dict, repr=False)
    """For ``commit``."""
    images_left: int = 0
    """Physical tables (partitions) whose image is not whole at ``watermark_ts``, of all of the changefeed."""
    whole: tuple[TableName, ...] = ()
    """Tables whose image has become whole with this batch: schema and table."""
    waiting: tuple[TableName, ...] | None = ()
    """Tables whose image is not whole; None: they are too many to be named."""

    def is_whole(self, schema: str, table: str) -> bool | None:
        """Tell whether no image of a table is to come or under way at ``watermark_ts``; None: this batch does not say,
        for more tables wait than it names, so that it is as it was.
        """
        if self.images_left == 0 or (schema, table) in self.whole:
            return True
        return None if self.waiting is None else (schema, table) not in self.waiting

    def transactions(self) -> Iterator[Transaction]:
        """Yield the changes by transaction; each is whole, as far as this reader's partitions have it."""
        for (commit_ts, start_ts), changes in groupby(self.changes, lambda change: (change.commit_ts, change.start_ts)):
            yield Transaction(commit_ts, start_ts, tuple(changes))
