"""What a lake table notes of its resync goes in with its rows; some DDL ends it, and it never ends in silence."""

from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange, ImageChunk, KeyRange, opening_of
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.resync import LakeResync, TableStep
from sorters.run.lake import maintenance
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.maintenance import Compacted
from sorters.run.lake.resyncs import end_idle_resync, end_resync, resyncing_move
from sorters.run.lake.table import LakeTable
from sorters.run.lake.tables import LakeTables
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

P1, P2 = TableId(21), TableId(22)
BOTH = frozenset({P1, P2})
URI = "iceberg://?warehouse=file:///w&mode=upsert"


@dataclass
class _Table:
    """A lake table, and what was done to it."""

    noted: LakeResync | None = None
    watermark_ts: Ts = Ts(20)
    table_id: TableId = TableId(11)
    name: str = "s.t"
    done: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.done.append("begin")

    def resync(self) -> LakeResync | None:
        return self.noted

    def files_upto(self) -> int:
        return 4

    def progress(self) -> LakeProgress:
        return LakeProgress(self.watermark_ts, frozenset())

    def end_resync(self) -> None:
        self.done.append("end")
        self.noted = None

    def drop_upto(self, table: object, upto: int) -> int:
        self.done.append(f"drop {upto}")
        return 1


def _chunk(keys: KeyRange, table_id: TableId) -> ImageChunk:
    return ImageChunk(
        ts=Ts(30), number=0, attempt=0, table_id=table_id, feeds=(), keys=keys, partition=0, offsets=(0, 0), rows=0,
        bytes=0,
    )  # fmt: skip


def _step(*chunks: ImageChunk, waiting: frozenset[TableId] = BOTH, has_begun: bool = True) -> TableStep:
    return TableStep(table_id=TableId(11), partitions=BOTH, waiting=waiting, has_begun=has_begun, chunks=chunks)


def _move(table: _Table, step: TableStep | None) -> LakeResync | None:
    files = cast("LakeFiles", table)
    return resyncing_move(cast("LakeTable", table), files, lambda: table.done.append("put"), Ts(30), step).prepare()


def test_first_opening_marks_the_files_and_the_last_whole_partition_drops_them_behind_its_rows() -> None:
    table = _Table()
    table.noted = noted = _move(table, _step(_chunk(opening_of(P1), P1), has_begun=False))
    assert noted is not None and (noted.files_upto, noted.partitions) == (4, BOTH)
    for step in (
        _step(_chunk(opening_of(P2), P2), _chunk(KeyRange.of_table(P1), P1)),
        _step(waiting=frozenset({P2})),
    ):
        table.noted = noted = _move(table, step)
        assert noted is not None and noted.files_upto == 4
    assert not [each for each in table.done if each.startswith("drop")]
    table.done.clear()
    assert _move(table, _step(_chunk(KeyRange.of_table(P2), P2), waiting=frozenset({P2}))) is None
    assert table.done == ["begin", "put", "drop 4"]


@pytest.mark.parametrize(
    "step",
    [
        None,  # each row is written anew by a column's default
        _step(waiting=frozenset()),  # over, as the last partition that was waited for is gone
        replace(_step(), table_id=TableId(12)),
    ],
)
def test_resync_that_ends_early_drops_no_file_and_says_so(
    step: TableStep | None, caplog: pytest.LogCaptureFixture
) -> None:
    table = _Table(noted=LakeResync(TableId(11), 4, BOTH, (), frozenset({P1})))
    assert _move(table, step) is None
    assert table.done == ["begin", "put"]
    assert "ask again" in caplog.text


def test_resync_of_which_a_partition_was_not_asked_for_marks_nothing_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = _Table()
    assert _move(table, _step(_chunk(opening_of(P1), P1), waiting=frozenset({P1}), has_begun=False)) is None
    assert "ask again" in caplog.text
    caplog.clear()
    assert _move(table, _step(waiting=frozenset())) is None
    assert not caplog.text, "nothing of a table that is not resynced"


def test_ddl_that_a_table_has_had_rows_behind_ends_no_resync() -> None:
    noted = LakeResync(TableId(11), 4, BOTH)
    for ddl_ts, ended in ((Ts(19), []), (Ts(20), ["end"]), (Ts(21), ["end"])):
        table = _Table(noted=noted)
        end_resync(cast("LakeTable", table), ddl_ts, lambda: None)
        assert table.done == ended


def _parted(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(11, "t"), "partition": {"enable": True, "definitions": definitions}}


def _store() -> SchemaStore:
    return snapshot(("d", 1, [_parted(21, 22), table_info(12, "u")]))


@pytest.mark.parametrize(
    ("type_", "table_id", "info", "ends"),
    [
        (DdlType.EXCHANGE_PARTITION, 12, _parted(12, 22), True),
        (DdlType.DROP_PARTITION, 11, _parted(22), True),
        (DdlType.TRUNCATE_PARTITION, 11, _parted(23, 22), True),
        (DdlType.DROP_TABLE, 11, None, True),
        (DdlType.RENAME_TABLE, 11, {**_parted(21, 22), "name": {"O": "away", "L": "away"}}, True),
        (DdlType.ADD_PARTITION, 11, _parted(21, 22, 23), False),
        (DdlType.REORGANIZE_PARTITION, 11, _parted(21, 24), False),
    ],
)
def test_ddl_by_which_rows_come_or_go_unseen_ends_a_resync_though_a_filter_leaves_it_out(
    type_: DdlType, table_id: int, info: dict[str, Any] | None, ends: bool
) -> None:
    ignored = [f"{verb} table partition" for verb in ("exchange", "drop", "truncate", "add", "reorganize")]
    rules = {"rules": ["d.t", "d.u"], "event-filters": [{"matcher": ["d.*"], "ignore-event": ignored}]}
    config = load_changefeed(URI, {"filter": rules})
    table, other = _Table(noted=LakeResync(TableId(11), 4, BOTH)), _Table()
    catalog = MagicMock(load=lambda name: {"t": table, "u": other}[name.table])
    lake = LakeTables(catalog, MagicMock(), config.sink.iceberg, compile_feed(config, "default"), lambda: None)
    store = _store()
    change = store.apply(job(30, type_, schema_id=1, table_id=table_id, table_info=info))
    assert change is not None
    lake.follow(change, store)
    assert (table.noted is None) is ends
    assert not other.done


PART = LakeResync(TableId(11), 4, BOTH, (KeyRange(opening_of(P2).start, opening_of(P2).end),), frozenset({P1}))
OVER, GOES_ON = _step(waiting=frozenset()), _step(waiting=frozenset({P2}))


@pytest.mark.parametrize(
    ("noted", "step", "after_ts", "ends"),
    [
        (PART, OVER, Ts(20), True),
        (PART, OVER, Ts(19), False),  # it has had rows behind the step's start: the step may be older than its note
        (PART, GOES_ON, Ts(20), False),
        (PART, None, Ts(20), False),  # of a table that there is no more, a ddl says what becomes of it
        (None, OVER, Ts(20), False),
    ],
)
def test_idle_table_forgets_a_resync_that_is_over_before_it_is_compacted(
    noted: LakeResync | None, step: TableStep | None, after_ts: Ts, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    table, leases = _Table(noted=noted), list[None]()
    end_idle_resync(cast("LakeTable", table), step, after_ts, lambda: leases.append(None))
    assert table.done == (["end"] if ends else [])
    assert len(leases) == ends
    assert ("ask again" in caplog.text) is ends


def test_maintenance_ends_the_note_of_an_idle_table_by_the_last_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _Table(noted=PART)
    config, feed = load_changefeed(URI, {}), compile_feed(load_changefeed(URI, {}), "default")
    lake = LakeTables(MagicMock(load=lambda _: table), MagicMock(), config.sink.iceberg, feed, lambda: None)
    store = _store()
    parted = next(each for each in store.stored_at(Ts(20)) if each.table_id == 11)
    assert lake.progress(parted.decode()) is not None
    compacted: list[LakeResync | None] = []

    def compact(table: _Table, _: object) -> Compacted:
        compacted.append(table.noted)
        return Compacted(0, 0, 0)

    monkeypatch.setattr(maintenance, "compact", compact)
    monkeypatch.setattr(maintenance, "expire", lambda *_: 0)
    cut = Cut(after_ts=Ts(20), upto_ts=Ts(30), start=(), end=(), may_repeat=False, ddl_end=0)
    waits = replace(cut, resync=(IdRange(P2, P2),))
    for last in (None, waits, replace(cut, after_ts=Ts(10)), cut):
        lake.maintain(last, store, lambda: False)
    assert compacted == [PART, PART, PART, None]
    table.noted = PART
    lake.maintain(waits, store, lambda: False, compacts=False)
    assert table.noted == PART
    lake.maintain(cut, store, lambda: False, compacts=False)
    assert table.resync() is None, "who compacts by hand need not wait for rows"
    assert len(compacted) == 4


def test_table_that_is_resynced_is_left_as_it_is_and_the_log_says_since_when(caplog: pytest.LogCaptureFixture) -> None:
    table, session = MagicMock(), MagicMock()
    table.resync.return_value = noted = replace(PART, since_ts=Ts(25))
    assert maintenance.compact(table, session) == Compacted(0, 0, 0, noted)
    session._jvm.org.apache.iceberg.spark.actions.SparkActions.get.assert_not_called()
    with caplog.at_level("INFO"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "expire", lambda *_: 3)
        maintenance.maintain_each([table], session, lambda _: None, lambda: None, lambda: False)
    (record,) = (record for record in caplog.records if record.name == maintenance.__name__)
    assert "is not compacted" in record.message and record.__dict__["since_ts"] == 25
