"""Row changes to output records, the one path of tasks, driver and dry run: tables of one form share a pass.

A pass over the rows of one table has a price however few they are, which is most of a cut with a thousand busy tables
(docs/decisions/2026-11-22-columnar-mount-and-encode.md). Rows of tables that look alike
(:mod:`sorters.core.mount.alike_tables`) and that the settings treat alike go through the same steps at once. The
records are those of passes table by table, byte for byte. Where a shared pass is refused, each of its tables is run
alone: errors name one table, and rows beyond a topic's limit are a matter of that table.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import join_rows
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed
from sorters.core.mount.alike_tables import AlikeTables, are_alike
from sorters.core.mount.corrupt_rows import OnCorrupt
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.records.order import OutputRecords
from sorters.core.rows.pipeline import CELLS_MAX, Settings, encodable, run_version, wanted_versions

TABLE_ROWS_MAX = 2_048
"""Rows of a table in a chunk beyond which a pass of its own costs nothing more a row."""
PASS_ROWS_MAX = 16_384
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Row values of tables that wait for others."""

OnRefused = Callable[[BusError, int], None]
"""Gets why a shared pass was refused, whose tables are run alone then, and how many were so far."""


def run_chunks(
    chunks: Iterable[RowChanges],
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    *,
    encoded_at_ms: int,
    store_claim: StoreClaim | None = None,
    on_corrupt: OnCorrupt | None = None,
    on_refused: OnRefused | None = None,
) -> Iterator[OutputRecords]:
    """Turn chunks of row changes, each of one physical table, into records of the sink topics, in no particular order.

    Args:
        chunks: of any commit_ts that ``schemas`` knows.
        encoded_at_ms: the time that messages say they were encoded at.
        store_claim: stores whole messages that are too large, before this yields the records that name them; None: they
            are named and not stored.
        on_corrupt: gets the rows that do not fit their checksum, if the feed verifies them and goes on all the same.

    Raises:
        UnknownTableError, SchemaGoneError: no schema ever said that the table exists.
        CorruptDataError: a row does not decode; fields name table, key and commit_ts.
        CorruptChecksumError: a row does not fit its checksum, and the feed must not go on then.
        EncodeRefusedError, SinkMessageTooLargeError: a row has no message in this protocol or topic.
    """
    passes = _Passes(feed, Settings(encoded_at_ms, store_claim, on_corrupt), on_refused)
    for chunk in chunks:
        for version, group in wanted_versions(chunk, schemas, feed):
            for rows in encodable(group, version):
                yield from passes.take(version, rows)
    yield from passes.finish()


@dataclass(slots=True, eq=False)
class _Form:
    """Tables that are alike, with rows that wait."""

    groups: list[tuple[TableVersion, RowChanges]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    """How long the row values are together."""


class _Passes:
    def __init__(self, feed: CompiledFeed, settings: Settings, on_refused: OnRefused | None) -> None:
        self._feed, self._settings, self._on_refused = feed, settings, on_refused
        self.refused = 0
        """Shared passes that were run again table by table."""
        self._shares = feed.encoder.takes_alike_tables and not feed.verify_checksums
        self._forms: dict[Hashable, list[_Form]] = {}
        """By column names and route, which nearly tell forms apart."""
        self._bytes = 0

    def take(self, version: TableVersion, rows: RowChanges) -> Iterator[OutputRecords]:
        """Yield the records of a group of rows, or let it wait; yield those of others whose turn has come."""
        key = self._key(version) if self._shares and len(rows) <= TABLE_ROWS_MAX else None
        if key is None:
            yield from self._alone(version, rows)
            return
        form = self._form(key, version)
        if form.rows + len(rows) > min(PASS_ROWS_MAX, CELLS_MAX // max(len(version.columns), 1)):
            yield from self._run(form)
            self._bytes -= form.bytes
            form.groups, form.rows, form.bytes = [], 0, 0
        size = rows.value.nbytes + rows.old_value.nbytes
        form.groups.append((version, rows))
        form.rows, form.bytes, self._bytes = form.rows + len(rows), form.bytes + size, self._bytes + size
        if self._bytes > WAITING_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[OutputRecords]:
        """Yield the records of all that waits."""
        forms = [form for bucket in self._forms.values() for form in bucket]
        self._forms.clear()
        self._bytes = 0
        for form in forms:
            yield from self._run(form)

    def _key(self, version: TableVersion) -> Hashable | None:
        """Return what tables that share a pass have in common beside their form; None: the table is run alone.

        Raises:
            DispatchError, ColumnSelectorError: the settings do not fit the table.
        """
        events, name = self._feed.events, (version.schema, version.table)
        if version.partitions or events.ignored_ops(*name) or events.has_conditions(*name):
            return None
        route, selection = self._feed.select(version)
        if selection is not None:
            return None
        names = tuple(column.name for column in version.columns)
        return names, route.topic, route.rule, route.column_offsets, route.column_names

    def _form(self, key: Hashable, version: TableVersion) -> _Form:
        bucket = self._forms.setdefault(key, [])
        for form in bucket:
            if are_alike(form.groups[0][0], version):
                return form
        bucket.append(_Form())
        return bucket[-1]

    def _run(self, form: _Form) -> Iterator[OutputRecords]:
        if len(form.groups) > 1 and form.rows >= SMALL_ROWS:
            versions, chunks = zip(*form.groups, strict=True)
            number = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
            try:
                alike = AlikeTables(versions, number)
                records = run_version(join_rows(chunks), versions[0], self._feed, self._settings, alike)
            except BusError as error:
                # Of which table it is, and whether it is one at all, the tables tell one by one.
                self.refused += 1
                if self._on_refused is not None:
                    self._on_refused(error, self.refused)
            else:
                yield from [records] if records.num_rows else []
                return
        for version, rows in form.groups:
            yield from self._alone(version, rows)

    def _alone(self, version: TableVersion, rows: RowChanges) -> Iterator[OutputRecords]:
        records = run_version(rows, version, self._feed, self._settings)
        if records.num_rows:
            yield records
