"""Which tables of a changefeed get an image when it begins: ``initial-rules``, else ``initial``."""

from dataclasses import dataclass

from schemas.config.settings import ChangefeedConfig
from sorters.core.filter.table_filter import TableFilter


@dataclass(frozen=True, slots=True)
class InitialTables:
    """Immutable; pickles. The first rule that matches a table counts."""

    rules: tuple[tuple[TableFilter, bool], ...]
    otherwise: bool

    @property
    def any(self) -> bool:
        """Whether there may be such tables."""
        return self.otherwise or any(wanted for _, wanted in self.rules)

    def wants(self, schema: str, table: str) -> bool:
        """Tell whether a table, which is the changefeed's, gets one."""
        matching = (wanted for matcher, wanted in self.rules if matcher.matches_any_schema(schema, table))
        return next(matching, self.otherwise)


def initial_tables(config: ChangefeedConfig) -> InitialTables:
    """Compile a changefeed's settings.

    Raises:
        ConfigError: a matcher is illegal; :func:`schemas.config.changefeed.load_changefeed` has checked them already.
    """
    rules = (
        (TableFilter(rule.matcher, config.case_sensitive), rule.initial == "snapshot") for rule in config.initial_rules
    )
    return InitialTables(tuple(rules), config.initial == "snapshot")
