"""Lake tables that rows of a step need and that are not there: made some at a time, before any table gets rows.

What became of each is data. One that cannot be made does not keep the others from being so, and a run that was killed
in between finds those that it had made: empty, at the watermark before the step.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from schemas.config.sink.iceberg import IcebergConfig
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.lake.columns import lake_columns
from sorters.core.lake.errors import LakeSchemaError, LakeTakenError
from sorters.core.lake.layout import lake_layout
from sorters.run.lake.at_once import at_once
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.names import LakeName
from sorters.run.lake.table import LakeTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A lake table that is to be made."""

    name: LakeName
    version: TableVersion
    watermark_ts: Ts
    image_to_come: bool
    newest_tag: Ts | None
    """Of all tables."""


@dataclass(frozen=True, slots=True)
class Created:
    """What became of each; of a table that stands in neither no making was begun."""

    tables: dict[LakeName, LakeTable] = field(default_factory=dict)
    errors: dict[LakeName, Exception] = field(default_factory=dict)

    def raise_first(self, wanted: Iterable[NewTable]) -> None:
        """Raise what the first of these tables could not be made for, if any; the log has what the others could not.

        Raises:
            LakeSchemaError, LakeTakenError: a table's own.
            BusError: this process must write nothing more.
            Exception: the catalog's.
        """
        errors = [(new.name, self.errors[new.name]) for new in wanted if new.name in self.errors]
        for name, error in errors[1:]:
            log.error("lake table is not made either", extra={"table": str(name), "reason": str(error)[:500]})
        if errors:
            raise errors[0][1]


def new_table(name: LakeName, version: TableVersion, step: Cut, newest_tag: Ts | None) -> NewTable:
    """Return what is to be made for the first rows of a table, which a step has."""
    return NewTable(name, version, step.after_ts, _has_image(version, step), newest_tag)


def create(catalog: LakeCatalog, settings: IcebergConfig, new: NewTable) -> LakeTable:
    """Make one.

    Raises:
        LakeSchemaError: Iceberg cannot have it so.
    """
    columns = lake_columns(new.version, settings.mode, says_changes=settings.emit_metadata_columns)
    is_behind = new.newest_tag is not None and new.newest_tag > new.watermark_ts
    return catalog.create(
        new.name,
        columns,
        lake_layout(settings, columns),
        new.version.table_id,
        new.version.version,
        new.watermark_ts,
        file_size_bytes=settings.target_file_size_bytes,
        image_to_come=new.image_to_come,
        made_behind_ts=new.newest_tag if is_behind else None,
    )


def create_each(
    wanted: Sequence[NewTable],
    create: Callable[[NewTable], LakeTable],
    check_lease: Callable[[], None],
    is_stopping: Callable[[], bool],
) -> Created:
    """Make tables, some at a time. What a table is refused for is its own; after anything else, and
    while ``is_stopping``, no further one is begun.
    """
    created, gives_up = Created(), threading.Event()

    def make(new: NewTable) -> None:
        if gives_up.is_set() or is_stopping():
            return
        try:
            check_lease()
            created.tables[new.name] = create(new)
        except (LakeSchemaError, LakeTakenError) as error:
            created.errors[new.name] = error
        except Exception as error:  # who asked raises it: here it is data
            created.errors[new.name] = error
            gives_up.set()

    at_once(make, wanted, "create")
    return created


def _has_image(version: TableVersion, step: Cut) -> bool:
    """Tell whether rows of a table's image are in a step, or still to come after it."""
    is_left_out = step.left_out is not None and any(map(step.left_out.of_table, version.physical_ids))
    return is_left_out or any(chunk.table_id in version.physical_ids for chunk in step.chunks)
