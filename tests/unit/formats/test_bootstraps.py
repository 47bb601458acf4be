"""simple's BOOTSTRAP messages: each row's schema is told before the row, and every table's again each interval."""

import base64
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.foresight.dry_run import prepare
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts, compose_ts
from schemas.sink.position import PositionClass, decode_position
from sorters.core.cut.bootstrap_pace import due_tables, last_tick
from sorters.core.feed.companions import bootstrap_records, start_bootstraps
from sorters.core.feed.feed import CompiledFeed, compile_feed
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.support.recorded.job_rows import EARLY_TS, EARLY_VERSIONS, is_early_row
from tests.support.recorded.recording import oracle

DATA = Path(__file__).parents[2] / "data" / "tidb"
START_MS = 1_760_000_000_000
INTERVAL_MS = 120_000


def ts(ms: int) -> Ts:
    return compose_ts(START_MS + ms)


def recorded(uri: str, sink: dict[str, Any], every_ms: int | None) -> list[dict[str, Any]]:
    # The oracle's rows were encoded one by one and not split.
    settings = {"sink": {"kafka-config": {"output-raw-change-event": True}, **sink}}
    config = load_changefeed(f"kafka://127.0.0.1:9092/default?protocol=simple&{uri}", settings)
    lines = list(prepare(DATA, config, refused=lambda _: None, watermark_every_ms=every_ms).records())
    return [line | {"value": base64.b64decode(line["value"])} for line in lines]


def with_our_versions(message: bytes) -> bytes:
    for theirs, ours in EARLY_VERSIONS.items():
        message = message.replace(b"%d" % theirs, b"%d" % ours)
    return message


def by_commit_ts(messages: Iterable[bytes]) -> dict[int, bytes]:
    parts = (re.split(rb'"commitTs":(\d+)', message) for message in messages)
    return {int(ts): before + after for before, ts, after in parts}


def test_dry_run_simple_equals_ticdcs_rows_and_ddl() -> None:
    def masked(message: bytes) -> bytes:
        return re.sub(rb'"buildTs":\d+', b'"buildTs":?', with_our_versions(message), count=1)

    other = {"watermark", "bootstrap"}
    ours = [line for line in recorded("partition-num=1", {}, None) if line["op"] not in other]
    theirs = [line for line in oracle("encoded/simple-json") if line["op"] not in other]
    assert len(ours) == len(theirs) == 17_651 + 97
    said = Counter(masked(line["value"]) for line in ours if not is_early_row(line))
    wanted = Counter(masked(base64.b64decode(line["value"])) for line in theirs if not is_early_row(line))
    early, done = (by_commit_ts(side.elements()) for side in (said - wanted, wanted - said))
    assert {EARLY_TS[ts]: message for ts, message in done.items()} == early and early.keys() == set(EARLY_TS.values())


TOPICS = {"dispatchers": [{"matcher": ["*.*"], "topic": "{schema}_{table}", "partition": "index-value"}]}
Told = tuple[str, str, int]


@cache
def recorded_in_topics(every_ms: int | None) -> list[dict[str, Any]]:
    """Return the messages with a topic a table, so that the DDL of a rename goes to another topic than rows after."""
    return recorded("partition-num=3", TOPICS, every_ms)


@pytest.mark.parametrize("every_ms", [None, 5_000])
@pytest.mark.parametrize("tellers", ["tableSchema of any message", "bootstraps alone"])
def test_every_recorded_row_has_its_schema_told_before_it_in_its_partition(every_ms: int | None, tellers: str) -> None:
    schemas_sent: dict[tuple[str, int], set[Told]] = defaultdict(set)
    rows = Counter[str]()
    for line in recorded_in_topics(every_ms):
        message, home = json.loads(line["value"]), (line["topic"], line["partition"])
        schema = message.get("tableSchema")
        if schema and (line["op"] == "bootstrap" or tellers != "bootstraps alone"):
            schemas_sent[home].add((schema["schema"], schema["table"], schema["version"]))
        if line["op"] in {"insert", "update", "delete"}:
            rows[line["op"]] += 1
            assert (message["database"], message["table"], message["schemaVersion"]) in schemas_sent[home], line
    assert rows == {"insert": 10_368, "update": 6_841, "delete": 442}


def test_recorded_bootstraps_bring_every_schema_that_ticdc_brought() -> None:
    lines = [json.loads(line["value"]) for line in recorded_in_topics(None) if line["op"] == "bootstrap"]
    ours = {json.dumps(line["tableSchema"]) for line in lines}
    wanted = {
        json.dumps(json.loads(with_our_versions(base64.b64decode(line["value"])))["tableSchema"])
        for line in oracle("encoded/simple-json")
        if line["op"] == "bootstrap"
    }
    assert wanted <= ours
    assert all(line["commitTs"] == 0 and line["type"] == "BOOTSTRAP" for line in lines)


def feed(text: str = "") -> CompiledFeed:
    config = load_changefeed("kafka://h:1/t?protocol=simple", f"[sink]\n{text}", file="feed.toml")
    return compile_feed(config, "default", {"t": 2})


def sent(compiled: CompiledFeed, after_ms: int, upto_ms: int, *, at_start: bool = False) -> list[tuple[int, Ts, int]]:
    """Return (table id, ts, partition) of the bootstraps of a cut over two tables and a third that comes at 50 ms."""
    store = snapshot(("d", 1, [table_info(100, "a"), table_info(102, "b")]), ts=ts(0))
    info = table_info(200, "c")
    store.apply(job(ts(50), DdlType.CREATE_TABLE, schema_id=1, table_id=200, query="CREATE TABLE c", table_info=info))
    records = bootstrap_records(store, ts(after_ms), ts(upto_ms), compiled, 1, at_start=at_start)
    positions = [decode_position(header) for header in records.column("position").to_pylist()]
    assert {position.position_class for position in positions} <= {PositionClass.BOOTSTRAP}
    partitions = records.column("partition").to_pylist()
    return sorted(
        (int.from_bytes(at.key, "big"), at.commit_ts, partition)
        for at, partition in zip(positions, partitions, strict=True)
    )


def test_bootstraps_at_the_start_are_of_every_table_in_every_partition() -> None:
    assert sent(feed(), 0, 1, at_start=True) == [
        (table, ts(0), partition) for table in (100, 102) for partition in (0, 1)
    ]
    assert sent(feed(), 0, 1) == []


@pytest.mark.parametrize("tables_max", [1, 2, 500])
def test_start_bootstraps_in_parts_of_any_size_are_those_of_the_start_in_their_order(tables_max: int) -> None:
    tables = [table_info(number, f"t{number}") for number in (300, 100, 102)]
    store, compiled = snapshot(("d", 1, tables), ts=ts(0)), feed()
    parts = list(start_bootstraps(store, ts(0), compiled, 1, tables_max=tables_max))
    whole = bootstrap_records(store, ts(0), ts(1), compiled, 1, at_start=True)
    assert len(parts) == -(-len(tables) // tables_max)
    rows = [row for part in parts for row in part.to_pylist()]
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
    assert rows == sorted(whole.to_pylist(), key=lambda row: row["position"])


@given(
    tables=st.lists(st.integers(1, (1 << 48) - 1), unique=True, max_size=20),
    after_ts=st.integers(0, 1 << 58),
    length=st.integers(0, 1 << 40),
    interval_ms=st.integers(1, 1 << 34),
)
def test_due_tables_of_any_cut_are_those_that_have_a_tick_in_it(
    tables: list[int], after_ts: int, length: int, interval_ms: int
) -> None:
    cut = (Ts(after_ts), Ts(after_ts + length))
    due = due_tables(np.array(tables, np.int64), *cut, interval_ms).tolist()
    assert due == [table for table in tables if last_tick(TableId(table), *cut, interval_ms) is not None]


def test_bootstraps_follow_the_ddl_that_made_a_table() -> None:
    assert sent(feed(), 49, 51) == [(200, ts(50), 0), (200, ts(50), 1)]


def test_bootstraps_come_once_an_interval_for_each_table_at_its_own_tick() -> None:
    bootstraps = sent(feed(), 60, 60 + INTERVAL_MS)
    assert [(table, partition) for table, _, partition in bootstraps] == [
        (t, p) for t in (100, 102, 200) for p in (0, 1)
    ]
    assert len({tick for _, tick, _ in bootstraps}) == 3
    assert all(ts(60) < tick <= ts(60 + INTERVAL_MS) for _, tick, _ in bootstraps)


def test_bootstraps_to_the_first_partition_only_or_not_at_all_as_the_settings_say() -> None:
    first = sent(feed("send-bootstrap-to-all-partition = false"), 0, 60, at_start=True)
    assert first == [(100, ts(0), 0), (102, ts(0), 0), (200, ts(50), 0)]
    assert sent(feed("send-bootstrap-interval-in-sec = 0"), 0, 60, at_start=True) == []
    assert sent(feed("send-bootstrap-in-msg-count = 0"), 0, 60, at_start=True) == []
    assert feed().bootstraps is not None
    assert feed("send-bootstrap-interval-in-sec = 0").bootstraps is None


@given(
    table=st.integers(1, 1 << 40),
    start=st.integers(0, 1 << 40),
    steps=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    interval_ms=st.integers(1, 1000),
)
def test_ticks_of_consecutive_cuts_are_those_of_the_whole_one_a_cut(
    table: int, start: int, steps: list[int], interval_ms: int
) -> None:
    ends = [start]
    for step in steps:
        ends.append(ends[-1] + step)
    cuts = [(compose_ts(a, 3), compose_ts(b, 3)) for a, b in pairwise(ends)]
    ticks = [last_tick(TableId(table), *cut, interval_ms) for cut in cuts]
    for (after_ts, upto_ts), tick in zip(cuts, ticks, strict=True):
        assert tick is None or after_ts < tick <= upto_ts
        if upto_ts - after_ts >= compose_ts(interval_ms):
            assert tick is not None
    last = max((tick for tick in ticks if tick is not None), default=None)
    assert last == last_tick(TableId(table), cuts[0][0], cuts[-1][1], interval_ms)
