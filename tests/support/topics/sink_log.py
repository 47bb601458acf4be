"""A sink topic in memory: what a sorter would have written, record by record, and a source that reads it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from consumers.processors.sink_source import SinkRecord
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.sql_rows import (
    ResyncStep,
    SqlDdl,
    SqlRow,
    TableForm,
    encode_ddl,
    encode_form,
    encode_rows,
    encode_watermark,
)
from sorters.core.records.order import OutputRecords


def form(name: str, *columns: str, key: Sequence[str] = ("id",), version: int = 1) -> TableForm:
    """Return the form of a table ``schema.table``."""
    schema, _, table = name.partition(".")
    return TableForm(schema=schema, table=table, version=Ts(version), columns=columns, key=tuple(key))


@dataclass
class SinkLog:
    """Records by partition, in order."""

    partitions: int = 2
    records: dict[int, list[SinkRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.records = {part: [] for part in range(self.partitions)}

    def rows(self, part: int, table: TableForm, commit_ts: int, *rows: tuple[RowOp, str, str]) -> None:
        """Write one transaction's rows of a table as one message: (op, key literal, row literal)."""
        self._rows(part, table, commit_ts, commit_ts - 1, rows)

    def add_all(self, records: OutputRecords) -> None:
        """Write records as a sorter has made them."""
        for record in records.to_pylist():
            self.add(record["partition"], record["position"], record["key"], record["value"])

    def image(self, part: int, table: TableForm, ts: int, *rows: tuple[str, str]) -> None:
        """Write rows of a table's image as one message: (key and row literal). Without ``uniques`` the key is one."""
        form = table if table.uniques is not None else replace(table, uniques=(table.key,))
        self._rows(part, form, ts, ts, [(RowOp.UPDATE, key, row) for key, row in rows])

    def lacks(self, part: int, table: TableForm, ts: int, *conditions: str) -> None:
        """Write which rows a table's image lacks at ``ts``, by conditions in parentheses; its rows come behind it."""
        value = encode_rows(
            form := replace(table, columns=(), uniques=None),
            [SqlRow(ts, ts, RowOp.DELETE, condition.encode()) for condition in conditions],
        )
        position = Position(Ts(ts), PositionClass.ROW, Ts(ts), RowOp.DELETE, conditions[-1].encode())
        self.add(part, position.encode(), encode_form(form), value)

    def _rows(
        self, part: int, table: TableForm, commit_ts: int, start_ts: int, rows: Sequence[tuple[RowOp, str, str]]
    ) -> None:
        value = encode_rows(
            table, [SqlRow(commit_ts, start_ts, op, key.encode(), row.encode()) for op, key, row in rows]
        )
        op, key, _ = rows[-1]
        position = Position(Ts(commit_ts), PositionClass.ROW, Ts(start_ts), op, key.encode())
        self.add(part, position.encode(), encode_form(table), value)

    def ddl(
        self,
        commit_ts: int,
        ddl_type: DdlType,
        name: str,
        query: str,
        *,
        pre: str = "",
        restored: bool = False,
        at_start: int | None = None,
        table_id: int = 0,
        ended: Sequence[int] = (),
        referred: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write a DDL event to every partition; ``at_start``: of a table as of the start, the so manyth."""
        schema, _, table = name.partition(".")
        pre_schema, _, pre_table = pre.partition(".")
        event = SqlDdl(
            commit_ts=Ts(commit_ts),
            ddl_type=ddl_type,
            schema=schema,
            table=table,
            pre_schema=pre_schema,
            pre_table=pre_table,
            referred=tuple(referred),
            query=query,
            plain_backslashes=restored,
            table_id=TableId(table_id),
            ended=tuple(map(TableId, ended)),
        )
        position = Position(Ts(commit_ts), PositionClass.DDL, Ts(commit_ts - 1), key=bytes(4)).encode()
        if at_start is not None:
            position = Position(Ts(commit_ts), PositionClass.BOOTSTRAP, key=at_start.to_bytes(9, "big")).encode()
        for part in range(self.partitions):
            self.add(part, position, None, encode_ddl(event))

    def step(self, ts: int, step: ResyncStep, table: TableForm, *key_types: str) -> None:
        """Write to every partition what a database is to do at ``ts`` for a resync of a table with ``notes``."""
        event = SqlDdl(
            commit_ts=Ts(ts),
            ddl_type=int(DdlType.TRUNCATE_TABLE),
            schema=table.schema,
            table=table.table,
            pre_schema="",
            pre_table="",
            query=f"/* {step} */",
            table_id=table.notes,
            step=step,
            key=table.key,
            key_types=key_types,
        )
        position = Position(Ts(ts), PositionClass.DDL, Ts(ts), key=bytes(4)).encode()
        for part in range(self.partitions):
            self.add(part, position, None, encode_ddl(event))

    def watermark(self, ts: int) -> None:
        """Write a watermark to every partition."""
        position = Position(Ts(ts), PositionClass.WATERMARK).encode()
        for part in range(self.partitions):
            self.add(part, position, None, encode_watermark(Ts(ts)))

    def add(self, part: int, position: bytes, key: bytes | None, value: bytes) -> None:
        """Write any record."""
        records = self.records[part]
        records.append(SinkRecord(part, len(records), position, key, value))


@dataclass
class MemorySource:
    """Reads a :class:`SinkLog` from given offsets on, some records at a time."""

    log: SinkLog
    at: dict[int, int]
    count: int = 3
    paused: set[int] = field(default_factory=set)
    noted: dict[int, int] = field(default_factory=dict)

    def check(self, offsets: Mapping[int, int]) -> None:
        pass

    def begin(self, offsets: Mapping[int, int]) -> None:
        self.at.update(offsets)
        self.paused -= offsets.keys()

    def end(self, partition: int) -> None:
        self.at.pop(partition, None)

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        polled: list[SinkRecord] = []
        for part in self.at.keys() - self.paused:
            start = self.at[part]
            more = self.log.records[part][start : start + self.count]
            self.at[part] += len(more)
            polled += more
        if not polled:
            time.sleep(min(timeout_s, 0.001))  # as a broker without records makes its reader wait
        return polled

    def pause(self, partition: int) -> None:
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.discard(partition)

    def note(self, offsets: Mapping[int, int]) -> None:
        self.noted.update(offsets)

    def close(self) -> None:
        pass
