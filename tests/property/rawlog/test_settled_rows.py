"""A cut that is settled once for all: to each changefeed it is what it would be alone, byte for byte."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.ids import RegionId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.sink.position import Position, PositionClass
from sorters.core.cut.cut import Cut
from sorters.core.encode.wire.protocol import EncodedMessage
from sorters.core.feed.companions import copies
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.flow.ledger import FlowBrokenError
from sorters.core.records import order
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.rows.settled_rows import settle
from sorters.cut import whole_cut as cuts
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import WholeCut, whole_cut
from sorters.cut.worker import FeedProgram
from sorters.service.shared_cuts import SharedCuts
from tests.support.rawlog.alike_tables import Schemas, chunks_of, compiled, moved, tables_of
from tests.support.sources.examples import examples

Config = dict[str, Any]
KEY = bytes(16)
"""Of a message that stems from no row; open-protocol's have a head of eight bytes."""
CANAL = "kafka://h:1/t?protocol=canal-json"


def raw_cut(chunks: Sequence[RowChanges], rng: random.Random, *, twice: bool) -> RawCut:
    """Return the raw records of chunks; ``twice``: some of them come again."""
    records = [
        encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=twice, rows=each), 1) for each in chunks
    ]
    again = [record for record in records if rng.random() < 0.3] if twice else []
    return RawCut([*records, *again], sum(map(len, records)))


def cut_of(chunks: Sequence[RowChanges], *, may_repeat: bool) -> Cut:
    last = max(int(each.commit_ts.max()) for each in chunks)
    return Cut(after_ts=Ts(0), upto_ts=Ts(last), start=(0,), end=(1,), may_repeat=may_repeat, ddl_end=0)


def extras_of(rng: random.Random, feed: CompiledFeed, upto_ts: Ts) -> OutputRecords:
    """Return watermarks at the cut's end, and perhaps a DDL event there or before it."""
    homes = [(topic, range(count)) for topic, count in feed.partitions.items()]
    watermark = copies(homes, EncodedMessage(KEY, b"watermark"), Position(upto_ts, PositionClass.WATERMARK).encode())
    ddl_ts = Ts(upto_ts - rng.choice([0, 0, 3]))
    ddl = copies(homes, EncodedMessage(KEY, b"ddl"), Position(ddl_ts, PositionClass.DDL, ddl_ts).encode())
    return rng.choice([no_records(), watermark, watermark, join_records([watermark, ddl])])


def outcome(whole: WholeCut | None) -> tuple[Any, ...]:
    assert whole is not None
    return whole.records.to_pylist(), whole.rows, whole.flow


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**48))
def test_a_cut_that_others_have_settled_is_what_one_makes_alone(seed: int) -> None:
    rng = random.Random(seed)
    tables = tables_of(rng)
    schemas: Any = Schemas(tables)
    chunks, twice = chunks_of(rng, tables, damage=False), rng.random() < 0.5
    cut, raw = cut_of(chunks, may_repeat=twice), raw_cut(chunks, rng, twice=twice)
    kept = SharedCuts().keep(cut, raw)
    feeds = [compiled(rng, tables), compiled(rng, tables)]
    some = [f"*.{table.table}" for table in rng.sample(tables, 4) if table.table.isalnum()]
    for feed in [moved(rng, feed, name, tables) for name in "uvw" for feed in feeds] + feeds + feeds:
        rules = {
            "filter": {"rules": rng.choice([["*.*"], [f"*.{name}" for name in some if name.isalnum()] or ["*.*"]])}
        }
        own = replace(feed, filter=compile_feed(load_changefeed(CANAL, rules), "default").filter)
        extras = extras_of(rng, own, cut.upto_ts)
        try:
            alone = whole_cut(cut, RawCut(raw.records, 0), FeedProgram(schemas, own), extras, 5, 1 << 30)
        except BusError as error:
            with pytest.raises(BusError) as caught:
                whole_cut(cut, kept, FeedProgram(schemas, own), extras, 5, 1 << 30)
            assert caught.value.code == error.code
            continue
        assert outcome(whole_cut(cut, kept, FeedProgram(schemas, own), extras, 5, 1 << 30)) == outcome(alone)


class Counted:
    """A cut of some tables, and how often its rows were put in order for changefeeds that differ in their topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = random.Random(1)
        tables = tables_of(rng)[:-1]  # the last one has partitions, whose rows are run alone
        self.schemas: Any = Schemas(tables)
        chunks = chunks_of(rng, tables, damage=False)
        self.cut = cut_of(chunks, may_repeat=False)
        self.kept = SharedCuts().keep(self.cut, raw_cut(chunks, rng, twice=False))
        self.rows = sum(map(len, chunks))
        self.settled = 0

        def counted(*args: Any, **named: Any) -> Any:
            self.settled += 1
            return settle(*args, **named)

        monkeypatch.setattr(cuts, "settle", counted)

    def feed(
        self, topic: str, partitions: int = 3, more: str = "", config: dict[str, Any] | None = None
    ) -> CompiledFeed:
        """Return a changefeed of one topic."""
        uri = f"kafka://h:1/{topic}?protocol=canal-json{more}"
        feed = compile_feed(load_changefeed(uri, config or {}), "default")
        return replace(feed, force_replicate=True, partitions={topic: partitions})

    def run(self, feed: CompiledFeed, extras: OutputRecords | None = None) -> WholeCut | None:
        program = FeedProgram(self.schemas, feed)
        return whole_cut(self.cut, self.kept, program, extras or no_records(), 5, 1 << 30)


def test_a_cut_is_settled_once_for_changefeeds_that_differ_in_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    wholes = [counted.run(counted.feed(topic)) for topic in ("u", "v", "w")]
    assert counted.settled == 1
    for whole, topic in zip(wholes, "uvw", strict=True):
        assert whole is not None
        assert whole.records.column("topic").to_pylist() == [topic] * whole.records.num_rows
        assert whole.rows >= counted.rows


def test_a_cut_is_settled_anew_for_other_partitions_limits_filters_and_protocols(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    feeds = [
        counted.feed("u"),
        counted.feed("u", 4),
        counted.feed("u", more="&max-message-bytes=900000"),
        counted.feed("u", more="&enable-tidb-extension=true"),
        replace(counted.feed("u"), topic_message_bytes={"u": 800_000}),
        counted.feed("u", config={"filter": {"rules": ["s1.*"]}}),
        counted.feed("u", config={"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "ts"}]}}),
    ]
    for feed in feeds + feeds:
        counted.run(feed)
    assert counted.settled == len(feeds)


def test_a_ddl_event_between_the_rows_is_each_changefeeds_own_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    for ddl_ts in (counted.cut.upto_ts - 1, counted.cut.upto_ts):
        ddl = copies([("u", range(3))], EncodedMessage(KEY, b"ddl"), Position(Ts(ddl_ts), PositionClass.DDL).encode())
        counted.run(counted.feed("u"), ddl)
    assert counted.settled == 1


def test_messages_that_are_stored_by_a_changefeeds_own_name_and_tables_that_are_run_alone_are_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    handle = {"large-message-handle-option": "claim-check", "claim-check-storage-uri": "file:///tmp/claims"}
    config = {"sink": {"kafka-config": {"large-message-handle": handle}}}
    counted.run(counted.feed("u", more="&enable-tidb-extension=true", config=config))
    events = {"event-filters": [{"matcher": ["*.t1"], "ignore-event": ["delete"]}]}
    program = FeedProgram(counted.schemas, counted.feed("u", config={"filter": events}))
    for _ in range(2):
        whole_cut(counted.cut, counted.kept, program, no_records(), 5, 1 << 30)
    assert counted.settled == 0
    assert not program.plans.are_shared


def test_more_than_a_driver_may_hold_is_neither_settled_nor_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    program = FeedProgram(counted.schemas, counted.feed("u"))
    assert whole_cut(counted.cut, counted.kept, program, no_records(), 5, 1_000) is None


@pytest.mark.parametrize(("rows", "pauses"), [(1, 2), (100_000, 0)])
def test_a_long_cut_lets_others_in_between_and_a_short_one_does_not(
    rows: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, calls = Counted(monkeypatch), list[int]()
    monkeypatch.setattr(cuts, "TURN_ROWS", rows)
    program = FeedProgram(counted.schemas, counted.feed("u"))
    whole_cut(counted.cut, counted.kept, program, no_records(), 5, 1 << 30, lambda: calls.append(1))
    assert len(calls) == pauses


def test_a_row_that_is_lost_where_all_share_is_found_by_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    sort = order.sort_records
    monkeypatch.setattr(order, "sort_records", lambda records: sort(records).slice(1))
    for topic in ("u", "v"):
        with pytest.raises(FlowBrokenError, match=r"are lost \(1\)"):
            counted.run(counted.feed(topic))
    assert counted.settled == 1
