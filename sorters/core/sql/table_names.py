"""Other names for the schemas and tables of a DDL statement: table routes, applied while it is restored.

Source of the rules: PingCAP's docs, "TiCDC Table Routing", and pingcap/ticdc ``pkg/routing``; the oracle is
``tests/data/ticdc-route``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sorters.core.sql.restore import restore
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, SqlToken, TokenKind, UnsupportedSqlError, tokenize

Name = tuple[str, str]
"""Schema and table; the table is '' for a schema."""
_SYMBOL_DOT = SqlToken(TokenKind.SYMBOL, ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementNames:
    """What a statement's names stand for."""

    route: Callable[[str, str], Name]
    """From a name to the name at the destination."""
    tables: Sequence[Name]
    """The first tables of the statement as the job knows them: with their schema, and in their own spelling."""
    referred: Mapping[str, str] = field(default_factory=dict)
    """The schema of tables that it refers to, by their names in lower case; those without one are of the first's."""
    view_select: str = ""
    """The SELECT of the view that is created, as TiDB stored it; '' if nobody knows it."""


def with_other_names(query: str, names: StatementNames, *, charset: str = "", sql_mode: int = 0) -> str | None:
    """Restore a statement with other names; None if none of its names changes.

    Args:
        query, charset, sql_mode: see :func:`restore`.

    Raises:
        UnsupportedSqlError: it cannot be restored, and holds a name that would have to change.
        TableRoutingError: ``names.route`` raises it.
    """
    first = _Names(names)
    try:
        restore(query, charset=charset, sql_mode=sql_mode, names=first)
        if not first.changed:
            return None
        # A view's columns stand before the tables that they are of, so a second pass knows more.
        return restore(query, charset=charset, sql_mode=sql_mode, names=_Names(names, first.sources))
    except UnsupportedSqlError:
        if _may_change(query, names, sql_mode):
            raise
        return None


class _Names:
    """A statement's names on one way through it."""

    def __init__(self, names: StatementNames, known: Mapping[str, Name] | None = None) -> None:
        self._names, self._known, self._at = names, known or {}, 0
        self._last: tuple[str, Name] | None = None
        self.sources: dict[str, Name] = {}
        """Tables by whose name columns are qualified, in lower case, and their other names."""
        self.changed = False

    @property
    def view_select(self) -> str:
        return self._names.view_select

    def schema(self, name: str) -> str:
        known = self._names.tables[0][0] if self._names.tables else ""
        source = known if known.lower() == name.lower() else name
        target, _ = self._names.route(source, "")
        self.changed |= target != source
        return target

    def table(self, parts: list[str]) -> list[str]:
        if len(parts) > 2:
            raise UnsupportedSqlError(f"a table's name of {len(parts)} parts")
        source = self._whole(parts)
        self._at += 1
        target = self._names.route(*source)
        self._last = source[1].lower(), target
        self.changed |= target != source
        return [name for name in target if name]

    def without_alias(self) -> None:
        if self._last is not None:
            name, target = self._last
            self.sources[name] = target

    def column(self, parts: list[str]) -> list[str]:
        if len(parts) == 3:
            return [*self._names.route(parts[0], parts[1]), parts[2]]
        target = self._known.get(parts[0].lower()) if len(parts) == 2 else None
        return parts if target is None else [*target, parts[1]]

    def _whole(self, parts: list[str]) -> Name:
        """Return a table's schema and name; the statement may lack the one and spell the other in another case."""
        names, table = self._names, parts[-1]
        job_name = names.tables[self._at] if self._at < len(names.tables) else None
        schema = parts[0].lower() if len(parts) == 2 else None
        if job_name is not None and job_name[1].lower() == table.lower() and schema in (None, job_name[0].lower()):
            return job_name
        if len(parts) == 2:
            return parts[0], table
        return names.referred.get(table.lower()) or (names.tables[0][0] if names.tables else ""), table


def _may_change(query: str, names: StatementNames, sql_mode: int) -> bool:
    """Tell whether there is a name in a statement, or in its job, that has another one."""

    def changes(name: Name) -> bool:
        return names.route(*name) != name

    if any(changes(name) for name in names.tables):
        return True
    try:
        tokens = tokenize(query, sql_mode) + tokenize(names.view_select, MODE_NO_BACKSLASH_ESCAPES)
    except UnsupportedSqlError:
        return True
    is_name = [token.kind in (TokenKind.WORD, TokenKind.NAME) for token in tokens]
    return any(
        changes((tokens[at].text, tokens[at + 2].text))
        for at in range(len(tokens) - 2)
        if is_name[at] and tokens[at + 1] == _SYMBOL_DOT and is_name[at + 2]
    ) or any(changes((schema, table)) for table, schema in names.referred.items())
