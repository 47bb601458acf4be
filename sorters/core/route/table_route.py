"""Table routes: which name a table has at the destination, by ``target-schema`` and ``target-table`` of dispatchers.

The first rule that names a target and whose matcher matches the table counts; other dispatcher rules have no say here,
nor do routes in topics and partitions. A route changes names and nothing else.

Source: PingCAP's docs, "TiCDC Table Routing", and pingcap/ticdc ``pkg/routing``; the oracle is
``tests/data/ticdc-route``.
"""

from dataclasses import dataclass, replace

from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_change import StoredTable
from schemas.errors import Action, BusError
from schemas.tidb.table import TableVersion
from sorters.core.filter.table_filter import TableFilter
from sorters.core.mount.mounted import MountedColumns, MountedPart


class TableRoutingError(BusError):
    """A DDL cannot be written with the names that routes give its tables, or a schema has several names."""

    code, action = "sorter.table_routing_failed", Action.STOP_CHANGEFEED


class TableRouteConflictError(BusError):
    """Two tables of the upstream have one name at the destination: their rows could not be told apart there."""

    code, action = "sorter.table_route_conflict", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class _Rule:
    matcher: TableFilter
    schema: str
    table: str
    key: str
    """Of the rule, for errors."""


class TableRoutes:
    """The routes of one changefeed. Immutable; pickles."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._rules = tuple(
            _Rule(
                matcher=TableFilter(rule.matcher, config.case_sensitive),
                schema=rule.target_schema or "{schema}",
                table=rule.target_table or "{table}",
                key=f"sink.dispatchers[{number}]",
            )
            for number, rule in enumerate(config.sink.dispatchers)
            if rule.target_schema or rule.target_table
        )

    @property
    def any(self) -> bool:
        """Whether there is a route."""
        return bool(self._rules)

    def name(self, schema: str, table: str) -> tuple[str, str]:
        """Return the name at the destination of a table, or of a schema where ``table`` is ''.

        Raises:
            TableRoutingError: tables of the schema go to several schemas, so that it has not one name.
        """
        if not schema:
            return schema, table
        if not table:
            return self._schema(schema), ""
        for rule in self._rules:
            if rule.matcher.matches_any_schema(schema, table):
                return _filled(rule.schema, schema, table), _filled(rule.table, schema, table)
        return schema, table

    def schemas(self, schema: str) -> tuple[str, ...]:
        """Return the names at the destination that a schema may have, at least one."""
        rules = (rule for rule in self._rules if rule.matcher.matches_schema(schema))
        return tuple(dict.fromkeys(_filled(rule.schema, schema, "") for rule in rules)) or (schema,)

    def version(self, table: TableVersion) -> TableVersion:
        """Return a table version under its name at the destination."""
        name = self.name(table.schema, table.table)
        return table if name == (table.schema, table.table) else replace(table, schema=name[0], table=name[1])

    def stored(self, table: StoredTable) -> StoredTable:
        """Return a stored table under its name at the destination."""
        name = self.name(table.schema, table.table)
        return table if name == (table.schema, table.table) else replace(table, schema=name[0], table=name[1])

    def mounted(self, rows: MountedColumns) -> MountedColumns:
        """Return mounted rows under their tables' names at the destination."""
        if not self._rules:
            return rows
        return replace(rows, table=self.version(rows.table), parts=tuple(self._part(part) for part in rows.parts))

    def _part(self, part: MountedPart) -> MountedPart:
        alike = part.alike
        if alike is not None:
            versions = tuple(self.version(version) for version in alike.versions)
            alike = replace(alike, versions=versions)
        return replace(part, table=self.version(part.table), alike=alike)

    def _schema(self, schema: str) -> str:
        rules = [rule for rule in self._rules if rule.matcher.matches_schema(schema)]
        targets = self.schemas(schema)
        if len(targets) > 1:
            raise TableRoutingError(
                "a ddl on the schema itself has no one target: dispatchers route its tables to several schemas; make "
                "the schemas at the destination by hand, and name the ddl in filter.ignore-txn-start-ts",
                schema=schema,
                targets=",".join(targets),
                keys=",".join(rule.key for rule in rules),
            )
        return targets[0]


def _filled(expression: str, schema: str, table: str) -> str:
    # One after the other, as TiCDC does.
    return expression.replace("{schema}", schema).replace("{table}", table)
