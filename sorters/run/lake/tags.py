"""Tags of lake tables where each is a write of its own: no catalog's transaction sets them all."""

from collections.abc import Callable, Iterable, Sequence

from schemas.ids import Ts
from sorters.run.lake.at_once import AT_ONCE, at_once
from sorters.run.lake.table import LakeTable


def note_images(tables: Iterable[LakeTable], check_lease: Callable[[], None]) -> None:
    """Say of tables that main shows their whole images; before the first tag: then a begun tag is meant for every table
    that is whole.
    """
    for table in tables:
        if table.progress().image_to_come:
            check_lease()
            table.note_image()


def tag_each(tables: Sequence[LakeTable], watermark_ts: Ts, kept: int, check_lease: Callable[[], None]) -> None:
    """Tag tables one after the other, or some at a time; ``kept`` is how many tags a table keeps."""

    def tag(table: LakeTable) -> None:
        check_lease()
        table.tag(watermark_ts, kept)

    if len(tables) <= AT_ONCE:  # too few to be worth it
        for table in tables:
            tag(table)
        return
    at_once(tag, tables, "tag")


def untag_each(tables: Iterable[LakeTable], watermark_ts: Ts, check_lease: Callable[[], None]) -> None:
    """Take a watermark's tag away from those that have it."""
    for table in tables:
        check_lease()
        table.untag(watermark_ts)
