"""How tasks get a changefeed's program: the schemas once, and after a DDL only those of the tables that have changed.

With very many tables the schemas take seconds to pickle and to unpickle in each worker. A small cut, which the driver
does itself, needs none of it: it uses the driver's own (docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from sorters.core.feed.feed import CompiledFeed
from sorters.cut.worker import Program

CHANGED_MAX = 2_000
"""Changed tables beyond which all schemas are sent anew: about where that costs as much as sending these each time."""


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """What goes into a task's closure: two Spark broadcasts."""

    base: Any
    """Of a :class:`SchemaStore`."""
    rest: Any
    """Of ``(schemas of changed tables, their ids, feed)``."""

    @property
    def value(self) -> Program:
        """The program, in a worker."""
        changed, ids, feed = self.rest.value
        return Program(LayeredSchemas(self.base.value, changed, ids), feed)


class SharedProgram:
    """The driver's end of it. It uses the very store that the driver feeds, so it lives on the driver's thread."""

    def __init__(self, broadcast: Callable[[Any], Any]) -> None:
        """``broadcast`` is Spark's, and called when tasks need something."""
        self._broadcast = broadcast
        self._program: Program | None = None
        self._changed: set[TableId] = set()
        self._base: Any = None
        self._rest: Any = None

    @property
    def value(self) -> Program:
        """The program, on the driver."""
        assert self._program is not None, "set before a cut runs"
        return self._program

    def set(self, store: SchemaStore, feed: CompiledFeed, changed: Collection[TableId]) -> None:
        """Take the program of the next cuts; ``changed`` are the physical tables that DDLs have touched since."""
        self._program = Program(store, feed)
        self._changed.update(changed)
        self._drop_rest()

    def for_tasks(self) -> TaskProgram:
        """Return what tasks need, having sent what they do not have."""
        program = self.value
        if self._base is None or len(self._changed) > CHANGED_MAX:
            self._drop_rest()
            if self._base is not None:
                self._base.destroy()
            self._base = self._broadcast(program.schemas)
            self._changed.clear()
        if self._rest is None:
            ids = frozenset(self._changed)
            self._rest = self._broadcast((program.schemas.part(ids), ids, program.feed))
        return TaskProgram(self._base, self._rest)

    def _drop_rest(self) -> None:
        if self._rest is not None:
            self._rest.destroy()
            self._rest = None
