"""Row changes to output records, the one path of tasks, driver and dry run: tables of one form share a pass.

A pass over the rows of one table has a price however few they are, which is most of a cut with a thousand busy tables
(docs/decisions/2026-11-22-columnar-mount-and-encode.md). Rows of tables that look alike
(:mod:`sorters.core.mount.alike_tables`) and that the settings treat alike go through the same steps at once, also where
each table has a topic of its own. The records are those of passes table by table, byte for byte. Where a shared pass is
refused, each of its tables is run alone: errors name one table, and rows beyond a topic's limit are a matter of that
table.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.flow.flow_sum import FlowSum
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import join_rows
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed
from sorters.core.flow.ledger import FlowLedger
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.mount.corrupt_rows import OnCorrupt
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.records.order import OutputRecords, no_records
from sorters.core.rows.asked_tables import AskedTable
from sorters.core.rows.pipeline import CELLS_MAX, EncodedPass, Settings, encodable, encode_pass, route_pass, run_version
from sorters.core.rows.some_tables import route_some
from sorters.core.rows.table_plans import TableForm, TablePlans
from sorters.core.rows.wanted_rows import by_version, wanted_versions
from sorters.core.state_proof.deltas import StateLedger

TABLE_ROWS_MAX = 2_048
"""Rows of a table in a chunk beyond which a pass of its own costs nothing more a row."""
PASS_ROWS_MAX = 16_384
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Row values of tables that wait for others."""


class PassKey(NamedTuple):
    """What a pass hangs on."""

    how: Hashable
    """The changefeed's settings."""
    encoded_at_ms: int
    tables: tuple[Hashable, ...]
    """Of each table: its rows, its version, and what messages hold of its topic."""


class KeptPasses(Protocol):
    """What several changefeeds make of the same rows."""

    def holds(self, rows: RowChanges) -> bool:
        """Tell whether this is one of the chunks that several get."""
        ...

    def landed(self, rows: RowChanges) -> FlowSum | None:
        """Return the sum of a chunk's rows; None: it is not one of those that several get."""
        ...

    def encoded(self, key: PassKey, keeps: object, make: Callable[[], EncodedPass | None]) -> EncodedPass | None:
        """Return what ``make`` returned for this key, to whoever asked first. ``keeps`` lives as long as that is kept:
        a key may name objects by their identity.

        Raises:
            BusError: whatever ``make`` raises; it is not kept.
        """
        ...

    def ask(self, key: PassKey, tables: Sequence[AskedTable]) -> None:
        """Note that somebody wants a pass of these tables, which the key's are."""
        ...

    def company(self, key: PassKey, tables: Sequence[AskedTable]) -> list[tuple[AskedTable, RowChanges]]:
        """Return other tables of the cut that are to be run along with these, with all their rows in it; none if no
        pass has been made yet that lacks some of these tables.
        """
        ...

    def run_alone(self, key: PassKey) -> None:
        """Say that a pass with the company that there is for a key has failed: nobody is to try that again."""
        ...

    def covering(self, key: PassKey) -> tuple[EncodedPass, list[int]] | None:
        """Return a pass that others have made of these tables and more, and which of its tables the key's are; None:
        there is none with rows.
        """
        ...


VersionRows = tuple[TableVersion, RowChanges]
OnRefused = Callable[[BusError, int], None]
"""Gets why a shared pass was refused, whose tables are run alone then, and how many were so far."""


def run_chunks(  # noqa: PLR0913 # what a pass needs, and what is kept of earlier ones
    chunks: Iterable[RowChanges],
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    *,
    encoded_at_ms: int,
    store_claim: StoreClaim | None = None,
    on_corrupt: OnCorrupt | None = None,
    on_refused: OnRefused | None = None,
    plans: TablePlans | None = None,
    kept: KeptPasses | None = None,
    ledger: FlowLedger | None = None,
    states: StateLedger | None = None,
) -> Iterator[OutputRecords]:
    """Turn chunks of row changes, each of one physical table, into records of the sink topics, in no particular order.

    Args:
        chunks: of any commit_ts that ``schemas`` knows.
        encoded_at_ms: the time that messages say they were encoded at.
        store_claim: stores whole messages that are too large, before this yields the records that name them; None: they
            are named and not stored.
        on_corrupt: gets the rows that do not fit their checksum, if the feed verifies them and goes on all the same.
        on_refused: see there.
        plans: what is known of tables from earlier calls with this feed.
        kept: where ``chunks`` are objects that other changefeeds get, too: what they have made of them.
        ledger: is told what is landed, left out and split.
        states: is given all rows, before any of them is left out.

    Raises:
        UnknownTableError, SchemaGoneError: no schema ever said that the table exists.
        CorruptDataError: a row does not decode; fields name table, key and commit_ts.
        CorruptChecksumError: a row does not fit its checksum, and the feed must not go on then.
        EncodeRefusedError, SinkMessageTooLargeError: a row has no message in this protocol or topic.
    """
    plans = plans or TablePlans()
    wanted = wanted_rows(chunks, schemas, feed, plans=plans, kept=kept, ledger=ledger, states=states)
    settings = Settings(encoded_at_ms, store_claim, on_corrupt, ledger)
    yield from run_rows(wanted, schemas, feed, settings, plans, on_refused=on_refused, kept=kept)


def wanted_rows(
    chunks: Iterable[RowChanges],
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    *,
    plans: TablePlans,
    kept: KeptPasses | None = None,
    ledger: FlowLedger | None = None,
    states: StateLedger | None = None,
) -> Iterator[VersionRows]:
    """Yield the rows that the changefeed is to get, by table version, and as many as may be encoded at once. See
    :func:`run_chunks`.

    Raises:
        UnknownTableError, SchemaGoneError: no schema ever said that the table exists.
    """
    for chunk in chunks:
        if ledger is not None:
            ledger.land(chunk, None if kept is None else kept.landed(chunk))
        if states is not None:
            states.take(chunk, schemas)
        for version, group in wanted_versions(chunk, schemas, feed, ledger, plans):
            for rows in encodable(group, version):
                yield version, rows


def run_rows(
    wanted: Iterable[VersionRows],
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    settings: Settings,
    plans: TablePlans,
    *,
    on_refused: OnRefused | None = None,
    kept: KeptPasses | None = None,
) -> Iterator[OutputRecords]:
    """Turn what :func:`wanted_rows` yields into records, in no particular order. See :func:`run_chunks`."""
    passes = _Passes(schemas, feed, settings, plans, on_refused, kept)
    for version, rows in wanted:
        yield from passes.take(version, rows)
    yield from passes.finish()


def shares_passes(feed: CompiledFeed) -> bool:
    """Tell whether tables of a changefeed may share a pass."""
    return feed.encoder.takes_alike_tables and not feed.verify_checksums


def pass_settings(feed: CompiledFeed) -> Hashable:
    """Return what of a changefeed the messages of alike tables hang on, beside :meth:`Encoder.topic_part`."""
    return feed.encoder, feed.zone, feed.split_updates, feed.routes if feed.routes.any else None


@dataclass(slots=True, eq=False)
class _Waiting:
    """Rows of tables that are alike."""

    groups: list[tuple[TableVersion, str, RowChanges]] = field(default_factory=list)
    """With the topic that they go to."""
    rows: int = 0
    bytes: int = 0
    """How long the row values are together."""


class _Passes:
    def __init__(
        self,
        schemas: SchemaStore | LayeredSchemas,
        feed: CompiledFeed,
        settings: Settings,
        plans: TablePlans,
        on_refused: OnRefused | None,
        kept: KeptPasses | None,
    ) -> None:
        self._feed, self._settings, self._plans, self._on_refused = feed, settings, plans, on_refused
        self._schemas, self._kept = schemas, kept
        self.refused = 0
        """Shared passes that were run again table by table."""
        self._shares = shares_passes(feed)
        self._waiting: dict[TableForm, _Waiting] = {}
        self._bytes = 0

    def take(self, version: TableVersion, rows: RowChanges) -> Iterator[OutputRecords]:
        """Yield the records of a group of rows, or let it wait; yield those of others whose turn has come.

        Raises:
            DispatchError, ColumnSelectorError: the settings do not fit the table.
        """
        plan = self._plans.plan(version, self._feed) if self._shares and len(rows) <= TABLE_ROWS_MAX else None
        if plan is None:
            yield from self._alone(version, rows)
            return
        waiting = self._waiting.get(plan.form)
        if waiting is None:
            waiting = self._waiting[plan.form] = _Waiting()
        if waiting.rows + len(rows) > _pass_rows_max(version):
            yield from self._run(waiting)
            self._bytes -= waiting.bytes
            waiting = self._waiting[plan.form] = _Waiting()
        size = rows.value_bytes
        waiting.groups.append((version, plan.topic, rows))
        waiting.rows, waiting.bytes, self._bytes = waiting.rows + len(rows), waiting.bytes + size, self._bytes + size
        if self._bytes > WAITING_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[OutputRecords]:
        """Yield the records of all that waits."""
        each = list(self._waiting.values())
        self._waiting.clear()
        self._bytes = 0
        for waiting in each:
            yield from self._run(waiting)

    def _run(self, waiting: _Waiting) -> Iterator[OutputRecords]:
        several = len(waiting.groups) > 1 and waiting.rows >= SMALL_ROWS
        if several or self._kept is not None:
            chunks = tuple(rows for _, _, rows in waiting.groups)
            try:
                tables = [self._asked(version, topic) for version, topic, _ in waiting.groups]
                records = self._together(chunks, tables, makes=several)
            except BusError as error:
                # Of which table it is, and whether it is one at all, the tables tell one by one.
                self.refused += 1
                if self._on_refused is not None:
                    self._on_refused(error, self.refused)
            else:
                if records is not None:
                    yield from [records] if records.num_rows else []
                    return
        for version, _, rows in waiting.groups:
            yield from self._alone(version, rows)

    def _together(
        self, chunks: tuple[RowChanges, ...], tables: list[AskedTable], *, makes: bool
    ) -> OutputRecords | None:
        """Return the records of a pass of all these tables; None: nobody has made one that fits, and unless it
        ``makes`` one they are run alone.
        """
        feed, settings, alike = self._feed, self._settings, _alike(tables, chunks)
        versions = alike.versions
        if self._kept is None:
            return run_version(join_rows(chunks), versions[0], feed, settings, alike)
        key = PassKey(
            pass_settings(feed),
            settings.encoded_at_ms,
            tuple((id(rows), *table.key) for rows, table in zip(chunks, tables, strict=True)),
        )
        self._kept.ask(key, tables)
        covering = self._kept.covering(key)
        records = None if covering is None else route_some(*covering, feed, alike, settings.ledger)
        if records is None and makes:
            records = self._in_company(self._kept, key, chunks, tables, alike)
        if records is not None or not makes:
            return records
        passed = self._kept.encoded(
            key, (chunks, versions), lambda: encode_pass(join_rows(chunks), versions[0], feed, settings, alike)
        )
        return no_records() if passed is None else route_pass(passed, feed, settings, alike)

    def _asked(self, version: TableVersion, topic: str) -> AskedTable:
        return AskedTable(version, topic, self._feed.encoder.topic_part(version, topic, self._feed.schema_ids))

    def _in_company(
        self,
        kept: KeptPasses,
        key: PassKey,
        chunks: tuple[RowChanges, ...],
        tables: list[AskedTable],
        alike: AlikeTables,
    ) -> OutputRecords | None:
        """Return the records of a pass of these tables and of those that others will ask for; None: there are none, or
        the pass does not go.
        """
        try:
            more = list(self._with_room(kept.company(key, tables), sum(map(len, chunks)), alike.versions[0]))
            if not more:
                return None
            others, rows = zip(*more, strict=True)
            joined = (*chunks, *rows)
            together = _alike((*tables, *others), joined)
            wide = key._replace(tables=(*key.tables, *((id(each), *table.key) for table, each in more)))
            passed = kept.encoded(wide, (joined, together.versions), lambda: self._encoded_for_all(joined, together))
        except BusError:  # perhaps of a table that is not ours
            kept.run_alone(key)
            return None
        if passed is None:
            return None
        return route_some(passed, range(len(chunks)), self._feed, alike, self._settings.ledger)

    def _encoded_for_all(self, chunks: Sequence[RowChanges], alike: AlikeTables) -> EncodedPass | None:
        """Encode rows of others' tables, too, by the schemas of who has asked; the books of this cut are not theirs."""
        settings = replace(self._settings, ledger=None)
        return encode_pass(join_rows(chunks), alike.versions[0], self._feed, settings, alike)

    def _with_room(
        self, others: Iterable[tuple[AskedTable, RowChanges]], rows: int, version: TableVersion
    ) -> Iterator[tuple[AskedTable, RowChanges]]:
        """Yield those whose rows are all of the version that was asked for, as far as a pass has room for them."""
        most = _pass_rows_max(version)
        for table, chunk in others:
            if not len(chunk) or len(chunk) > TABLE_ROWS_MAX or chunk.deletes_of_nothing is not None:
                continue
            if [each for each, _ in by_version(chunk, self._schemas)] != [table.version] or rows + len(chunk) > most:
                continue
            rows += len(chunk)
            yield table, chunk

    def _alone(self, version: TableVersion, rows: RowChanges) -> Iterator[OutputRecords]:
        records = run_version(rows, version, self._feed, self._settings)
        if records.num_rows:
            yield records


def _pass_rows_max(version: TableVersion) -> int:
    return min(PASS_ROWS_MAX, CELLS_MAX // max(len(version.columns), 1))


def _alike(tables: Sequence[AskedTable], chunks: Sequence[RowChanges]) -> AlikeTables:
    """Return the tables of chunks that are joined one after the other, each of its table."""
    versions, topics, parts = zip(*((table.version, table.topic, table.part) for table in tables), strict=True)
    return AlikeTables(versions, topics, parts, np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks]))
