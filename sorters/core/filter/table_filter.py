"""Which tables a changefeed (or a dispatcher, or an event filter) covers: TiDB's table-filter rules.

The last rule of the list that matches a table decides; no match means no. System schemas are never covered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.config.filter.filter_rule import Pattern, PatternKind, parse_rule
from schemas.config.filter.re2 import Expression
from schemas.ddl.system_schemas import is_system_schema
from schemas.errors import ConfigError


def fold(name: str) -> str:
    """Return the name in lower case, letter by letter as Go's ``strings.ToLower``: lengths and final sigmas stay."""
    return name.lower() if name.isascii() else "".join(char.lower()[0] for char in name)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern, ready to be held against a name; it pickles, for Spark's executors."""

    name: str | None
    """The only name that matches; None: ``matches`` tells."""
    expression: Expression | None
    whole: bool
    matches_all: bool

    def matches(self, name: str) -> bool:
        """Tell whether it matches; where case does not count, the name comes folded."""
        if self.matches_all:
            return True
        if self.expression is None:
            return name == self.name
        return self.expression.fullmatch(name) if self.whole else self.expression.search(name)


@dataclass(frozen=True, slots=True)
class _Rule:
    positive: bool
    schema: NamePattern
    table: NamePattern


class TableFilter:
    """The rules of one list. Immutable; pickles."""

    def __init__(self, rules: Sequence[str], case_sensitive: bool = False) -> None:
        """Parse the rules.

        Raises:
            ConfigError: a rule is illegal. ``load_changefeed`` has checked those of a changefeed already, but for
                regular expressions that are too large only where case does not count.
        """
        self._fold: Callable[[str], str] = str if case_sensitive else fold
        compiled = []
        for text in rules:
            try:
                rule = parse_rule(text)
                if rule is not None:
                    schema, table = (compile_pattern(half, case_sensitive) for half in (rule.schema, rule.table))
                    compiled.append(_Rule(rule.positive, schema, table))
            except ValueError as error:
                raise ConfigError(f"table-filter rule `{text}` is illegal: {error}") from None
        self._last_first = tuple(reversed(compiled))

    def matches(self, schema: str, table: str) -> bool:
        """Tell whether the table is covered."""
        return not is_system_schema(schema) and self.matches_any_schema(schema, table)

    def matches_any_schema(self, schema: str, table: str) -> bool:
        """As :meth:`matches`, with system schemas like any other: for matchers within a filtered changefeed."""
        schema, table = self._fold(schema), self._fold(table)
        for rule in self._last_first:
            if rule.schema.matches(schema) and rule.table.matches(table):
                return rule.positive
        return False

    def matches_schema(self, schema: str) -> bool:
        """Tell whether a DDL on the schema itself is covered.

        From the last rule on, the first whose schema half matches and that is positive, or excludes all of the schema
        (table half ``*``), decides: with ``*.*, !foo.bar`` foo is covered, with ``*.*, !foo.*`` it is not.
        """
        if is_system_schema(schema):
            return False
        schema = self._fold(schema)
        for rule in self._last_first:
            if rule.schema.matches(schema) and (rule.positive or rule.table.matches_all):
                return rule.positive
        return False


def compile_pattern(pattern: Pattern, case_sensitive: bool) -> NamePattern:
    """Make a parsed pattern ready for use.

    Raises:
        ValueError: it is too large where case does not count.
    """
    if pattern.kind is PatternKind.NAME:
        return NamePattern(pattern.text if case_sensitive else fold(pattern.text), None, True, False)
    expression = Expression(pattern.text, ignore_case=not case_sensitive)
    return NamePattern(None, expression, pattern.kind is PatternKind.WILD, pattern.matches_all)
