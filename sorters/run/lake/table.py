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
from sorters.core.lake.evolution import Evolution, LakeField
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.names import LakeName
from sorters.run.lake.properties import (
    BRANCH_PREFIX,
    IMAGE_TO_COME,
    LIFE,
    MADE_BEHIND,
    RESYNC,
    SCHEMA_TS,
    TABLE_ID,
    WATERMARK,
    newest_said,
)
from sorters.run.lake.updates import CONFLICT, OVERTAKEN_MAX, evolve_fields, set_tags

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

    def __init__(
        self, table: Any, name: LakeName, owner: LakeOwner, jvm: Any, *, is_sent_as_changes: bool = False
    ) -> None:
        """``is_sent_as_changes``: the catalog gets changes of it, and not the whole of its metadata."""
        self.name, self._is_sent_as_changes = name, is_sent_as_changes
        self._table, self._owner, self._jvm = table, owner, jvm
        self._begun: tuple[int, Ts, Ts] | None = None
        """Main when the branch was made: its snapshot, the watermark, and the DDL that the fields followed."""
        self._seen: tuple[str | None, str | None, str | None] | None = None
        """What :meth:`look` has noted."""
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
        said = newest_said(self._table, self._table.currentSnapshot())[1] or noted
        if said is None:
            raise LakeWatermarkLostError(
                "a lake table does not say how far it is; drop it and replicate it anew", table=str(self.name)
            )
        properties = self._table.properties()
        behind = self._number(MADE_BEHIND, properties.get(MADE_BEHIND) or 0)
        image_to_come = properties.get(IMAGE_TO_COME) is not None
        known = frozenset(ts for ts in tags if ts is not None)
        said_ts, noted_ts = (Ts(self._number(WATERMARK, each)) for each in (said, noted or 0))
        return LakeProgress(said_ts, known, image_to_come, noted_ts=noted_ts, made_behind_ts=Ts(behind))

    def check_main(self) -> None:
        """Refuse a table whose main shows less than its newest tag does: what lies between would never come again.

        Raises:
            LakeWatermarkLostError: somebody has turned main back.
        """
        newest = max(self.progress().tags, default=None)
        tagged = None if newest is None else self._table.snapshot(tag_name(newest))
        if newest is None or tagged is None:
            return
        main = self._table.currentSnapshot()
        said, wanted = (newest_said(self._table, each)[1] for each in (main, tagged))
        says_less = None not in (said, wanted) and self._number(WATERMARK, said) < self._number(WATERMARK, wanted)
        if says_less or int(tagged.sequenceNumber()) > int(main.sequenceNumber()):
            raise LakeWatermarkLostError(
                "main of a lake table was turned back behind its newest tag; let main show the tag's snapshot again, or"
                " drop the table and replicate it anew",
                table=str(self.name),
                tag=tag_name(newest),
                snapshot=int(tagged.snapshotId()),
            )

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
            set_tags(transaction.manageSnapshots(), self.progress().tags, main, watermark_ts, tags_kept)
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
        return newest_said(self._table, self._table.currentSnapshot())[0] == staged.main

    def _moved(self, watermark_ts: Ts, schema_ts: Ts | None, resync: LakeResync | None) -> Any:
        """Return the transaction of :meth:`publish`."""
        assert self._begun is not None
        self._forget()
        transaction = self._table.newTransaction()
        # As the transaction sees it: a branch that is gone would be made anew, on what another process has written.
        state = transaction.table()
        if state.currentSnapshot().snapshotId() != self._begun[0] or self._owner.branch not in state.refs():
            raise self._overtaken()
        transaction.newAppend().set(WATERMARK, str(watermark_ts)).toBranch(self._owner.branch).commit()
        manage = transaction.manageSnapshots()
        manage.fastForwardBranch(MAIN, self._owner.branch).removeBranch(self._owner.branch).commit()
        update = transaction.updateProperties().set(WATERMARK, str(watermark_ts))
        if schema_ts is not None:
            update.set(SCHEMA_TS, str(schema_ts))
        (update.remove(RESYNC) if resync is None else update.set(RESYNC, resync.encode())).commit()
        return transaction

    def look(self) -> None:
        """Note what the catalog says of it now: :meth:`evolve`, which is decided on by it, is for no other state.
        Whoever must not write any more is to find that out after it.
        """
        self.refresh()  # a tag by a transaction of the catalog has changed its properties
        self._seen = self._state(self._table)

    def _state(self, table: Any) -> tuple[str | None, str | None, str | None]:
        """Return what every commit of the changefeed's changes, and no compaction."""
        properties = table.properties()
        said = newest_said(table, table.currentSnapshot())[1] or properties.get(WATERMARK)
        return said, properties.get(TABLE_ID), properties.get(SCHEMA_TS)

    def evolve(
        self,
        evolution: Evolution,
        table_id: TableId,
        schema_ts: Ts | None,
        emptied_at: Ts | None = None,
        *,
        image_to_come: bool = False,
    ) -> None:
        """Change the fields, and empty the table where ``emptied_at`` says at which ts, in one step; again on what a
        compaction has made of it.

        ``schema_ts`` None: more is to be done before the table follows the DDL. ``image_to_come``: it gets rows of an
        image from here on.

        Raises:
            LakeOvertakenError: it is not what it was at :meth:`look`: another process of its changefeed has written.
            Py4JJavaError: Iceberg's.
        """
        from py4j.protocol import Py4JJavaError  # comes with pyspark, which only a run needs

        self._forget()
        for left in reversed(range(OVERTAKEN_MAX)):
            transaction = self._as_seen()
            if emptied_at is not None:
                everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
                transaction.newDelete().deleteFromRowFilter(everything).set(WATERMARK, str(emptied_at)).commit()
            evolve_fields(self._jvm, transaction, evolution)
            update = transaction.updateProperties().set(TABLE_ID, str(table_id))
            if emptied_at is not None:
                update.set(WATERMARK, str(emptied_at)).remove(RESYNC)
            if image_to_come:
                update.set(IMAGE_TO_COME, "true").remove(RESYNC)
            if schema_ts is not None:
                update.set(SCHEMA_TS, str(schema_ts))
            update.commit()
            try:
                transaction.commitTransaction()
            except Py4JJavaError as error:
                if not left or error.java_exception.getClass().getSimpleName() != CONFLICT:
                    raise
            else:
                break
        self._seen = None

    def _as_seen(self) -> Any:
        """Return a transaction on the table as :meth:`look` saw it; on no other state can it be carried out.

        Raises:
            LakeOvertakenError: it is another by now.
        """
        assert self._seen is not None
        transaction = self._table.newTransaction()
        if self._state(transaction.table()) != self._seen:
            raise self._overtaken()
        # Iceberg would carry the rest out on whatever comes in between. Changes of branches it does not: here of none.
        fence, main = f"{self._owner.branch}_ddl", transaction.table().currentSnapshot().snapshotId()
        transaction.manageSnapshots().createBranch(fence, main).removeBranch(fence).commit()
        if self._is_sent_as_changes:  # the two cancel out on the way; where main moves, the server compares it
            transaction.newAppend().commit()
        return transaction

    def _overtaken(self) -> LakeOvertakenError:
        message = "a lake table was written by another process of its changefeed"
        return LakeOvertakenError(message, table=str(self.name))

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
        tags = set_tags(self._table.manageSnapshots(), progress.tags, main, watermark_ts, kept)
        self._progress = replace(progress, tags=tags)

    def untag(self, watermark_ts: Ts) -> None:
        """Take a watermark's tag away, if it is there."""
        if watermark_ts in self.progress().tags:
            self._forget()
            self._table.manageSnapshots().removeTag(tag_name(watermark_ts)).commit()
