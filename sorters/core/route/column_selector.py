"""Which columns of a table its row messages hold, by ``[sink] column-selectors``.

The first selector whose matcher matches the table counts; of its rules the last that matches a column decides, a column
that none matches is left out, and case never counts. A table that no selector matches keeps all columns.

What is left of a table is a table again: one without the other columns. Encoders and schemas get that one and need not
know of selectors. What comes before them (mounting, event filters, the update split) sees whole rows, and so do DDL
events and simple's bootstraps, as in TiCDC.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.config.filter.filter_rule import parse_column_rule
from schemas.config.parse.origin import Origin
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink import ColumnSelector
from schemas.errors import Action, BusError, ConfigError
from schemas.tidb.table import ColumnVersion, IndexVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.filter.table_filter import NamePattern, TableFilter, compile_pattern, fold
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedPart
from sorters.core.route.dispatch import PartitionRule, Route

_KEYED_BY_HANDLE = ("avro", "debezium", "debezium-avro")
"""Protocols whose message keys are the handle key: half a key would take rows for one another."""


def _needs_handle(config: ChangefeedConfig) -> str:
    """Return what makes messages of the handle key alone; empty: nothing does."""
    if config.protocol in _KEYED_BY_HANDLE:
        return f"protocol {config.protocol}"
    if config.sink.delete_only_output_handle_key_columns:
        return "delete-only-output-handle-key-columns"
    option = config.kafka.large_message_handle.large_message_handle_option
    return f"large-message-handle-option {option}" if option == "handle-key-only" else ""


class ColumnSelectorError(BusError):
    """A column selector leaves out what a table's messages need; ``fields`` name table, key and line."""

    code, action = "sorter.column_selector_failed", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class _Selector:
    number: int
    """Its index in the list."""
    matcher: TableFilter
    last_first: tuple[tuple[bool, NamePattern], ...]

    def keeps(self, column: str) -> bool:
        folded = fold(column)
        return next((positive for positive, pattern in self.last_first if pattern.matches(folded)), False)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector leaves of one table version."""

    table: TableVersion
    """Without the columns that are left out; offsets are those of what is left."""
    route: Route
    """Of whole rows still, but without the columns that are left out: they drop out of the partition's hash."""
    offsets: tuple[int, ...]
    """Of the columns that are left, in the whole table."""

    def of(self, part: MountedPart) -> MountedPart:
        """Return mounted rows without what is left out."""
        return replace(
            part,
            table=self.table,
            columns=self._columns(part.columns),
            old=self._columns(part.old),
            new_rows=self._values(part.new_rows),
            old_rows=self._values(part.old_rows),
        )

    def _columns(self, columns: tuple[Column, ...] | None) -> tuple[Column, ...] | None:
        return None if columns is None else tuple(columns[offset] for offset in self.offsets)

    def _values(self, rows: Sequence[tuple[Value, ...]] | None) -> list[tuple[Value, ...]] | None:
        return None if rows is None else [tuple(row[offset] for offset in self.offsets) for row in rows]


class ColumnSelectors:
    """The selectors of one changefeed. Immutable; pickles."""

    def __init__(self, config: ChangefeedConfig) -> None:
        selectors = enumerate(config.sink.column_selectors)
        self._selectors = tuple(_compile(number, selector, config) for number, selector in selectors)
        self._origin: Origin = config.origin
        self._needs_handle = _needs_handle(config)

    @property
    def any(self) -> bool:
        """Whether there is a selector."""
        return bool(self._selectors)

    def concerns(self, schema: str, table: str) -> bool:
        """Tell whether a selector matches a table."""
        return self._for(schema, table) is not None

    def keeps(self, schema: str, table: str, column: str) -> bool:
        """Tell whether a table's messages hold a column of this name."""
        selector = self._for(schema, table)
        return selector is None or selector.keeps(column)

    def select(self, table: TableVersion, route: Route) -> Selection | None:
        """Apply the table's selector to one version of it; None: all columns stay.

        Raises:
            ColumnSelectorError: no key of the table is left whole, no column is left at all, or the dispatcher's
                ``columns`` are not; where keys or messages are the handle key alone, also that it is not left whole.
        """
        selector = self._for(table.schema, table.table)
        if selector is None:
            return None
        kept = [column for column in table.columns if selector.keeps(column.name)]
        offsets = {column.offset: new_offset for new_offset, column in enumerate(kept)}
        self._check(selector, table, route, offsets)
        if len(kept) == len(table.columns):
            return None
        hashed = [
            (offset, name)
            for offset, name in zip(route.column_offsets, route.column_names, strict=True)
            if offset in offsets
        ]
        return Selection(
            table=_narrowed(table, selector, offsets),
            route=replace(
                route,
                column_offsets=tuple(offset for offset, _ in hashed),
                column_names=tuple(name for _, name in hashed),
            ),
            offsets=tuple(offsets),
        )

    def _for(self, schema: str, table: str) -> _Selector | None:
        if not self._selectors:
            return None
        return next(
            (selector for selector in self._selectors if selector.matcher.matches_any_schema(schema, table)), None
        )

    def _check(self, selector: _Selector, table: TableVersion, route: Route, offsets: dict[int, int]) -> None:
        if not offsets:
            raise self._error("column selector leaves no column of the table", table, selector)
        keys = _keys(table)
        if keys and not any(offsets.keys() >= set(key) for key in keys):
            names = "; ".join(", ".join(table.columns[offset].name for offset in key) for key in keys)
            text = f"column selector leaves neither the primary key nor a unique key whole; keys are: {names}"
            raise self._error(text, table, selector)
        if self._needs_handle:
            what = f"is of the handle key, which {self._needs_handle} writes alone"
            self._check_kept(table.handle_columns, what, selector, table, offsets)
        if route.rule is PartitionRule.COLUMNS:
            what = "is one that the table's dispatcher hashes"
            self._check_kept(route.column_offsets, what, selector, table, offsets)

    def _check_kept(
        self, needed: Sequence[int], what: str, selector: _Selector, table: TableVersion, offsets: dict[int, int]
    ) -> None:
        for offset in needed:
            if offset not in offsets:
                name = table.columns[offset].name
                raise self._error(f"column selector leaves out column `{name}`, which {what}", table, selector)

    def _error(self, message: str, table: TableVersion, selector: _Selector) -> ColumnSelectorError:
        where = self._origin.where(("sink", "column-selectors", selector.number, "columns"))
        return ColumnSelectorError(message, table=table.name, version=table.version, **where)


def _compile(number: int, selector: ColumnSelector, config: ChangefeedConfig) -> _Selector:
    rules = []
    for text in selector.columns:
        try:
            rule = parse_column_rule(text)
            if rule is not None:
                rules.append((rule.positive, compile_pattern(rule.column, case_sensitive=False)))
        except ValueError as error:
            raise ConfigError(f"column rule `{text}` is illegal: {error}") from None
    matcher = TableFilter(selector.matcher, config.case_sensitive)
    return _Selector(number=number, matcher=matcher, last_first=tuple(reversed(rules)))


def _keys(table: TableVersion) -> list[tuple[int, ...]]:
    """Return the primary and unique keys as offsets; one with a virtual column can stand in no message whole."""
    whole = [index for index in table.indexes if len(index.offsets) == len(index.column_names)]
    keys = [index.offsets for index in whole if index.primary or index.unique]
    return [table.key_columns, *keys] if table.pk_is_handle else keys


def _narrowed(table: TableVersion, selector: _Selector, offsets: dict[int, int]) -> TableVersion:
    """Return the table without the other columns, and without every key and index that is not whole any more."""

    def moved(column: ColumnVersion) -> ColumnVersion:
        return replace(column, offset=offsets[column.offset]) if column.visible else column

    def moved_key(key: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(offsets[offset] for offset in key if offset in offsets)

    def is_whole(index: IndexVersion) -> bool:
        return all(offset in offsets for offset in index.offsets)

    all_columns = tuple(
        moved(column)
        for column in table.all_columns
        if (column.offset in offsets if column.visible else selector.keeps(column.name))
    )
    return replace(
        table,
        columns=tuple(column for column in all_columns if column.visible),
        all_columns=all_columns,
        indexes=tuple(replace(index, offsets=moved_key(index.offsets)) for index in table.indexes if is_whole(index)),
        index_columns_offset=tuple(
            moved_key(key) for key in table.index_columns_offset if all(o in offsets for o in key)
        ),
        handle_columns=moved_key(table.handle_columns),
        key_columns=moved_key(table.key_columns),
    )
