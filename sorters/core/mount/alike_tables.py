"""Tables of one form, whose rows are mounted and encoded together.

The columnar steps cost about as much for one row as for several hundred. Where a thousand tables have a few rows each
in a cut, they mostly look alike (shards, tenants, sysbench), and what differs is their names: literals to a protocol.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class AlikeTables:
    """Of ``n`` rows, which table each is of."""

    versions: tuple[TableVersion, ...]
    """:func:`are_alike`, each with the next."""
    topics: tuple[str, ...]
    """Where rows of each of ``versions`` go."""
    parts: tuple[bytes, ...]
    """What messages of each of ``versions`` hold that hangs on its topic, and on the changefeed whose topic it is."""
    number: IntArray
    """Into ``versions``, by row."""

    def take(self, rows: npt.NDArray[Any]) -> "AlikeTables":
        return AlikeTables(self.versions, self.topics, self.parts, self.number[rows])

    def named(self, number: IntArray) -> Any:
        """Return the topic of each row, by which of the tables it is of: ``pyarrow.StringArray``."""
        if len(set(self.topics)) == 1:
            return pa.repeat(self.topics[0], len(number))
        return pa.array(self.topics, pa.string()).take(pa.array(number))

    def literals(self, literal: Callable[[TableVersion], bytes]) -> Any:
        """Return what each row's table says of itself: ``pyarrow.BinaryArray``."""
        return self.of_rows([literal(version) for version in self.versions], pa.binary())

    def topic_literals(self, literal: Callable[[bytes], bytes]) -> Any:
        """Return what each row's message holds of the ``parts``: ``pyarrow.BinaryArray``."""
        return self.of_rows(list(map(literal, self.parts)), pa.binary())

    def of_rows(self, values: Sequence[Any], kind: Any) -> Any:
        """Return what each row's table has of ``values``, which are one a version: a ``pyarrow`` array of ``kind``."""
        return pa.array(values, kind).take(pa.array(self.number))


def column_names(version: TableVersion) -> tuple[str, ...]:
    """Return what tables that :func:`are_alike` share, and few others do: many are sorted by it, so that not each is
    compared with each.
    """
    return tuple(column.name for column in version.columns)


def are_alike(first: TableVersion, second: TableVersion) -> bool:
    """Tell whether rows of two tables differ in nothing but what their table is called: names, ids and versions.

    Rows of a partition carry its id, so a table with partitions is like no other.
    """
    renamed = replace(
        second,
        schema_id=first.schema_id,
        schema=first.schema,
        table=first.table,
        table_id=first.table_id,
        version=first.version,
        update_ts=first.update_ts,
    )
    return not first.partitions and renamed == first
