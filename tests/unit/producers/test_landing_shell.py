"""The landing shell over a fake broker: what fails never counts as landed, and what is too large is named."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from producers.errors import DeliveryFailedError, LandingHaltedError
from producers.pull.core.landing.book import LandingBook
from producers.pull.core.landing.packing import pack
from producers.pull.core.match.change_columns import Change, ChangeColumns
from producers.pull.landing import landing as landing_module
from producers.pull.landing.landing import SEVERAL_REGIONS, Landing, LandingSettings
from schemas.changes import RowChanges
from schemas.ids import CaptureId, RegionId, TableId, Ts
from schemas.rawlog.record_check import CHECK_HEADER, RawRecord
from schemas.rawlog.region_batch import decode_region_batch
from schemas.rawlog.row_parts import PartJoiner
from schemas.tidb.spans import TableSpan
from sorters.core.columnar.row_changes import rows_where

TABLE = TableSpan.of_table(TableId(45))


class Reply:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


class Refusal:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def str(self) -> str:
        return self._name


class FakeProducer:
    """Takes records; ``deliver`` answers them."""

    def __init__(self, room: int = 1_000) -> None:
        self.room = room
        self.values: list[bytes] = []
        self.headers: list[Sequence[tuple[str, bytes]]] = []
        self.waiting: list[Callable[[Any, Any], None]] = []
        self.due: list[Callable[[], None]] = []

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        if len(self.waiting) >= self.room:
            raise BufferError
        self.values.append(value)
        self.headers.append(headers)
        self.waiting.append(on_delivery)

    def deliver(self, at: int, offset: int | None, error: Refusal | None = None) -> None:
        callback = self.waiting.pop(at)
        self.due.append(lambda: callback(error, None if error else Reply(offset)))

    def poll(self, timeout: float) -> int:
        due, self.due = self.due, []
        for call in due:
            call()
        return len(due)

    def flush(self, timeout: float) -> int:
        return len(self.waiting)


def change(ts: int, value: bytes = b"v", key: bytes = b"k") -> Change:
    return ts, ts - 1, 1, key, value, b"", 0


def landing(producer: FakeProducer, *, linger_s: float = 0.0, **settings: Any) -> Landing:
    book = LandingBook(CaptureId("c"), 4)
    made = Landing(
        book, producer, topic="t", partitions=4, schema_id=1, settings=LandingSettings(linger_s=linger_s, **settings)
    )
    made.book.assign(TABLE, Ts(0))
    return made


def test_landing_when_resolved_then_buffered_rows_are_sent_first_and_count_once_acknowledged() -> None:
    producer = FakeProducer()
    made = landing(producer)
    made.rows(TABLE, RegionId(7), [change(3), change(5)], may_repeat=False)
    made.rows(TABLE, RegionId(8), [change(4)], may_repeat=False)
    made.resolved(TABLE, Ts(6))
    batch = decode_region_batch(producer.values[0])
    assert (batch.rows.commit_ts.tolist(), batch.region_id, batch.may_repeat) == ([3, 5, 4], SEVERAL_REGIONS, False)
    assert made.book.report().landed_ts[TABLE] == 0
    producer.deliver(0, 9)
    made.turn(1e9)
    assert made.book.report().landed_ts[TABLE] == 6


def test_landing_when_rows_have_waited_long_enough_then_they_go_without_a_resolved_ts_and_younger_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer, younger, now_s = FakeProducer(), TableSpan.of_table(TableId(46)), [10.0]
    made = landing(producer, linger_s=0.15)
    made.book.assign(younger, Ts(0))
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    made.rows(TABLE, RegionId(7), [change(3)], may_repeat=False)
    now_s[0] = 10.1
    made.rows(younger, RegionId(8), [change(4)], may_repeat=False)
    made.rows(TABLE, RegionId(7), [change(5)], may_repeat=False)
    seen: list[list[list[int]]] = []
    for turn_s in (10.14, 10.16, 10.24, 10.26):
        made.turn(turn_s)
        seen.append([batch.rows.commit_ts.tolist() for batch in map(decode_region_batch, producer.values)])
    assert seen == [[], [[3, 5]], [[3, 5]], [[3, 5], [4]]]


def test_landing_when_rows_may_repeat_then_they_go_into_records_of_their_own() -> None:
    producer = FakeProducer()
    made = landing(producer)
    made.rows(TABLE, RegionId(7), [change(3)], may_repeat=True)
    made.rows(TABLE, RegionId(7), [change(4)], may_repeat=False)
    made.turn(1e9)
    assert [(batch.may_repeat, batch.region_id) for batch in map(decode_region_batch, producer.values)] == [
        (True, 7),
        (False, 7),
    ]


def test_landing_when_a_delivery_fails_then_landed_ts_stays_and_the_error_comes_out() -> None:
    producer = FakeProducer()
    made = landing(producer)
    made.rows(TABLE, RegionId(7), [change(3)], may_repeat=False)
    made.resolved(TABLE, Ts(6))
    made.rows(TABLE, RegionId(7), [change(8)], may_repeat=False)
    made.resolved(TABLE, Ts(9))
    producer.deliver(1, 10)
    producer.deliver(0, 0, Refusal("_MSG_TIMED_OUT"))
    with pytest.raises(DeliveryFailedError):
        made.turn(1e9)
    assert made.book.report().landed_ts[TABLE] == 0


def test_landing_when_a_broker_has_had_a_batch_and_does_not_say_where_then_none_of_it_counts() -> None:
    producer = FakeProducer()
    made = landing(producer)
    for ts in (3, 5, 7):
        made.rows(TABLE, RegionId(7), [change(ts)], may_repeat=False)
        made.resolved(TABLE, Ts(ts))
    producer.deliver(0, 20)
    for offset in (None, 0):
        producer.deliver(0, offset)
    with pytest.raises(DeliveryFailedError, match="does not say where"):
        made.turn(1e9)
    assert (made.book.report().landed_ts[TABLE], max(made.book.report().ends)) == (3, 21)


def test_landing_when_a_row_is_larger_than_a_record_then_it_counts_when_all_parts_are_acknowledged() -> None:
    producer = FakeProducer()
    made = landing(producer, record_bytes_max=1_000)
    made.rows(TABLE, RegionId(7), [change(3, b"v" * 2_500), change(4)], may_repeat=False)
    made.resolved(TABLE, Ts(6))
    assert [len(value) <= 1_000 for value in producer.values] == [True] * 4
    joiner = PartJoiner()
    whole = [record for value in producer.values if (record := joiner.take(0, value)) is not None]
    assert [decode_region_batch(record).rows.value.to_pylist() for record in whole] == [[b"v" * 2_500], [b"v"]]
    for at, offset in ((0, 0), (0, 1), (1, 3)):
        producer.deliver(at, offset)
    made.turn(1e9)
    assert made.book.report().landed_ts[TABLE] == 0
    producer.deliver(0, 2)
    made.turn(1e9)
    assert (made.book.report().landed_ts[TABLE], made.counters.acked_rows) == (6, 2)


def test_landing_when_a_row_is_larger_than_any_of_tidb_then_its_table_stops_before_it_and_others_go_on() -> None:
    producer, other = FakeProducer(), TableSpan.of_table(TableId(46))
    made = landing(producer, row_bytes_max=1_000)
    made.book.assign(other, Ts(0))
    for span in (TABLE, other):
        made.rows(span, RegionId(7), [change(3)], may_repeat=False)
        made.resolved(span, Ts(4))
    made.rows(TABLE, RegionId(7), [change(5, b"v" * 2_000, b"key-1")], may_repeat=False)
    made.rows(other, RegionId(7), [change(5)], may_repeat=False)
    for span in (TABLE, other):
        made.resolved(span, Ts(6))
    made.rows(TABLE, RegionId(7), [change(7)], may_repeat=False)
    made.resolved(TABLE, Ts(8))
    while producer.waiting:
        producer.deliver(0, made.counters.acked_records)
        made.turn(1e9)
    assert made.book.report().landed_ts == {TABLE: 4, other: 6}
    fields = made.refused()[TABLE].fields
    assert (fields["table_id"], fields["key"], fields["commit_ts"]) == (45, b"key-1".hex(), 5)
    assert len(producer.values) == 3
    made.forget(TABLE)
    assert made.refused() == {}


def test_landing_when_rows_are_many_bytes_then_records_stay_near_their_bound() -> None:
    producer = FakeProducer()
    made = landing(producer, batch_bytes_max=1_000)
    made.rows(TABLE, RegionId(7), [change(ts, b"v" * 300) for ts in range(1, 11)], may_repeat=False)
    made.turn(1e9)
    counts = [len(decode_region_batch(value).rows) for value in producer.values]
    assert counts == [2, 2, 2, 2, 2]


def test_landing_when_the_broker_is_slow_then_it_is_saturated_until_acknowledged() -> None:
    producer = FakeProducer()
    made = landing(producer, in_flight_bytes_max=100)
    made.rows(TABLE, RegionId(7), [change(3, b"v" * 200)], may_repeat=False)
    made.turn(1e9)
    assert made.saturated()
    producer.deliver(0, 0)
    made.turn(1e9)
    assert not made.saturated()


def test_landing_when_many_small_records_wait_then_it_is_saturated_before_the_clients_queue_is_full() -> None:
    producer = FakeProducer()
    made = landing(producer, in_flight_records_max=2)
    for ts in (3, 5):
        assert not made.saturated()
        made.rows(TABLE, RegionId(7), [change(ts)], may_repeat=False)
        made.resolved(TABLE, Ts(ts))
    assert made.saturated()
    producer.deliver(0, 0)
    made.turn(1e9)
    assert not made.saturated()


def test_landing_when_a_table_is_forgotten_then_its_buffered_rows_do_not_land() -> None:
    producer = FakeProducer()
    made = landing(producer)
    made.rows(TABLE, RegionId(7), [change(3)], may_repeat=False)
    made.forget(TABLE)
    made.turn(1e9)
    assert producer.values == []


def test_landing_of_a_capture_whose_lease_is_over_sends_nothing_more() -> None:
    producer, lease = FakeProducer(), [True]
    landing_of = Landing(
        LandingBook(CaptureId("c"), 4),
        producer,
        topic="t",
        partitions=4,
        schema_id=1,
        settings=LandingSettings(linger_s=0.0),
        may_land=lambda: lease[0],
    )
    landing_of.book.assign(TABLE, Ts(10))
    landing_of.rows(TABLE, RegionId(1), [change(20)], may_repeat=False)
    landing_of.turn(1e9)
    lease[0] = False
    landing_of.rows(TABLE, RegionId(1), [change(30)], may_repeat=False)
    with pytest.raises(LandingHaltedError):
        landing_of.turn(1e9)
    with pytest.raises(LandingHaltedError):
        landing_of.resolved(TABLE, Ts(40))
    assert len(producer.values) == 1


def test_landing_tells_its_owner_once_a_resolved_ts_has_all_its_rows_acknowledged() -> None:
    producer, calls = FakeProducer(), list[int]()
    landing_of = Landing(
        LandingBook(CaptureId("c"), 4),
        producer,
        topic="t",
        partitions=4,
        schema_id=1,
        settings=LandingSettings(linger_s=0.0),
        on_landed=lambda: calls.append(1),
    )
    landing_of.book.assign(TABLE, Ts(10))
    landing_of.rows(TABLE, RegionId(1), [change(20)], may_repeat=False)
    landing_of.resolved(TABLE, Ts(30))
    landing_of.turn(1e9)
    assert not calls, "its row is under way"
    producer.deliver(0, 5)
    for _ in range(3):
        landing_of.turn(1e9)
    assert len(calls) == 1
    assert landing_of.book.report().landed_ts == {TABLE: 30}


def test_records_say_what_is_in_them() -> None:
    producer = FakeProducer()
    made = landing(producer, record_bytes_max=1_000)
    made.rows(TABLE, RegionId(7), [change(3, b"v" * 2_500), change(4)], may_repeat=False)
    made.rows(TABLE, RegionId(7), ChangeColumns.of(*zip(*[change(5), change(6)], strict=True)), may_repeat=False)
    made.resolved(TABLE, Ts(7))
    joiner, rows = PartJoiner(), list[int]()
    for value, headers in zip(producer.values, producer.headers, strict=True):
        whole = joiner.take(0, RawRecord.known(value, dict(headers)[CHECK_HEADER], ("t", 0, 0)))
        if whole is not None:
            rows += decode_region_batch(whole).rows.commit_ts.tolist()
    assert sorted(rows) == [3, 4, 5, 6]


def lost(packed: list[RowChanges]) -> list[RowChanges]:
    return [rows_where(packed[0], np.arange(len(packed[0])) > 0), *packed[1:]]


def doubled(packed: list[RowChanges]) -> list[RowChanges]:
    """One row lost and another one twice: counts and sizes fit."""
    order = np.array([0, 0, *range(2, len(packed[0]))])
    return [taken(packed[0], order), *packed[1:]]


def taken(rows: RowChanges, order: npt.NDArray[np.int64]) -> RowChanges:
    columns = {name: getattr(rows, name) for name in ("commit_ts", "start_ts", "op", "txn_source")}
    texts = {name: getattr(rows, name).take(pa.array(order)) for name in ("key", "value", "old_value")}
    return replace(rows, **{name: column[order] for name, column in columns.items()}, **texts)


@pytest.mark.parametrize("by_column", [True, False], ids=["by column", "by row"])
@pytest.mark.parametrize("plant", [lost, doubled], ids=["lost", "doubled"])
def test_row_that_is_lost_or_doubled_on_its_way_into_a_record_stops_its_table_alone(
    plant: Callable[[list[RowChanges]], list[RowChanges]], by_column: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, other = FakeProducer(), TableSpan.of_table(TableId(46))
    made = landing(producer)
    made.book.assign(other, Ts(0))
    honest = pack

    def planted(table: TableId, *rest: Any) -> list[RowChanges]:
        packed = list(honest(table, *rest))
        return plant(packed) if table == TABLE.table_id else packed

    monkeypatch.setattr(landing_module, "pack", planted)
    rows = [change(ts, key=b"k%d" % ts) for ts in (3, 4, 5)]
    for span in (TABLE, other):
        made.rows(
            span, RegionId(7), ChangeColumns.of(*zip(*rows, strict=True)) if by_column else rows, may_repeat=False
        )
        made.resolved(span, Ts(6))
    assert len(producer.values) == 1
    producer.deliver(0, 0)
    made.turn(1e9)
    landed_ts = made.book.report().landed_ts
    assert (landed_ts[TABLE], landed_ts[other]) == (0, 6)
    error = made.refused()[TABLE]
    assert (error.code, error.kind, error.fields["table_id"]) == ("producer.rows_lost", "rows_lost", 45)
    made.forget(TABLE)
    assert made.refused() == {}


def test_part_of_a_buffer_that_is_lost_stops_the_table() -> None:
    producer = FakeProducer()
    made = landing(producer)
    made.rows(TABLE, RegionId(7), ChangeColumns.of(*zip(*[change(3)], strict=True)), may_repeat=False)
    made.rows(TABLE, RegionId(7), ChangeColumns.of(*zip(*[change(4)], strict=True)), may_repeat=False)
    made._buffers[TABLE, False].columns[1] = made._buffers[TABLE, False].columns[0]
    made.resolved(TABLE, Ts(6))
    assert producer.values == []
    assert made.refused()[TABLE].fields["columns"] == "commit_ts, start_ts"
