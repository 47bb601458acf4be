"""``ignore-update-only-columns`` of event filters: updates that change none but these columns do not go on.

Every filter whose matcher matches counts, and one that says ignore is enough. A column of a primary or unique key
cannot be ignored, and a name that the table lacks says nothing; where all names of a filter lack, it says nothing
either. An update that changes nothing is ignored. Matchers and names follow ``case-sensitive``.

Source: pingcap/ticdc ``pkg/filter/update_only_columns_filter.go``; there too it is of Kafka sinks alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from schemas.config.settings import ChangefeedConfig
from schemas.tidb.table import TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.spans import BoolArray
from sorters.core.filter.table_filter import TableFilter, fold
from sorters.core.mount.column import FLOAT_TYPES, Column, value_text
from sorters.core.mount.mounted import MountedPart, RowKind


@dataclass(frozen=True, slots=True)
class _Rule:
    matcher: TableFilter
    columns: frozenset[str]


class UpdateColumns:
    """The filters of one changefeed. Immutable; pickles."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._folds = not config.case_sensitive
        self._rules = tuple(
            _Rule(
                matcher=TableFilter(rule.matcher, config.case_sensitive),
                columns=frozenset(map(self._name, rule.ignore_update_only_columns)),
            )
            for rule in config.filter.event_filters
            if rule.ignore_update_only_columns and config.uri.server is None and config.uri.storage is None
        )

    def concern(self, schema: str, table: str) -> bool:
        """Tell whether there is a filter for a table."""
        return any(rule.matcher.matches_any_schema(schema, table) for rule in self._rules)

    def ignored(self, part: MountedPart) -> BoolArray | None:
        """Tell which rows do not go on: bool, by row of the part; None: all do."""
        if part.kind is not RowKind.UPDATE or not self._rules:
            return None
        ignored: BoolArray | None = None
        for offsets in self._held(part.table):
            same = _same(part, offsets)
            ignored = same if ignored is None else ignored | same
        return ignored if ignored is not None and ignored.any() else None

    def _held(self, table: TableVersion) -> list[tuple[int, ...]]:
        """Return for each filter of a table the columns that an ignored update leaves as they are."""
        keys = {offset for key in table.index_columns_offset for offset in key}
        held = []
        for rule in self._rules:
            if not rule.matcher.matches_any_schema(table.schema, table.table):
                continue
            named = {column.offset for column in table.columns if self._name(column.name) in rule.columns}
            if named:
                held.append(tuple(at for at in range(len(table.columns)) if at in keys or at not in named))
        return held

    def _name(self, name: str) -> str:
        return fold(name) if self._folds else name


def _same(part: MountedPart, offsets: Sequence[int]) -> BoolArray:
    """Tell in which rows the columns are what they were."""
    if part.new_rows is not None and part.old_rows is not None:
        specs = [(at, part.table.columns[at]) for at in offsets]

        def equal(old: Sequence[Value], new: Sequence[Value]) -> bool:
            return all(
                old[at] == new[at] if spec.tp in FLOAT_TYPES else value_text(spec, old[at]) == value_text(spec, new[at])
                for at, spec in specs
            )

        return np.array([equal(old, new) for old, new in zip(part.old_rows, part.new_rows, strict=True)], np.bool_)
    same = np.ones(len(part), np.bool_)
    old, new = part.old_columns(), part.new_columns()
    for at in offsets:
        if not old[at].same_as(new[at]):
            same &= _equal(old[at], new[at])
    return same


def _equal(old: Column, new: Column) -> BoolArray:
    if old.spec.tp in FLOAT_TYPES:
        was, now = _valid(old), _valid(new)
        return (was == now) & (~was | (old.numbers == new.numbers))
    is_null: Any = pc.and_(pc.is_null(old.text), pc.is_null(new.text))
    return pc.or_(is_null, pc.fill_null(pc.equal(old.text, new.text), False)).to_numpy(zero_copy_only=False)


def _valid(column: Column) -> BoolArray:
    return np.ones(len(column), np.bool_) if column.valid is None else column.valid
