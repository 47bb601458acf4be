"""The tables of a step are written: the small ones some at a time, as most of such a write is waiting for the catalog.

How they take turns is of no matter: each table says for itself how far it is.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from sorters.core.cut.cut import Cut
from sorters.run.lake.at_once import at_once
from sorters.run.lake.held_changes import TableChanges
from sorters.run.lake.tables import LakeTables, Written

SMALL_BYTES: Final = 4 << 20
"""Of changes as Arrow holds them. To put them in order and write them takes several times as much, of each table that
is written at the time; larger ones are written alone."""


def write_step(
    tables: LakeTables, gathered: Sequence[TableChanges], step: Cut, is_stopping: Callable[[], bool]
) -> Written | None:
    """Make the tables that are not there, and write the changes of all; None: told to stop within it.

    Raises:
        LakeSchemaError, LakeValueError: a lake table cannot be, or cannot hold them.
        Exception: Spark's, Py4J's.
    """
    tables.create((changes.version for changes in gathered), step, is_stopping)

    def write(changes: TableChanges) -> Written | None:
        return None if is_stopping() else tables.write(changes, step)

    versions = Counter(tables.name(changes.version) for changes in gathered)
    # Two versions of a table are written in their order.
    small = [each for each in gathered if each.is_small(SMALL_BYTES) and versions[tables.name(each.version)] == 1]
    chosen = set(map(id, small))
    written = at_once(write, small, "write") + [write(each) for each in gathered if id(each) not in chosen]
    whole = Written()
    for each in written:
        if each is None:
            return None
        whole.rows += each.rows
        whole.by_spark |= each.by_spark
    return whole
