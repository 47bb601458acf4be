"""What a changefeed would do with each table where its sink is a database, files or lake tables."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from compose.changefeeds import TableIneligibleError
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.iceberg import LakeMode
from schemas.config.sink.lake_layout import PartitionTerm
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.sink.file_names import path_name, schema_path_name
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.route_check import check_routes
from sorters.core.lake.columns import checked_name, fits_unread, key_names, lake_columns
from sorters.core.lake.layout import LakeLayout, lake_layout
from sorters.core.lake.refusals import what_helps
from sorters.run.lake.names import LakeName

Kind = Literal["database", "files", "lake", "nowhere"]
_NO_KEY: Final = "none: no primary key and no not-null unique key"
_KEY_HELPS: Final[Mapping[LakeMode, str]] = {
    "append": "say force-replicate = true; or give it a primary key or a not-null unique key",
    "upsert": "give it a primary key or a not-null unique key; or send it by mode=append and force-replicate = true",
}
_LEFT_OUT: Final = "no primary key and no not-null unique key, and force-replicate is off"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of a lake table."""

    name: str
    type: str
    """As Iceberg prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinedTable:
    """One table. What cannot be said, because the settings do not fit it, is None; ``trouble`` says why."""

    table: str
    replicated: bool
    target: str | None = None
    """At a database ``schema.table``, of files the folder, of a lake the lake table."""
    key: str | None = None
    """By which its rows are found again."""
    columns: int | None = None
    layout: str | None = None
    """Partitions and order of a lake table, or the files' lines."""
    types: tuple[ShownColumn, ...] = ()
    """Of a lake table's columns."""
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedTable:
    """A table of which no lake table can be."""

    table: str
    code: str
    """Of the error that stops the changefeed at it, or by which it is passed over."""
    reason: str
    what_helps: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Everything."""

    ts: Ts
    kind: Kind
    tables: tuple[DestinedTable, ...]
    notes: tuple[str, ...]


def kind_of(config: ChangefeedConfig) -> Kind:
    """Return what a sink that is no Kafka is."""
    if config.uri.is_lake:
        return "lake"
    if config.uri.server is not None:
        return "database"
    return "files" if config.uri.storage is not None else "nowhere"


def destined(config: ChangefeedConfig, schemas: SchemaStore, ts: Ts) -> Destination:
    """Explain a changefeed over the tables as they stand at ``ts``.

    Raises:
        BusError: the settings do not compile, or a TableInfo does not decode.
    """
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    stored = [
        table for table in schemas.stored_at(ts) if table.has_rows and feed.filter.matches(table.schema, table.table)
    ]
    stored.sort(key=lambda table: (table.schema, table.table))
    notes = list(config.notes)
    try:
        check_routes(schemas, ts, feed)
    except BusError as misfit:
        notes.append(f"it would stop: {misfit}")
    tables = tuple(_table(schemas, table, config, feed) for table in stored)
    return Destination(ts=ts, kind=kind_of(config), tables=tables, notes=tuple(notes))


class LakeRefusals:
    """What one lake's sink would stop at, or passes over. Each version of a table is looked at once, and decoded only
    where something speaks against it: that takes a ms, and there may be 100,000.
    """

    def __init__(self, config: ChangefeedConfig) -> None:
        """
        Raises:
            BusError: the settings do not compile.
        """
        self._config, self._feed = config, compile_feed(config, NAMESPACE_DEFAULT)
        self._known: dict[tuple[TableId, Ts, str, str], RefusedTable | None] = {}
        """By id, version and names, of the tables that were asked for last."""

    def among(self, tables: Iterable[StoredTable]) -> list[RefusedTable]:
        """Return those of ``tables`` that it refuses, in their order.

        Raises:
            BusError: a TableInfo that is decoded does not decode.
        """
        known, refused = dict[tuple[TableId, Ts, str, str], RefusedTable | None](), list[RefusedTable | None]()
        for stored in tables:
            if not self._feed.filter.matches(stored.schema, stored.table):
                continue
            version = (stored.table_id, stored.version, stored.schema, stored.table)
            known[version] = self._known[version] if version in self._known else self._refusal(stored)
            refused.append(known[version])
        self._known = known
        return [each for each in refused if each is not None]

    def _refusal(self, stored: StoredTable) -> RefusedTable | None:
        name = f"{stored.schema}.{stored.table}"
        if not self._feed.contains(stored.schema, stored.table, eligible=stored.eligible):
            helps = _KEY_HELPS[self._config.sink.iceberg.mode]
            return RefusedTable(table=name, code=TableIneligibleError.code, reason=_LEFT_OUT, what_helps=helps)
        if fits_unread(self._feed.routes.stored(stored), self._config.sink.iceberg.mode):
            return None
        table = stored.decode()
        try:
            _lake_table(name, table, self._feed.routes.version(table), self._config)
        except BusError as misfit:
            reason = misfit.fields.get("reason", misfit.message)
            helps = what_helps(misfit, stored.schema, stored.table)
            return RefusedTable(table=name, code=misfit.code, reason=str(reason), what_helps=helps)
        return None


def as_lines(destination: Destination) -> Iterator[str]:
    """Yield it as people read it: a table a line, then what does not fit, and notes."""
    titles = ("table", "goes to", "key", "columns", "layout")
    rows = [titles, *(_row(table) for table in destination.tables)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for table in destination.tables:
        yield from (f"warning: {table.table}: {trouble}" for trouble in table.trouble)
    for note in destination.notes:
        yield f"note: {note}"


def _row(table: DestinedTable) -> tuple[str, ...]:
    if not table.replicated:
        return (table.table, "(not replicated)", "", "", "")
    columns = "?" if table.columns is None else str(table.columns)
    return (table.table, table.target or "?", table.key or "?", columns, table.layout or "")


def _table(schemas: SchemaStore, stored: StoredTable, config: ChangefeedConfig, feed: CompiledFeed) -> DestinedTable:
    name = f"{stored.schema}.{stored.table}"
    if not feed.contains(stored.schema, stored.table, eligible=stored.eligible):
        return DestinedTable(table=name, replicated=False, trouble=(_LEFT_OUT,))
    table = schemas.decoded(stored)
    try:
        _, selection = feed.select(table)
        feed.events.conditions(table)
        sent = feed.routes.version(table if selection is None else selection.table)
        match kind_of(config):
            case "lake":
                return _lake_table(name, table, sent, config)
            case "files":
                return _files(name, sent, config)
            case _:
                return DestinedTable(
                    table=name, replicated=True, target=sent.name, key=_key(sent), columns=len(sent.columns)
                )
    except BusError as misfit:
        return DestinedTable(table=name, replicated=True, trouble=(str(misfit),))


def _lake_table(name: str, table: TableVersion, sent: TableVersion, config: ChangefeedConfig) -> DestinedTable:
    """Explain a lake table.

    Raises:
        LakeSchemaError: it cannot be one.
    """
    settings = config.sink.iceberg
    above = (settings.namespace,) if settings.namespace else ()
    target = LakeName((*above, checked_name(sent.schema, table)), checked_name(sent.table, table))
    columns = lake_columns(table, settings.mode, says_changes=settings.emit_metadata_columns)
    key = ", ".join(key_names(table)) if settings.mode == "upsert" else "none: each change is a row"
    return DestinedTable(
        table=name,
        replicated=True,
        target=str(target),
        key=key,
        columns=len(columns),
        layout=_layout(lake_layout(settings, columns)),
        types=tuple(ShownColumn(column.name, column.type) for column in columns),
    )


def _layout(layout: LakeLayout) -> str:
    partitions = [_term(term) for term in layout.partitions]
    order = [f"{term.column}{' descending' if term.descends else ''}" for term in layout.order]
    by = f"partitioned by {', '.join(partitions)}" if partitions else "without partitions"
    return f"{by}, ordered by {', '.join(order)}" if order else by


def _term(term: PartitionTerm) -> str:
    if term.transform == "identity":
        return term.column
    return f"{term.transform}({term.column if term.width is None else f'{term.width}, {term.column}'})"


def _files(name: str, sent: TableVersion, config: ChangefeedConfig) -> DestinedTable:
    by_id = config.sink.cloud_storage.use_table_id_as_path
    folder = str(sent.table_id) if by_id else f"{schema_path_name(sent.schema)}/{path_name(sent.table)}"
    partition = "PARTITION/" if sent.partitions and config.sink.enable_partition_separator and not by_id else ""
    date = {"none": "", "year": "YEAR/", "month": "MONTH/", "day": "DATE/"}.get(config.sink.date_separator, "")
    return DestinedTable(
        table=name,
        replicated=True,
        target=f"{folder}/VERSION/{partition}{date}",
        key=_key(sent),
        columns=len(sent.columns),
        layout=config.protocol,
    )


def _key(table: TableVersion) -> str:
    return ", ".join(table.columns[at].name for at in table.handle_columns) or _NO_KEY
