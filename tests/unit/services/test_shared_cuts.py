"""Cuts that several changefeeds run: rows gathered once, the same objects for all, of the newest cuts only."""

import gc
import threading
import weakref
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import Op, RowChanges
from schemas.config.parse.raw_offsets import RawOffsets
from schemas.errors import CorruptDataError
from schemas.flow.flow_sum import FlowSum
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.images import IdRange, ImageChunk, KeyRange
from schemas.rawlog.record_check import (
    CHECK_HEADER,
    NO_TABLE,
    RecordDamagedError,
    RowsCheck,
    Whose,
    check_headers,
)
from schemas.rawlog.region_batch import (
    RegionBatch,
    SharedRecord,
    check_record,
    decode_region_batch,
    encode_region_batch,
)
from schemas.sink.image_note import WatermarkNote
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.encode.wire.protocol import EncodedRows
from sorters.core.flow.ledger import FlowLedger
from sorters.core.flow.row_ids import sums_of_changes
from sorters.core.rows.pipeline import EncodedPass
from sorters.core.rows.shared_pass import PassKey
from sorters.cut.damaged_records import DamagedRecord, DamagedRecords
from sorters.cut.raw_cut import RawCut, read_cut
from sorters.cut.raw_records import ReadsRanges
from sorters.cut.worker import gather_rows
from sorters.service import shared_cuts
from sorters.service.raw_window import WindowReader
from sorters.service.shared_cuts import SharedCuts

TABLES = [TableId(7), TableId(8), TableId(9)]


def record(table: TableId, *commit_ts: int) -> bytes:
    ts = np.array(commit_ts, np.int64)
    values = pa.array([b"v%d" % each for each in commit_ts], pa.binary())
    rows = RowChanges(
        table_id=table,
        commit_ts=ts,
        start_ts=ts - 1,
        op=np.full(len(ts), Op.PUT, np.int8),
        key=values,
        value=values,
        old_value=values,
        txn_source=np.zeros(len(ts), np.int64),
    )
    return SharedRecord(encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1))


KEY, OTHER = PassKey("how", 5, ("a", "b")), PassKey("how", 5, ("a", "c"))
RECORDS = [record(TABLES[0], 5, 11, 12), record(TABLES[1], 13), record(TABLES[0], 14, 30), record(TABLES[2], 31, 2)]


def cut(upto_ts: int = 20) -> Cut:
    return Cut(after_ts=Ts(10), upto_ts=Ts(upto_ts), start=(0,), end=(4,), may_repeat=False, ddl_end=0)


def raw(size: int = 100) -> RawCut:
    return RawCut(list(RECORDS), size)


def plain(rows: Any) -> dict[int, tuple[list[int], list[bytes]]]:
    return {chunk.table_id: (chunk.commit_ts.tolist(), chunk.value.to_pylist()) for chunk in rows}


def test_rows_of_a_shared_cut_are_those_that_one_gathers_alone_and_the_same_objects_for_all() -> None:
    kept = SharedCuts().keep(cut(), raw())
    assert kept.shared is not None
    assert plain(kept.shared.rows(lambda _: True)) == plain(gather_rows(iter(RECORDS), cut()))
    assert plain(kept.shared.rows(lambda table: table == TABLES[1])) == {TABLES[1]: ([13], [b"v13"])}
    (first,), (second,) = (list(kept.shared.rows(lambda table: table == TABLES[0])) for _ in range(2))
    assert first is second
    assert kept.tables(cut()) >= {TABLES[0], TABLES[1]}
    assert kept.raw_bytes == 100


def test_a_cut_is_found_by_whoever_runs_the_same_and_large_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = SharedCuts()
    kept = cuts.keep(cut(), raw())
    assert cuts.find(cut()) is kept
    assert cuts.keep(cut(), raw()) is kept, "the first one counts"
    assert cuts.find(cut(21)) is None
    large = raw(shared_cuts.CUT_BYTES_MAX + 1)
    assert cuts.keep(cut(21), large) is large
    assert cuts.find(cut(21)) is None
    monkeypatch.setattr(shared_cuts, "CUTS_MAX", 2)
    for upto_ts in (22, 23):
        cuts.keep(cut(upto_ts), raw())
    assert [cuts.find(cut(upto_ts)) is None for upto_ts in (20, 22, 23)] == [True, False, False]
    monkeypatch.setattr(shared_cuts, "KEPT_BYTES_MAX", 150)
    cuts.keep(cut(24), raw())
    assert [cuts.find(cut(upto_ts)) is None for upto_ts in (22, 23, 24)] == [True, True, False]


def test_cuts_of_one_that_is_behind_alone_do_not_drive_out_what_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cuts, "CUTS_MAX", 2)
    cuts = SharedCuts()
    kept = cuts.keep(cut(), raw())
    for upto_ts in (11, 12, 13):
        cuts.keep(cut(upto_ts), raw())
        assert cuts.find(cut()) is kept


def test_a_cut_that_nobody_runs_any_more_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cuts, "CUTS_MAX", 1)
    cuts = SharedCuts()
    shared = cuts.keep(cut(), raw()).shared
    assert shared is not None
    assert list(shared.rows(lambda _: True))
    gone = weakref.ref(shared)
    cuts.keep(cut(21), raw())
    gc.disable()  # which would find it later on; what it holds is too much to wait for that
    try:
        del shared
        assert gone() is None
    finally:
        gc.enable()


def test_what_a_table_has_landed_is_summed_up_once_for_all_and_as_one_alone_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = SharedCuts().keep(cut(), raw()).shared
    assert shared is not None
    alone, summed = FlowLedger(), list[TableId]()
    for rows in gather_rows(iter(RECORDS), cut(), ledger=alone):
        alone.land(rows)

    def sums_of(parts: list[RowChanges]) -> list[FlowSum]:
        summed.extend(part.table_id for part in parts)
        return sums_of_changes(parts)

    monkeypatch.setattr(shared_cuts, "sums_of_changes", sums_of)
    for _ in range(3):
        ledger = FlowLedger()
        for rows in shared.rows(lambda _: True, ledger.gather):
            ledger.land(rows, shared.landed(rows))
        assert ledger.close() == alone.close()
    assert sorted(summed) == TABLES[:2]
    other = next(iter(gather_rows(iter(RECORDS), cut())))
    assert shared.landed(other) is None, "rows of the same table, and not those that all get"


def test_a_pass_is_made_by_whoever_comes_first_and_again_after_an_error() -> None:
    shared = SharedCuts().keep(cut(), raw()).shared
    assert shared is not None
    made: list[int] = []
    begun = threading.Event()

    def fails() -> None:
        raise CorruptDataError("a row")

    def make() -> None:
        begun.set()
        made.append(1)

    with pytest.raises(CorruptDataError):
        shared.encoded(KEY, None, fails)
    threads = [threading.Thread(target=shared.encoded, args=(KEY, None, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert made == [1]
    assert shared.encoded(OTHER, None, make) is None
    assert made == [1, 1]


def test_a_pass_of_more_tables_is_found_by_who_has_some_of_them() -> None:
    shared = SharedCuts().keep(cut(), raw()).shared
    assert shared is not None
    messages = EncodedRows(np.arange(1), pa.nulls(1, pa.binary()), pa.array([b"m"], pa.binary()))
    passed = cast(EncodedPass, SimpleNamespace(encoded=messages, positions=pa.nulls(1, pa.binary())))
    assert shared.covering(KEY) is None
    shared.encoded(PassKey("how", 5, ("x", "y")), None, lambda: None)
    assert shared.covering(PassKey("how", 5, ("y",))) is None, "nothing is left of its rows"
    shared.encoded(PassKey("how", 5, ("c", "b", "a")), None, lambda: passed)
    assert shared.covering(KEY) == (passed, [2, 1])
    assert shared.covering(PassKey("another", 5, KEY.tables)) is None
    assert shared.covering(PassKey("how", 6, KEY.tables)) is None
    assert shared.covering(PassKey("how", 5, ("a", "d"))) is None
    assert shared.covering(PassKey("how", 5, ("c", "b", "a"))) is None, "it has its own"


def test_a_cut_that_holds_its_share_of_memory_keeps_no_more_and_counts_against_the_others() -> None:
    cuts = SharedCuts()
    shared = cuts.keep(cut(), raw()).shared
    assert shared is not None
    made: list[int] = []

    def large() -> EncodedPass:
        made.append(1)
        messages = pa.array([b"x" * (shared_cuts.KEPT_BYTES_MAX // 4 + 1)], pa.binary())
        encoded = EncodedRows(np.arange(1), pa.nulls(1, pa.binary()), messages)
        return cast(EncodedPass, SimpleNamespace(encoded=encoded, positions=pa.nulls(1, pa.binary())))

    for _ in range(2):
        assert shared.encoded(KEY, None, large) is not None
    assert len(made) == 1
    for _ in range(2):
        assert shared.encoded(OTHER, None, large) is not None
    assert len(made) == 3
    for upto_ts in (21, 22):
        other = cuts.keep(cut(upto_ts), raw()).shared
        assert other is not None
        other.encoded(KEY, None, large)
    assert [cuts.find(cut(upto_ts)) is None for upto_ts in (20, 21, 22)] == [True, False, False]
    cuts.keep(cut(23), raw())
    assert [cuts.find(cut(upto_ts)) is None for upto_ts in (20, 21, 22, 23)] == [True, True, False, False]


def test_what_is_left_out_for_images_or_goes_out_of_them_is_one_changefeed_s_alone() -> None:
    def take(_: int, start: int, end: int, stopped: Any) -> list[tuple[int, bytes]]:
        return list(enumerate(RECORDS))[start:end]

    window: Any = SimpleNamespace(
        is_shared=lambda: True, cuts=SharedCuts(), first=lambda partition, start: start, take=take
    )
    reader = WindowReader(window, lambda: False, pytest.fail)
    shared, again = (reader.read_cut(cut(), 1 << 20) for _ in range(2))
    assert shared is not None
    assert shared.shared is not None
    assert shared is again
    backfilled = replace(
        cut(),
        read_again=LeftOut((IdRange(TABLES[0], TABLES[0]),), {TABLES[0]: (KeyRange(b"a", b"b"),)}),
        note=WatermarkNote(position=b"position", header=b"header"),
    )
    assert reader.read_cut(backfilled, 1 << 20) is shared, "all of its changes go out"
    left_out = replace(cut(), left_out=LeftOut((IdRange(TABLES[0], TABLES[0]),), {TABLES[0]: ()}))
    alone = reader.read_cut(left_out, 1 << 20)
    assert alone is not None
    assert alone.shared is None
    assert plain(gather_rows(iter(alone.records), left_out)) == {TABLES[1]: ([13], [b"v13"])}
    chunk = ImageChunk(
        ts=Ts(20), number=0, attempt=0, table_id=TABLES[0], feeds=("f",), keys=KeyRange.of_table(TABLES[0]),
        partition=0, offsets=(0, 0), rows=0, bytes=0,
    )  # fmt: skip
    with_image = reader.read_cut(replace(cut(), chunks=(chunk,)), 1 << 20)
    assert with_image is not None
    assert with_image.shared is None


def test_damaged_record_stops_only_who_wants_its_table_and_does_not_skip_it_shared_or_alone() -> None:
    rows = decode_region_batch(record(TABLES[1], 13)).rows
    sent = bytes(record(TABLES[1], 13))
    headers = dict(check_headers(RowsCheck.of(rows), sent, Whose.of(rows)))
    bad = SharedRecord.known(sent[:-1] + b"!", headers[CHECK_HEADER], ("events", 3, 17))
    check_record(bad)
    records = [RECORDS[0], bad]
    shared = SharedCuts().keep(cut(), RawCut(records, 100)).shared
    assert shared is not None

    def gathered(*wanted: TableId, skipped: Container[tuple[int, int]] = ()) -> list[tuple[Any, set[DamagedRecord]]]:
        alone, with_others = DamagedRecords(skipped), DamagedRecords(skipped)
        return [
            (plain(gather_rows(iter(records), cut(), wanted.__contains__, None, alone)), alone.passed),
            (plain(shared.rows(wanted.__contains__, None, with_others)), with_others.passed),
        ]

    intact = {TABLES[0]: ([11, 12], [b"v11", b"v12"])}
    for each in gathered(TABLES[0]):
        assert each == (intact, {DamagedRecord((3, 17), TABLES[1], Ts(13), False)})
    for named in ({(3, 17)}, RawOffsets.parse(["3:2-20"])):
        for each in gathered(*TABLES, skipped=named):
            assert each == (intact, {DamagedRecord((3, 17), TABLES[1], Ts(13), True)})
    damaged = DamagedRecords({(3, 16)})
    for chunks in (
        gather_rows(iter(records), cut(), lambda _: True, None, damaged),
        shared.rows(lambda _: True, None, damaged),
    ):
        with pytest.raises(RecordDamagedError) as raised:
            list(chunks)
        assert [raised.value.fields[name] for name in ("partition", "offset", "table_id")] == [3, 17, TABLES[1]]
    assert plain(shared.rows({TABLES[0]}.__contains__)) == intact


@pytest.mark.parametrize("foreign", [b"hello", b"", b"\x00garbage", b"\0\0\0\0\7\2\4\0\x0ahello\0\0\0\0"])
def test_foreign_record_stops_all_who_do_not_name_it_shared_or_alone(foreign: bytes) -> None:
    def read_all(ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        yield 0, 0, RECORDS[0]
        yield 0, 1, SharedRecord.known(foreign, None, ("events", 0, 1))
        yield 0, 2, RECORDS[1]

    alone = read_cut(cast(ReadsRanges, SimpleNamespace(read_all=read_all)), cut(), 1 << 20)
    assert alone is not None
    shared = SharedCuts().keep(cut(), alone).shared
    assert shared is not None
    assert (alone.tables(cut()), shared.tables()) == ({*TABLES[:2]}, {*TABLES[:2]})

    def gathered(damaged: DamagedRecords) -> list[Iterator[RowChanges]]:
        wanted = {TABLES[1]}.__contains__
        return [
            gather_rows(iter(alone.records), cut(), wanted, None, damaged),
            shared.rows(wanted, None, damaged),
        ]

    for skipped in ((), {(0, 2), (1, 1)}):
        for chunks in gathered(DamagedRecords(skipped)):
            with pytest.raises(RecordDamagedError) as raised:
                list(chunks)
            fields = raised.value.fields
            assert (fields["topic"], fields["partition"], fields["offset"]) == ("events", 0, 1)
            assert "table_id" not in fields
    naming = DamagedRecords({(0, 1)})
    for chunks in gathered(naming):
        assert plain(chunks) == {TABLES[1]: ([13], [b"v13"])}
    assert naming.passed == {DamagedRecord((0, 1), NO_TABLE, Ts(0), True)}


SENT = decode_region_batch(record(TABLES[1], 13)).rows
CAPTURED = bytes(record(TABLES[1], 13))
SAID = dict(check_headers(RowsCheck.of(SENT), CAPTURED, Whose.of(SENT)))[CHECK_HEADER]


@pytest.mark.parametrize(
    ("value", "said", "is_known"),
    [
        (CAPTURED, SAID[:3] + bytes([SAID[3] ^ 1]) + SAID[4:], True),
        (CAPTURED, SAID[:3] + b"!" + SAID[4:], True),
        (CAPTURED[:-1], None, False),
    ],
    ids=["another checksum of rows", "a header that is none", "an older capture's"],
)
def test_record_that_is_damaged_only_where_it_is_decoded_is_passed_over_by_who_names_it_shared_or_alone(
    value: bytes, said: bytes | None, is_known: bool
) -> None:
    records: list[bytes] = [RECORDS[0], SharedRecord.known(value, said, ("events", 3, 17)), RECORDS[2]]
    for each in records:
        check_record(each)
    shared = SharedCuts().keep(cut(), RawCut(records, 100)).shared
    assert shared is not None

    def gathered(damaged: DamagedRecords, *wanted: TableId) -> list[Iterator[RowChanges]]:
        return [
            gather_rows(iter(records), cut(), wanted.__contains__, None, damaged),
            shared.rows(wanted.__contains__, None, damaged),
        ]

    intact = {TABLES[0]: ([11, 12, 14], [b"v11", b"v12", b"v14"])}
    for skipped in ((), {(3, 16)}):
        for chunks in gathered(DamagedRecords(skipped), *TABLES):
            with pytest.raises(CorruptDataError) as raised:
                list(chunks)
            assert [raised.value.fields[name] for name in ("topic", "partition", "offset")] == ["events", 3, 17]
        for chunks in gathered(DamagedRecords(skipped), TABLES[0]):
            assert plain(chunks) == intact
    whose = (TABLES[1], Ts(13)) if is_known else (NO_TABLE, Ts(0))
    for chunks in gathered(naming := DamagedRecords({(3, 17)}), *TABLES):
        naming.passed.clear()
        assert plain(chunks) == intact
        assert naming.passed == {DamagedRecord((3, 17), *whose, True)}
    counted: list[int] = []
    assert plain(shared.rows(set(TABLES).__contains__, counted.append, naming)) == intact
    assert sum(counted) == 3
