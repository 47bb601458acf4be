"""A table made of a changefeed's topics, in memory, and the proof of what was made: docs/formats/state-proofs.md."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from consumers.client.changes import ChangeBatch, Ddl, Row
from consumers.client.core.other_ddl import Effect, effect_on
from consumers.client.errors import ProofLostError
from consumers.client.stream import ChangeStream
from schemas.ids import Ts
from schemas.state_proof.column_kind import column_kind
from schemas.state_proof.proof_sql import Dialect, ProofColumn, totals_sql
from schemas.state_proof.row_text import TableProof as TableProof
from schemas.state_proof.row_text import row_hash, value_text

_EMPTIES: Final = re.compile(r"\s*(TRUNCATE|(DROP|CREATE)\s+TABLE)\b", re.IGNORECASE)
_KEEPS_ROWS: Final = re.compile(r"\s*(CREATE|DROP)\s+(UNIQUE\s+)?INDEX\b", re.IGNORECASE)

Key = tuple[Any, ...]
Kept = TypeVar("Kept")


class KeyedTable(Generic[Kept]):
    """What is kept of each row of one table, by key, at a watermark. Give it each batch, or let it read a stream.

    While an image of the table is under way it has a part of it, and no proof: :attr:`is_whole`.

    The reader must have all partitions of the table, and the whole table: from a changefeed with
    ``initial = "snapshot"``, or from the table's creation on. The table needs a key.
    """

    def __init__(self, schema: str, table: str, *, key: Sequence[str] = ()) -> None:
        """Begin with nothing.

        Args:
            schema, table: as the topic's messages name them.
            key: columns that tell rows apart, where messages do not say: canal-json names a primary key alone, and no
                unique key that stands for it.
        """
        self.schema, self.table, self._key = schema, table, tuple(key)
        self.rows: dict[Key, Kept] = {}
        self.watermark_ts = Ts(0)
        self._lost = ""
        self._is_begun = self._is_partial = False
        self._is_behind = False
        """Rows below the watermark are coming: of a partition that the stream found later, and could not hold."""

    def read(self, stream: ChangeStream, upto_ts: Ts) -> Self:
        """Apply a stream's batches until its watermark is at or above ``upto_ts``; commit nothing.

        Raises:
            MessageError, NoPositionError, CorruptDataError, RecordsLostError, StreamUnavailableError: see ChangeStream.
        """
        while self.watermark_ts < upto_ts:
            batch = stream.poll(1.0)
            if batch is not None:
                self.apply(batch)
        return self

    @property
    def is_whole(self) -> bool:
        """Whether no image of the table is to come or under way, as far as batches have said: until then ``rows`` may
        lack some.
        """
        return not self._is_partial

    def apply(self, batch: ChangeBatch) -> None:
        """Take a batch in; of other tables it looks at DDL alone, which may be of this one too."""
        if not self._is_begun:
            self._is_begun, self._is_partial = True, batch.images_left > 0
        has_mine = False
        for change in batch.changes:
            is_mine = (change.schema, change.table) == (self.schema, self.table)
            has_mine = has_mine or is_mine
            if isinstance(change, Ddl):
                self._ddl(change) if is_mine else self._other_ddl(change)
            elif is_mine:
                self._row(change)
        is_whole = batch.is_whole(self.schema, self.table)
        self._is_partial = self._is_partial if is_whole is None else not is_whole
        if batch.watermark_ts >= self.watermark_ts:
            self.watermark_ts, self._is_behind = batch.watermark_ts, False
        elif has_mine:
            self._is_behind = True

    def check_proven(self) -> None:
        """Make sure that what is here is the table at ``watermark_ts``.

        Raises:
            ProofLostError: rows may be other than what is here, by a DDL since they came; or rows below the watermark
                are still coming, and the next batches bring them: of a partition, or of an image that is not whole.
        """
        if self._lost:
            raise ProofLostError(
                "a DDL may have changed rows that no message came for; materialise the table anew",
                table=f"{self.schema}.{self.table}",
                reason=self._lost,
            )
        if self._is_behind:
            raise ProofLostError(
                "rows below the watermark are still coming, of a partition that was found later; apply more batches",
                table=f"{self.schema}.{self.table}",
                watermark_ts=self.watermark_ts,
            )
        if self._is_partial:
            raise ProofLostError(
                "its image is under way; apply more batches until is_whole",
                table=f"{self.schema}.{self.table}",
                watermark_ts=self.watermark_ts,
            )

    def kept(self, row: Row) -> Kept:
        """Return what is kept of a row as it is after a change."""
        raise NotImplementedError

    def _ddl(self, ddl: Ddl) -> None:
        if _EMPTIES.match(ddl.query):
            self.rows.clear()
            self._lost = ""
            # A resync's is told from a user's: the rows come behind it.
            self._is_partial = self._is_partial or ddl.commit_ts == ddl.start_ts
        elif not _KEEPS_ROWS.match(ddl.query):
            self._lost = ddl.query

    def _other_ddl(self, ddl: Ddl) -> None:
        match effect_on((self.schema, self.table), (ddl.schema, ddl.table), ddl.query):
            case Effect.EMPTIED:
                self.rows.clear()
                self._lost = ""
            case Effect.UNKNOWN:
                self._lost = ddl.query

    def _row(self, row: Row) -> None:
        names = row.key_names or self._key
        lacking = [name for name in names if name not in row.columns]
        if not names or lacking:
            raise ProofLostError(
                f"a row lacks columns of the key: {', '.join(lacking)}"
                if names
                else "a row has no key; which columns tell rows apart (key)?",
                table=f"{self.schema}.{self.table}",
                commit_ts=row.commit_ts,
            )
        self._is_partial = self._is_partial or row.is_image
        if row.old is not None:
            self.rows.pop(tuple(row.old.get(name, row.columns[name]) for name in names), None)
        key = tuple(row.columns[name] for name in names)
        if row.op == "delete":
            self.rows.pop(key, None)
        else:
            self.rows[key] = self.kept(row)


class MaterialisedTable(KeyedTable[Mapping[str, Any]]):
    """All of each row, and the proof of what is there."""

    def __init__(
        self, schema: str, table: str, *, types: Mapping[str, str] | None = None, key: Sequence[str] = ()
    ) -> None:
        """Begin with nothing.

        Args:
            schema, table, key: as of every :class:`KeyedTable`.
            types: of columns whose messages do not say enough: ``{"state": "enum('new','paid')"}``. canal-json names
                ENUM, SET and BIT in full with ``content-compatible`` alone.
        """
        super().__init__(schema, table, key=key)
        self._given = dict(types or {})
        self._types: dict[str, str] = {}

    def kept(self, row: Row) -> Mapping[str, Any]:
        """Return its columns."""
        self._types.update(row.types)
        return row.columns

    def proof(self) -> TableProof:
        """Return the proof of the rows; :meth:`tidb_sql` is the statement that gives the same.

        Raises:
            ProofLostError: see :meth:`check_proven`.
            CorruptDataError: a value has no text, or its type is not told in full (see ``types``).
            ConfigError: the message does not tell a column's type, or an unknown one.
        """
        self.check_proven()
        names, kinds = self._columns(), {column.name: column.kind for column in self._proof_columns()}
        proof = TableProof()
        for row in self.rows.values():
            if row.keys() != kinds.keys():
                raise ProofLostError("rows have different columns", table=f"{self.schema}.{self.table}")
            proof = proof.changed(None, row_hash([value_text(kinds[name], row[name]) for name in names]))
        return proof

    def tidb_sql(self) -> str:
        """Return the statement whose first and third column TiDB answers with this proof, at ``watermark_ts``.

        The session's ``time_zone`` is the changefeed's.
        """
        # Without arguments a client takes a statement as it stands.
        return totals_sql(Dialect.TIDB, (self.schema, self.table), self._proof_columns()).replace("%%", "%")

    def _columns(self) -> Sequence[str]:
        return tuple(next(iter(self.rows.values()), {}))

    def _proof_columns(self) -> list[ProofColumn]:
        types = {**self._types, **self._given}
        return [ProofColumn(name, column_kind(types.get(name, ""))) for name in self._columns()]
