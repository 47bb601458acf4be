"""One lake table, as Iceberg's own Java library has it.

    begin a branch ─▶ Spark writes rows to it ─▶ publish: summary, main moved to the branch, branch gone: one step

``publish`` is a compare-and-set: main moves only to what was built on it. So a process that lost its changefeed and
goes on late is refused by the table itself (docs/decisions/2026-11-23-lake-tables.md).
"""

from dataclasses import dataclass, replace
from typing import Any

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from sorters.core.lake.commits import LakeProgress, expired_tags, tag_name, tag_ts
from sorters.core.lake.errors import LakeOvertakenError, LakeTakenError, LakeWatermarkLostError
from sorters.core.lake.evolution import SET_ASIDE_DOC, Evolution, LakeField, field_doc
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.names import LakeName

WATERMARK = "tidb.committed_resolved_ts"
"""In snapshot summaries, as TiCDC's branch has it; and a property of the table, for when these snapshots expire."""
CHANGEFEED, LIFE = "tidb.changefeed_id", "tidb.changefeed_gid"
"""Properties of a table, likewise: its changefeed, and which one of that name."""
TABLE_ID, SCHEMA_TS = "tidebus.table_id", "tidebus.schema_ts"
"""Properties of a table: TiDB's id, and the ts of the DDL that the fields follow."""
IMAGE_TO_COME = "tidebus.image_to_come"
"""A property of a table that was made for rows of its image, until main shows all of them."""
RESYNC = "tidebus.resync"
"""A property of a table that is resynced (:mod:`sorters.core.lake.resync`)."""
FILE_SIZE = "write.target-file-size-bytes"
"""Iceberg's property of a table, which its own writers and compactions go by as we do."""
BRANCH_PREFIX = "tidebus_"
MAIN = "main"


@dataclass(frozen=True, slots=True)
class LakeOwner:
    """Whose the tables of a run are."""

    changefeed: str
    life: str
    branch: str
    """Of this run alone; begins with ``BRANCH_PREFIX``."""


@dataclass(frozen=True, slots=True)
class StagedMove:
    """What a transaction of the catalog is to do to a table: Iceberg's metadata before it and after it."""

    before: Any
    after: Any
    main: int
    """The snapshot that main stands at then."""


class LakeTable:
    """One table. What it says is as of its last load or write."""

    def __init__(self, table: Any, name: LakeName, owner: LakeOwner, jvm: Any) -> None:
        self.name = name
        self._table, self._owner, self._jvm = table, owner, jvm
        self._begun: tuple[int, Ts, Ts] | None = None
        """Main when the branch was made: its snapshot, the watermark, and the DDL that the fields followed."""
        self._progress: LakeProgress | None = None
        """What :meth:`progress` has read, until something moves the table: it takes some calls of the JVM."""
        self._tagged: Any = None
        """Its metadata where a transaction of the catalog was the last to tag it: Iceberg's table has not seen it."""
        life = table.properties().get(LIFE)
        if life != owner.life:
            raise LakeTakenError(
                "a lake table of this name is not this changefeed's; drop it, or name another warehouse or namespace",
                table=str(name),
                changefeed=life,
            )

    @property
    def java(self) -> Any:
        """Iceberg's own object, for who moves the table by it."""
        self._forget()
        return self._table

    def _forget(self) -> None:
        self._progress = self._tagged = None

    @property
    def table_id(self) -> TableId:
        return TableId(self._number(TABLE_ID, self._table.properties().get(TABLE_ID)))

    @property
    def schema_ts(self) -> Ts:
        return Ts(self._number(SCHEMA_TS, self._table.properties().get(SCHEMA_TS)))

    def _number(self, key: str, said: object) -> int:
        """Return what a property, or a snapshot's summary, says.

        Raises:
            CorruptDataError: it is no number: somebody else has written it.
        """
        text = str(said)
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise CorruptDataError(
                "a lake table says something else than a number; drop it and replicate it anew",
                table=str(self.name),
                property=key,
                seen=text[:80],
            )
        return int(text)

    def fields(self) -> list[LakeField]:
        """Return its fields in order."""
        return [
            LakeField(field.name(), field.type().toString(), field.doc()) for field in self._table.schema().columns()
        ]

    def laid_by(self) -> set[str]:
        """Return the names of fields that partitions or the sort order go by."""
        schema, spec, order = self._table.schema(), self._table.spec(), self._table.sortOrder()
        ids = [field.sourceId() for each in (spec, order) for field in list(each.fields())]
        return {str(schema.findColumnName(number)) for number in ids}

    def progress(self) -> LakeProgress:
        """Return how far it is, by main's newest snapshot that says so: others may have added snapshots.

        Raises:
            LakeWatermarkLostError: neither a snapshot nor the table says it.
        """
        if self._progress is None:
            self._progress = self._read_progress()
        return self._progress

    def _read_progress(self) -> LakeProgress:
        tags = (tag_ts(ref) for ref in self._ref_names())
        noted = self._table.properties().get(WATERMARK)
        said = self._newest_said()[1] or noted
        if said is None:
            raise LakeWatermarkLostError(
                "a lake table does not say how far it is; drop it and replicate it anew", table=str(self.name)
            )
        image_to_come = self._table.properties().get(IMAGE_TO_COME) is not None
        known = frozenset(ts for ts in tags if ts is not None)
        said_ts, noted_ts = (Ts(self._number(WATERMARK, each)) for each in (said, noted or 0))
        return LakeProgress(said_ts, known, image_to_come, noted_ts=noted_ts)

    def check_main(self) -> None:
        """Refuse a table whose main shows less than its newest tag does: what lies between would never come again.

        Raises:
            LakeWatermarkLostError: somebody has turned main back.
        """
        newest = max(self.progress().tags, default=None)
        tagged = None if newest is None else self._table.snapshot(tag_name(newest))
        if newest is None or tagged is None:
            return
        if int(tagged.sequenceNumber()) > int(self._table.currentSnapshot().sequenceNumber()):
            raise LakeWatermarkLostError(
                "main of a lake table was turned back behind its newest tag; let main show the tag's snapshot again, or"
                " drop the table and replicate it anew",
                table=str(self.name),
                tag=tag_name(newest),
                snapshot=int(tagged.snapshotId()),
            )

    def _newest_said(self) -> tuple[int | None, str | None]:
        """Return main's newest snapshot that says a watermark, and what it says; None: none does."""
        snapshot = self._table.currentSnapshot()
        while snapshot is not None:
            said, parent = snapshot.summary().get(WATERMARK), snapshot.parentId()
            if said is not None:
                return int(snapshot.snapshotId()), str(said)
            snapshot = None if parent is None else self._table.snapshot(parent)
        return None, None

    def _ref_names(self) -> list[str]:
        """Return the names of branches and tags, by one call of the JVM: Iceberg's names have no line break of ours."""
        names = str(self._jvm.java.lang.String.join("\n", self._table.refs().keySet()))
        return names.split("\n")

    def resync(self) -> LakeResync | None:
        """Return what it notes of a resync under way.

        Raises:
            CorruptDataError: somebody has changed the note.
        """
        said = self._table.properties().get(RESYNC)
        try:
            return None if said is None else LakeResync.decode(str(said))
        except CorruptDataError as error:
            raise CorruptDataError(
                "note of a lake table's resync does not decode; unset this property, and ask for the resync again",
                table=str(self.name),
                property=RESYNC,
                **error.fields,
            ) from error

    def files_upto(self) -> int:
        """Return the sequence number of main's newest snapshot, above which files of later ones have theirs."""
        return int(self._table.currentSnapshot().sequenceNumber())

    def begin(self) -> None:
        """Make the run's branch where main is; those of earlier runs go."""
        head = int(self._table.currentSnapshot().snapshotId())
        self._begun = head, self.progress().watermark_ts, self.schema_ts
        manage = self._table.manageSnapshots()
        for ref in self._ref_names():
            if ref.startswith(BRANCH_PREFIX):
                manage.removeBranch(ref)
        manage.commit()
        manage = self._table.manageSnapshots()
        manage.createBranch(self._owner.branch, head).commit()

    def is_overtaken(self) -> bool:
        """Tell whether main has moved since :meth:`begin`, and by no other process of the changefeed: by a compaction.

        Then what stands in the branch must be written anew, on what main is now.
        """
        assert self._begun is not None
        self.refresh()
        moved = self._table.currentSnapshot().snapshotId() != self._begun[0]
        return moved and self._begun[1:] == (self.progress().watermark_ts, self.schema_ts)

    def publish(self, watermark_ts: Ts, schema_ts: Ts | None = None, resync: LakeResync | None = None) -> None:
        """Move main to the run's branch, in one step with its watermark, with the DDL that it follows now, and with
        what it notes of a resync; None: none is under way.

        Raises:
            LakeOvertakenError: main is not where the branch began, or the branch is gone: somebody else has written.
            Py4JJavaError: likewise, just now.
        """
        self._moved(watermark_ts, schema_ts, resync).commitTransaction()

    def staged_move(self, watermark_ts: Ts, resync: LakeResync | None, tags_kept: int | None) -> StagedMove:
        """Return what :meth:`publish` would do, for a transaction of the catalog; with the watermark's tag, where
        ``tags_kept`` says how many stay.

        Raises:
            LakeOvertakenError: see :meth:`publish`.
        """
        transaction = self._moved(watermark_ts, None, resync)
        main = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        if tags_kept is not None:
            _set_tags(transaction.manageSnapshots(), self.progress().tags, main, watermark_ts, tags_kept)
        return StagedMove(transaction.startMetadata(), transaction.currentMetadata(), main)

    def staged_tag(self, watermark_ts: Ts, tags_kept: int) -> StagedMove:
        """Return what :meth:`tag` would do, for a transaction of the catalog; the table says besides, in a property,
        that it has had this transaction: without rows no snapshot does.
        """
        tags, main = self.progress().tags, int(self._table.currentSnapshot().snapshotId())
        before = self._tagged or self._table.operations().current()
        note = self._jvm.java.util.Collections.singletonMap(WATERMARK, str(watermark_ts))
        builder = self._jvm.org.apache.iceberg.TableMetadata.buildFrom(before).setProperties(note)
        if watermark_ts not in tags:
            builder.setRef(tag_name(watermark_ts), self._jvm.org.apache.iceberg.SnapshotRef.tagBuilder(main).build())
        for ts in expired_tags(tags | {watermark_ts}, tags_kept):
            builder.removeRef(tag_name(ts))
        return StagedMove(before, builder.build(), main)

    def note_tag(self, staged: StagedMove, watermark_ts: Ts, tags_kept: int) -> None:
        """Take :meth:`staged_tag` for done, without asking the catalog."""
        progress, build = self.progress(), self._jvm.org.apache.iceberg.TableMetadata.buildFrom
        tags = progress.tags | {watermark_ts}
        self._tagged = build(staged.after).discardChanges().build()
        self._progress = replace(progress, tags=tags.difference(expired_tags(tags, tags_kept)), noted_ts=watermark_ts)

    def refresh(self) -> None:
        """See what the catalog says of it now."""
        self._forget()
        self._table.refresh()

    def has_had(self, staged: StagedMove) -> bool:
        """Tell whether main shows what :meth:`staged_move` would do; as of the last :meth:`refresh`."""
        return self._newest_said()[0] == staged.main

    def _moved(self, watermark_ts: Ts, schema_ts: Ts | None, resync: LakeResync | None) -> Any:
        """Return the transaction of :meth:`publish`."""
        assert self._begun is not None
        self._forget()
        transaction = self._table.newTransaction()
        # As the transaction sees it: a branch that is gone would be made anew, on what another process has written.
        state = transaction.table()
        if state.currentSnapshot().snapshotId() != self._begun[0] or self._owner.branch not in state.refs():
            raise LakeOvertakenError(
                "a lake table was written by another process of its changefeed", table=str(self.name)
            )
        transaction.newAppend().set(WATERMARK, str(watermark_ts)).toBranch(self._owner.branch).commit()
        manage = transaction.manageSnapshots()
        manage.fastForwardBranch(MAIN, self._owner.branch).removeBranch(self._owner.branch).commit()
        update = transaction.updateProperties().set(WATERMARK, str(watermark_ts))
        if schema_ts is not None:
            update.set(SCHEMA_TS, str(schema_ts))
        (update.remove(RESYNC) if resync is None else update.set(RESYNC, resync.encode())).commit()
        return transaction

    def evolve(
        self,
        evolution: Evolution,
        table_id: TableId,
        schema_ts: Ts | None,
        emptied_at: Ts | None = None,
        *,
        image_to_come: bool = False,
    ) -> None:
        """Change the fields, and empty the table where ``emptied_at`` says at which ts, in one step.

        ``schema_ts`` None: more is to be done before the table follows the DDL. ``image_to_come``: it gets rows of an
        image from here on.
        """
        self._forget()
        transaction = self._table.newTransaction()
        if emptied_at is not None:
            everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            transaction.newDelete().deleteFromRowFilter(everything).set(WATERMARK, str(emptied_at)).commit()
        self._evolve_fields(transaction, evolution)
        update = transaction.updateProperties().set(TABLE_ID, str(table_id))
        if emptied_at is not None:
            update.set(WATERMARK, str(emptied_at)).remove(RESYNC)
        if image_to_come:
            update.set(IMAGE_TO_COME, "true").remove(RESYNC)
        if schema_ts is not None:
            update.set(SCHEMA_TS, str(schema_ts))
        update.commit()
        transaction.commitTransaction()

    def _evolve_fields(self, transaction: Any, evolution: Evolution) -> None:
        """Each update by itself: within one, a name that it takes from a field is not free yet."""
        types = self._jvm.org.apache.iceberg.types.Types
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

    def note_image(self) -> None:
        """Say that main shows all of the table's image."""
        self._forget()
        self._table.updateProperties().remove(IMAGE_TO_COME).commit()

    def end_resync(self) -> None:
        """Note no resync any more."""
        self._forget()
        self._table.updateProperties().remove(RESYNC).commit()

    def tag(self, watermark_ts: Ts, kept: int) -> None:
        """Tag main with a watermark, if it has not the tag, and take the oldest tags away, in one step."""
        progress = self.progress()
        self._forget()
        main = self._table.currentSnapshot().snapshotId()
        tags = _set_tags(self._table.manageSnapshots(), progress.tags, main, watermark_ts, kept)
        self._progress = replace(progress, tags=tags)

    def untag(self, watermark_ts: Ts) -> None:
        """Take a watermark's tag away, if it is there."""
        if watermark_ts in self.progress().tags:
            self._forget()
            self._table.manageSnapshots().removeTag(tag_name(watermark_ts)).commit()


def _set_tags(manage: Any, tags: frozenset[Ts], main: int, watermark_ts: Ts, kept: int) -> frozenset[Ts]:
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
