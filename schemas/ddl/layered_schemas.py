"""A schema store as it was, with those tables laid over it that have changed since: what a worker looks rows up in."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import NoSchema, SchemaStore
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion


@dataclass(frozen=True, slots=True)
class LayeredSchemas:
    """Answers as the whole store would from which ``changed`` was taken (:meth:`SchemaStore.part`)."""

    base: SchemaStore
    changed: SchemaStore
    changed_ids: Set[TableId]

    def table_at(self, physical_id: TableId, commit_ts: Ts) -> TableVersion | None:
        """See :meth:`SchemaStore.table_at`."""
        return self._store(physical_id).table_at(physical_id, commit_ts)

    def lookup(self, physical_id: TableId, commit_ts: Ts) -> TableVersion | NoSchema:
        """See :meth:`SchemaStore.lookup`."""
        return self._store(physical_id).lookup(physical_id, commit_ts)

    def stored_of(self, physical_id: TableId) -> Sequence[StoredTable | None]:
        """See :meth:`SchemaStore.stored_of`."""
        return self._store(physical_id).stored_of(physical_id)

    def boundaries_of(self, physical_id: TableId) -> npt.NDArray[np.int64]:
        """See :meth:`SchemaStore.boundaries_of`."""
        return self._store(physical_id).boundaries_of(physical_id)

    def _store(self, physical_id: TableId) -> SchemaStore:
        return self.changed if physical_id in self.changed_ids else self.base
