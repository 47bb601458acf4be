"""Rows of a partition between a sorter and a processor, the messages that they may be joined to, and their watermarks.

Sums are made row by row, by :func:`message_row_id`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark, marked_watermark
from schemas.sink.message_rows import message_row_id, sum_of_ids, table_word
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.sql_rows import HEADS, SqlRow, TableForm, encode_form, encode_rows, encode_watermark
from schemas.sink.storage_rows import FolderForm, encode_folder

FORMS = {name: TableForm(schema="d", table=name, version=Ts(1), columns=("a",), key=("a",)) for name in ("t", "other")}
START_TS = 10
WRITER = "1-0.1.0"


@dataclass(frozen=True)
class Row:
    commit_ts: int
    start_ts: int
    key: bytes
    op: RowOp = RowOp.INSERT
    table: str = "t"

    @property
    def id(self) -> int:
        return message_row_id(self.commit_ts, self.start_ts, self.op, self.key + b",", table_word("d", self.table))

    @property
    def position(self) -> bytes:
        raw_key = self.table.encode() + b"_" + self.key
        return Position(Ts(self.commit_ts), PositionClass.ROW, Ts(self.start_ts), self.op, raw_key).encode()

    @property
    def sql(self) -> SqlRow:
        return SqlRow(self.commit_ts, self.start_ts, self.op, self.key, b"(1)")


Record = tuple[bytes, bytes | None, bytes]
"""position, key, value"""


def messages(rows: Sequence[Row], rng: random.Random) -> list[Record]:
    """Join neighbours of one table, as it comes."""
    made, left = list[Record](), sorted(rows, key=lambda row: row.position)
    while left:
        count = next((at for at, row in enumerate(left) if row.table != left[0].table), len(left))
        group, left = left[: (taken := rng.randint(1, count))], left[taken:]
        form = FORMS[group[0].table]
        made.append((group[-1].position, encode_form(form), encode_rows(form, [row.sql for row in group])))
    return made


def watermark(upto_ts: int, after_ts: int, rows: Sequence[Row], writer: str | None = WRITER) -> Record:
    value = encode_watermark(Ts(upto_ts))
    if writer is not None:
        mark = FlowMark(Ts(after_ts), sum_of_ids([row.id for row in rows]), writer)
        value = marked_watermark(Ts(upto_ts), mark)
    return Position(Ts(upto_ts), PositionClass.WATERMARK).encode(), None, value


def cuts_of(rng: random.Random) -> list[list[Row]]:
    """Return the rows of four cuts: (10, 20], (20, 30] and so on; each has some."""
    cuts = []
    for number in range(4):
        rows = list[Row]()
        for _ in range(rng.randint(1, 6)):
            ts = START_TS + number * 10 + rng.randint(1, 10)
            for key in range(rng.randint(1, 3)):
                rows.append(Row(ts, ts * 10 + len(rows), b"%d" % (key * 10**12), table=rng.choice(list(FORMS))))
        cuts.append(rows)
    return cuts


def cut_records(
    rows: Sequence[Row], number: int, rng: random.Random, rows_said: Sequence[Row] | None = None
) -> list[Record]:
    """Return what a sorter writes of a cut; ``rows_said``: what it says that the rows are."""
    after_ts = START_TS + number * 10
    return [*messages(rows, rng), watermark(after_ts + 10, after_ts, rows if rows_said is None else rows_said)]


def storage_records(
    rows: Sequence[Row], rows_said: Sequence[Row], after_ts: int, upto_ts: int, rng: random.Random
) -> list[Record]:
    """Return what a sorter writes of a cut for files; ``rows_said``: what it says that the rows are."""
    made, left = list[Record](), sorted(rows, key=lambda row: row.position)
    while left:
        count = next((at for at, row in enumerate(left) if row.table != left[0].table), len(left))
        group, left = left[: (taken := rng.randint(1, count))], left[taken:]
        heads = np.zeros(len(group), HEADS)
        for at, row in enumerate(group):
            heads[at] = row.commit_ts, row.start_ts, row.op, len(row.position[18:]), 2
        value = heads.tobytes() + b"".join(row.position[18:] for row in group) + b"x\n" * len(group)
        made.append((group[-1].position, encode_folder(FolderForm("d", group[0].table, Ts(1))), value))
    ids = [
        message_row_id(row.commit_ts, row.start_ts, row.op, row.position[18:], table_word("d", row.table))
        for row in rows_said
    ]
    mark = marked_watermark(Ts(upto_ts), FlowMark(Ts(after_ts), sum_of_ids(ids), WRITER))
    return [*made, (Position(Ts(upto_ts), PositionClass.WATERMARK).encode(), None, mark)]
