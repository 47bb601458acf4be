"""What changes a lake table besides rows: Iceberg's own updates of fields and of tags."""

from typing import Any, Final

from schemas.ids import Ts
from sorters.core.lake.commits import expired_tags, tag_name
from sorters.core.lake.evolution import SET_ASIDE_DOC, Evolution, field_doc

OVERTAKEN_MAX: Final = 3
"""How often a commit begins again before the run fails, and with it is tried again after a while."""
CONFLICT: Final = "CommitFailedException"
"""Iceberg's, of a table that has moved since a commit to it was begun."""


def evolve_fields(jvm: Any, transaction: Any, evolution: Evolution) -> None:
    """Change fields. Each update stands by itself: within one, a name that it takes from a field is not free yet."""
    types = jvm.org.apache.iceberg.types.Types
    if evolution.set_aside:
        update = transaction.updateSchema()
        for name, renamed in evolution.set_aside:
            update.updateColumnDoc(name, SET_ASIDE_DOC).renameColumn(name, renamed)
        update.commit()
    if evolution.drops or evolution.widened or evolution.docs or evolution.renames:
        update = transaction.updateSchema()
        for name in evolution.drops:
            update.deleteColumn(name)
        for name, type_name in evolution.widened:
            update.updateColumn(name, types.fromPrimitiveString(type_name))
        for name, doc in evolution.docs:
            update.updateColumnDoc(name, doc)
        for name, renamed in evolution.renames:
            update.renameColumn(name, renamed)
        update.commit()
    if evolution.adds:
        update = transaction.updateSchema()
        for column in evolution.adds:
            # Without a parent by name Iceberg would look for one in a name with a dot.
            update.addColumn(None, column.name, types.fromPrimitiveString(column.type), field_doc(column))
        update.commit()


def set_tags(manage: Any, tags: frozenset[Ts], main: int, watermark_ts: Ts, kept: int) -> frozenset[Ts]:
    """Tag a snapshot with a watermark, if that has no tag among ``tags``, and take the oldest tags away, in one step of
    Iceberg's ``manage``; return what tags there are then.
    """
    if watermark_ts not in tags:
        manage.createTag(tag_name(watermark_ts), main)
    tags |= {watermark_ts}
    expired = expired_tags(tags, kept)
    for ts in expired:
        manage.removeTag(tag_name(ts))
    manage.commit()
    return tags.difference(expired)
