"""Tables whose messages changefeeds of the same settings have lately asked for.

Each changefeed's set of tables is a pass of its own, and a pass has a price however few its rows are. So whoever makes
one that is not the first of a cut takes along the tables that others will ask for next: theirs are taken out of it
(:mod:`sorters.core.rows.some_tables`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.tidb.table import TableVersion
from sorters.core.mount.alike_tables import are_alike, column_names

LATELY_CUTS: Final = 64
"""For so many cuts of an upstream a table counts that somebody has asked for: a paused changefeed's, and one's that has
run ahead, are encoded in vain for that long."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedTable:
    """What messages of a table hang on, beside its rows and the settings."""

    version: TableVersion
    topic: str
    """Of who has asked: messages hold nothing of it but ``part``."""
    part: bytes
    """:meth:`Encoder.topic_part`."""

    @property
    def key(self) -> tuple[int, bytes]:
        """Its name among those of the same settings: by the identity of its version, which is kept with it."""
        return id(self.version), self.part


@dataclass(slots=True, eq=False)
class _Noted:
    table: AskedTable
    form: TableVersion
    """One for all tables that are alike."""
    at: int
    """The cut in which it was asked for last."""


class AskedTables:
    """Of an upstream's changefeeds. Cuts are numbered as they are begun."""

    def __init__(self) -> None:
        self._noted: dict[Hashable, dict[tuple[int, bytes], _Noted]] = {}
        """By settings."""
        self._forms: dict[Hashable, dict[tuple[str, ...], list[TableVersion]]] = {}
        """By settings and :func:`column_names`."""
        self._swept_at = 0

    def note(self, settings: Hashable, tables: Sequence[AskedTable], at: int) -> None:
        """Note that somebody asks for tables in a cut."""
        if at - self._swept_at > LATELY_CUTS:
            self._sweep(at)
        noted = self._noted.setdefault(settings, {})
        for table in tables:
            known = noted.get(table.key)
            if known is None:
                noted[table.key] = _Noted(table, self._form_of(settings, table.version), at)
            else:
                known.at = max(known.at, at)  # cuts that were begun later may have come first

    def others(self, settings: Hashable, tables: Sequence[AskedTable], at: int) -> list[AskedTable]:
        """Return what others have asked for lately that is alike ``tables``, which are noted, and none of them. To a
        cut that has waited for long nothing: who runs a newer one may have forgotten what was noted.
        """
        noted, mine = self._noted.get(settings, {}), {table.key for table in tables}
        known = noted.get(tables[0].key)
        if known is None:
            return []
        form = known.form
        return [
            each.table
            for key, each in noted.items()
            if each.form is form and at - each.at <= LATELY_CUTS and key not in mine
        ]

    def _form_of(self, settings: Hashable, version: TableVersion) -> TableVersion:
        forms = self._forms.setdefault(settings, {}).setdefault(column_names(version), [])
        for form in forms:
            if are_alike(form, version):
                return form
        forms.append(version)
        return version

    def _sweep(self, at: int) -> None:
        """Forget what nobody has asked for lately."""
        self._swept_at = at
        for settings, noted in list(self._noted.items()):
            fresh = {key: each for key, each in noted.items() if at - each.at <= LATELY_CUTS}
            self._noted[settings] = fresh
            forms: dict[tuple[str, ...], list[TableVersion]] = {}
            for form in {id(each.form): each.form for each in fresh.values()}.values():
                forms.setdefault(column_names(form), []).append(form)
            self._forms[settings] = forms
            if not fresh:
                del self._noted[settings], self._forms[settings]
