"""How tasks get a changefeed's program: the schemas once, and after a DDL only those of the tables that have changed.

With very many tables the schemas take seconds to pickle and to unpickle in each worker. A small cut, which the driver
does itself, needs none of it: it uses the driver's own (docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from sorters.cut.worker import FeedProgram

CHANGED_MAX = 2_000
"""Changed tables beyond which all schemas are sent anew: about where that costs as much as sending these each time."""


@dataclass(frozen=True, slots=True)
class SentProgram:
    """A program as it goes into a task's closure: two Spark broadcasts."""

    base: Any
    """Spark's broadcast of a :class:`SchemaStore`."""
    rest: Any
    """Spark's broadcast of ``(schemas of changed tables, their ids, feed)``."""
    owner: str = ""
    """Whose program it is: a worker keeps one of each."""

    def load(self, schemas: SchemaStore | None = None) -> FeedProgram:
        """Return the program, in a worker; ``schemas`` are those of ``base``, if they are there already."""
        changed, ids, feed = self.rest.value
        return FeedProgram(LayeredSchemas(self.base.value if schemas is None else schemas, changed, ids), feed)


class ProgramSender:
    """Sends the driver's programs. Their schemas are the very store that the driver feeds, so it is on its thread."""

    def __init__(self, broadcast: Callable[[Any], Any]) -> None:
        """``broadcast`` is Spark's, and called when tasks need something."""
        self._broadcast = broadcast
        self._owner = secrets.token_hex(8)
        self._sent: FeedProgram | None = None
        """What ``_rest`` was made of."""
        self._changed: set[TableId] = set()
        self._base: Any = None
        self._rest: Any = None

    def note_changed(self, tables: Collection[TableId]) -> None:
        """Note the physical tables that DDLs have touched since; another program follows."""
        self._changed.update(tables)

    def send(self, program: FeedProgram) -> SentProgram:
        """Return what tasks need of a program, having sent what they do not have; the program before is taken back."""
        assert isinstance(program.schemas, SchemaStore), "only the driver sends, and it has the whole store"
        if self._base is None or len(self._changed) > CHANGED_MAX:
            self._drop_rest()
            if self._base is not None:
                self._base.destroy()
            self._base = self._broadcast(program.schemas)
            self._changed.clear()
        if self._sent is not program:
            self._drop_rest()
        if self._rest is None:
            ids = frozenset(self._changed)
            self._rest, self._sent = self._broadcast((program.schemas.part(ids), ids, program.feed)), program
        return SentProgram(self._base, self._rest, self._owner)

    def close(self) -> None:
        """Take back what was sent; no job needs it any more."""
        self._drop_rest()
        if self._base is not None:
            self._base.destroy()
            self._base = None

    def _drop_rest(self) -> None:
        if self._rest is not None:
            self._rest.destroy()
            self._rest = None
