"""What a changefeed's settings say of tables, found out once for all cuts of a program.

Matchers, rules and forms of tables take some 50 µs a table, which is most of a cut with a few rows in each of many.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed
from sorters.core.mount.alike_tables import are_alike

KEPT_MAX = 100_000
"""Table versions that are kept: each DDL makes new ones."""


@dataclass(frozen=True, slots=True, eq=False)
class TableForm:
    """What tables have in common whose rows go through a pass together; one object a form."""

    version: TableVersion
    """One of them."""


@dataclass(frozen=True, slots=True, eq=False)
class TablePlan:
    """How rows of one table version are run with those of others."""

    topic: str
    form: TableForm
    spread: Hashable
    """What the partitions of its rows hang on, beside the rows and how many partitions there are."""


class TablePlans:
    """Of one changefeed with its settings as they are, and of schemas that only grow by what is no change to it.

    Pickled without what it knows. Of one thread.
    """

    def __init__(self) -> None:
        self.are_shared = True
        """No rows have come so far of a table that is run alone."""
        self._wanted: dict[TableId, bool] = {}
        self._contained: dict[int, tuple[TableVersion, bool]] = {}
        """By the identity of a version, as below."""
        self._plans: dict[int, tuple[TableVersion, TablePlan | None]] = {}
        """By the identity of a version, which is kept with it: to compare versions takes longer than to plan."""
        self._forms: dict[Hashable, list[TableForm]] = {}
        """By column names and route, which nearly tell forms apart."""

    def __reduce__(self) -> tuple[object, ...]:
        return TablePlans, ()

    def is_wanted(self, table: TableId, schemas: SchemaStore | LayeredSchemas, feed: CompiledFeed) -> bool:
        """Tell whether any version of a physical table is the changefeed's; a table that is unknown is for others to
        refuse.
        """
        wanted = self._wanted.get(table)
        if wanted is None:
            versions = schemas.stored_of(table)
            wanted = not versions or any(
                stored is not None and feed.contains(stored.schema, stored.table, eligible=stored.eligible)
                for stored in versions
            )
            if versions:
                self._wanted[table] = wanted
        return wanted

    def contains(self, version: TableVersion, feed: CompiledFeed) -> bool:
        """Tell whether the changefeed is to get rows of a table version."""
        kept = self._contained.get(id(version))
        if kept is None:
            if len(self._contained) >= KEPT_MAX:
                self._contained.clear()
            is_wanted = feed.contains(version.schema, version.table, eligible=version.eligible)
            kept = self._contained[id(version)] = version, is_wanted
        return kept[1]

    def plan(self, version: TableVersion, feed: CompiledFeed) -> TablePlan | None:
        """Return how rows of a table version are run with those of others; None: they are run alone.

        Raises:
            DispatchError, ColumnSelectorError: the settings do not fit the table.
        """
        kept = self._plans.get(id(version))
        if kept is not None:
            return kept[1]
        if len(self._plans) >= KEPT_MAX:
            self._plans.clear()
            self._forms.clear()
        plan = self._planned(version, feed)
        self._plans[id(version)] = version, plan
        return plan

    def _planned(self, version: TableVersion, feed: CompiledFeed) -> TablePlan | None:
        events, name = feed.events, (version.schema, version.table)
        if version.partitions or version.soft_deletes or events.ignored_ops(*name) or events.has_conditions(*name):
            return None
        if feed.active_active or feed.update_columns.concern(*name):
            return None
        route, selection = feed.select(version)
        if selection is not None:
            return None
        names = tuple(column.name for column in version.columns)
        spread = route.rule, route.column_offsets, route.column_names
        bucket = self._forms.setdefault((names, spread), [])
        for form in bucket:
            if are_alike(form.version, version):
                return TablePlan(route.topic, form, spread)
        bucket.append(TableForm(version))
        return TablePlan(route.topic, bucket[-1], spread)
