"""Partitions and order of one lake table, by what the changefeed asks of all its tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.config.sink.iceberg import IcebergConfig
from schemas.config.sink.lake_layout import PartitionTerm, SortTerm, parse_partitioning, parse_sort_order
from sorters.core.lake.columns import LakeColumn


@dataclass(frozen=True, slots=True)
class LakeLayout:
    """Terms whose columns the table has, by the names that it has for them."""

    partitions: tuple[PartitionTerm, ...] = ()
    order: tuple[SortTerm, ...] = ()


def lake_layout(settings: IcebergConfig, columns: Sequence[LakeColumn]) -> LakeLayout:
    """Return the layout of a table with these columns; names are compared as TiDB does, in any case."""
    names = {column.name.lower(): column.name for column in columns}
    return LakeLayout(
        tuple(
            PartitionTerm(term.transform, names[term.column.lower()], term.width)
            for term in parse_partitioning(settings.partitioning)
            if term.column.lower() in names
        ),
        tuple(
            SortTerm(names[term.column.lower()], term.descends)
            for term in parse_sort_order(settings.sort_order)
            if term.column.lower() in names
        ),
    )
