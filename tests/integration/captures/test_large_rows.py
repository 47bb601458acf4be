"""Rows larger than any record of Kafka: from TiKV's event feed over the raw log, in parts, into a sink's topic."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compose.capture.puller_figures import figures_of
from compose.capture.replicated_tables import replicated_tables
from compose.kafka_follower import TopicFollower
from compose.operator.decode import decode_record
from compose.stack.local import Addresses
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore
from consumers.control.core.changefeeds.errors import TABLE_HELD
from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from consumers.control.core.frontier.held_tables import Holding
from consumers.control.log.raw_log import RetainedFrontier
from consumers.control.owner.held_feeds import WARN_AFTER_S, HeldFeeds, held_tables
from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.sink_source import KafkaSource
from edges.kafka.offsets import TopicReader
from producers.errors import RowTooLargeError
from producers.pull.puller import Puller
from producers.region_server.core.store.commands import Mutation
from producers.region_server.server import RegionServer
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_producer_options
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.topic import sorter_config
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import Cut, cut_between, frontier_for
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords
from sorters.cut.record_window import RecordWindow
from sorters.cut.small_cut import SmallCut
from sorters.cut.worker import CutCounts, FeedProgram
from tests.integration.captures.test_puller import wait_until
from tests.support.control.lasting_session import lasting_session
from tests.support.rawlog.raw_log import create_topic, read_topic
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info

LARGE, BEYOND, PLAIN = TableId(112), TableId(114), TableId(116)
MIB = 1 << 20
TEXT: dict[str, Any] = {"tp": 252, "flen": 1 << 30, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
NOTHING = OUTPUT_SCHEMA.empty_table()
WATERMARK_TS = Ts(1 << 62)


def put(table: TableId, size: int, letter: bytes = b"x") -> Mutation:
    return Mutation("put", row_key(table, 1), encode_row_v2({2: letter * size}))


def commit(server: RegionServer, mutation: Mutation) -> Ts:
    transaction = server.begin(mutation)

    def work(_: object) -> Ts:
        transaction.prewrite()
        return transaction.commit()

    return server.act(work)


@dataclasses.dataclass(frozen=True)
class Landed:
    """A large row and its update, a row that is too large, and a plain one: the frontier ``first``, before all, and
    ``last``, after all but the one.
    """

    first: FrontierRecord
    last: FrontierRecord
    refused_ts: Ts
    """Of the row that is too large."""
    stalls: dict[str, str]
    holding: FrontierRecord
    """What the owner makes of it meanwhile."""
    report: LandingReport
    """By what the capture tells it."""


def land(stack: Addresses, upstream: UpstreamId, errors: list[BusError]) -> Landed:
    """Let a capture's puller land them."""
    tables = {TableSpan.of_table(table): CaptureId("c") for table in (LARGE, BEYOND, PLAIN)}
    ddl = DdlReport(landed_ts=Ts(1 << 62), end=0)
    with RegionServer(stores=1, min_ts_interval_ms=100) as server:
        start_ts = server.tso()
        puller = Puller(
            capture=CaptureId("c"),
            upstream=upstream,
            pd_address=server.pd_address,
            kafka=stack.kafka_access,
            schema_registry=stack.registry_access,
            on_fatal=errors.append,
        )
        first = first_record(1, start_ts, puller.partitions)
        puller.start()
        puller.assign(dict.fromkeys(tables, start_ts))
        commit(server, put(BEYOND, 10))
        refused_ts = commit(server, put(BEYOND, 200 * 1000 * 1000))
        commit(server, put(LARGE, 30 * MIB, b"a"))
        commit(server, put(LARGE, 30 * MIB, b"b"))
        end_ts = commit(server, put(PLAIN, 10))

        def landed() -> dict[TableId, Ts]:
            return {span.table_id: ts for span, ts in puller.report().landed_ts.items()}

        wait_until(lambda: min(landed()[LARGE], landed()[PLAIN]) >= end_ts, errors, 120)
        wait_until(lambda: "row_too_large" in {span.kind for span in puller.stats().stalls}, errors)
        assert landed()[BEYOND] < end_ts
        stalls = {span.kind: span.reason for span in puller.stats().stalls}
        report = dataclasses.replace(puller.report(), figures=figures_of(puller.stats()))
        holding = advance(first, FrontierInputs({CaptureId("c"): report}, ddl, tables), holding=Holding(lag=1))
        puller.remove([TableSpan.of_table(BEYOND)])
        del tables[TableSpan.of_table(BEYOND)]
        last = advance(first, FrontierInputs({CaptureId("c"): puller.report()}, ddl, tables))
        puller.stop()
    return Landed(first, last, refused_ts, stalls, holding, report)


def check_changefeeds_are_warned(stack: Addresses, cluster: str, landed: Landed) -> None:
    """The changefeed with the table says in its own status which row it is; the one without the table says nothing."""
    clock = [0.0]
    feeds = HeldFeeds(replicated_tables, lambda: clock[0])
    for clock[0] in (0.0, 2 * WARN_AFTER_S):
        held = held_tables(landed.holding, store().newest_of, {CaptureId("c"): landed.report})
        feeds.note(held, landed.holding.resolved_ts, ())
    with lasting_session(stack.zookeeper_access) as session:
        paths, window = ZkPaths(cluster), RetainedFrontier(Ts(1), landed.first.resolved_ts)
        changefeeds = ChangefeedStore(session, paths)
        for name, rules in (("with", ["*.*"]), ("without", ["*.*", f"!test.t{BEYOND}"])):
            request = ChangefeedRequest(
                upstream=UpstreamId("u"),
                sink_uri="kafka://127.0.0.1:9092/t?protocol=canal-json",
                config={"filter": {"rules": rules}},
                changefeed_id=name,
                start_ts=landed.first.resolved_ts,
            )
            changefeeds.create(request, window)
        FeedStates(session, paths, UpstreamId("u"), held=feeds.why).look()
        statuses = {name: changefeeds.status(name) for name in ("with", "without")}
    assert statuses["with"] is not None and statuses["without"] is not None
    assert (statuses["without"].state, statuses["without"].error) == ("normal", None)
    assert statuses["with"].state == "warning"
    error = statuses["with"].error
    assert error is not None
    assert error.code == TABLE_HELD
    refusal = (RowTooLargeError.code, f"key={row_key(BEYOND, 1).hex()}", f"commit_ts={landed.refused_ts}")
    for words in (f"test.t{BEYOND}", *refusal, "bytes=200000", "filter.rules"):
        assert words in error.message, error.message


def store() -> SchemaStore:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **TEXT)]
    placed = [spec | {"offset": at} for at, spec in enumerate(columns)]
    infos = [table_info(table, f"t{table}", columns=placed) for table in (LARGE, BEYOND, PLAIN)]
    return snapshot(("test", 1, infos))


def program(topic: str, uri: str, large: dict[str, str]) -> tuple[FeedProgram, dict[str, Any]]:
    kafka = {"large-message-handle": large} if large else {}
    config = load_changefeed(uri, {"sink": {"kafka-config": kafka}})
    feed = compile_feed(config, "default", {topic: 1}, changefeed_id="f")
    sink = {"enable.idempotence": True, "acks": -1, "message.max.bytes": config.kafka.max_message_bytes}
    return FeedProgram(store(), feed), sink


def database_program(stack: Addresses, topic: str) -> tuple[FeedProgram, dict[str, Any]]:
    """Return what a sorter runs with whose rows go to a database, over a topic that takes 1 MiB."""
    uri = "mysql://u:p@h:3306/"
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, config={}, start_ts=Ts(1))
    config = sorter_config(load_changefeed(uri, {}), info, stack.kafka)
    feed = compile_feed(dataclasses.replace(config, uri=dataclasses.replace(config.uri, default_topic=topic)), "n")
    feed = dataclasses.replace(feed, partitions={topic: 1}, topic_message_bytes={topic: MIB - 128})
    return FeedProgram(store(), feed), librdkafka_producer_options(config)


def applied(stack: Addresses, topic: str) -> list[tuple[str, int, bytes]]:
    """Return the rows that a processor reads from the topic: table, op, literal."""
    queue, rows = PartitionQueue(0, start_position(Ts(0)), 0), list[tuple[str, int, bytes]]()
    source = KafkaSource(stack.kafka_access, topic, "group")
    source.start({0: 0})

    def is_done() -> bool:
        for record in source.poll(0.1):
            assert len(record.value) <= MIB
            queue.feed(position=record.position, offset=record.offset, key=record.key, value=record.value)
        while (claim := queue.claim(1, bytes_max=MIB)) is not None:
            rows.extend((form.table, row.op, row.row) for form, row in claim.rows)
            queue.arrived()
        return queue.applied_ts == WATERMARK_TS

    wait_until(is_done, [], 120)
    source.close()
    return rows


def small_cut(stack: Addresses, upstream: str, sink: dict[str, Any]) -> SmallCut:
    """Return what runs cuts of this upstream on the driver."""
    kafka, topics = {"bootstrap.servers": stack.kafka}, raw_topics(UpstreamId(upstream))
    return SmallCut(
        RecordWindow.maker(kafka, topics.region_events),
        lambda stopped: TopicReader(kafka, topics.images, stopped=stopped),
        {**sink, **kafka},
    )


def run_small(small: SmallCut, cut: Cut, program: FeedProgram, extras: OutputRecords) -> CutCounts | None:
    raw = small.read(cut, 1 << 30)
    assert raw is not None
    return small.run(cut, raw, program, extras, 1)


def check_database_rows(stack: Addresses, small: SmallCut, cut: Cut, topic: str) -> None:
    """Rows to a database take the same way, in parts."""
    ready, _ = database_program(stack, topic)
    position = Position(WATERMARK_TS, PositionClass.WATERMARK).encode()
    columns = [[topic], [0], [None], [b"{}"], [position]]
    watermark = pa.table(dict(zip(OUTPUT_SCHEMA.names, columns, strict=True)), schema=OUTPUT_SCHEMA)
    assert run_small(small, cut, ready, watermark) is not None
    inserted, updated, plain = (row for row in applied(stack, topic) if row[0] != "t114")
    assert inserted == ("t112", RowOp.INSERT, b"(1,'%s')" % (b"a" * (30 * MIB)))
    assert updated == ("t112", RowOp.UPDATE, b"(1,'%s')" % (b"b" * (30 * MIB)))
    assert plain[:2] == ("t116", RowOp.INSERT)


def test_rows_of_tens_of_mib_land_and_come_out_and_a_row_beyond_tidb_stops_its_table_alone(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    upstream, topic, errors = UpstreamId(fresh_name("u")), fresh_name("sink"), list[BusError]()
    landed = land(stack, upstream, errors)
    first, last = landed.first, landed.last
    for words in ("row is larger than any", "table_id=114", "bytes=200000", "filter.rules"):
        assert words in landed.stalls["row_too_large"]
    check_changefeeds_are_warned(stack, fresh_name("cluster"), landed)
    raw_topic = f"tidebus.{upstream}.region-events"
    with TopicFollower(stack.kafka_access, raw_topic) as follower:
        lines = [line for record in follower.read_to_end() for line in decode_record(raw_topic, record)]
    # The update has the old value, too. They stand in any order, and what was scanned may stand there twice.
    assert {line["parts"] for line in lines if line.get("part") == 0 and line["table_id"] == LARGE} == {2, 4}
    start, end = (frontier_for(record, lambda _: False) for record in (first, last))
    cut = cut_between(start, end, start.resolved_ts, end.resolved_ts)
    create_topic(stack.kafka, topic, 1)
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true"
    with closing(small_cut(stack, upstream, {})) as small:
        refused, _ = program(topic, uri, {})
        with pytest.raises(SinkMessageTooLargeError) as caught:
            run_small(small, cut, refused, NOTHING)
    fields = caught.value.fields
    assert (fields["table"], fields["key"]) == ("test.t112", row_key(LARGE, 1).hex())
    assert fields["bytes"] > 30 * MIB > fields["bytes_max"] == 10 * MIB  # type: ignore[operator]
    assert fields["topic"] == topic
    assert "large-message-handle-option" in str(caught.value)
    claim = {"large-message-handle-option": "claim-check", "claim-check-storage-uri": f"file://{tmp_path}"}
    claimed, sink = program(topic, uri, claim)
    with closing(small_cut(stack, upstream, sink)) as small:
        done = run_small(small, cut, claimed, NOTHING)
    assert done is not None
    said = [json.loads(record.value or b"") for record in read_topic(stack.kafka, topic)]
    assert [(row["table"], row["type"]) for row in said if row["table"] != "t114"] == [
        ("t112", "INSERT"),
        ("t112", "UPDATE"),
        ("t116", "INSERT"),
    ]
    stored = [
        Path(row["_tidb"]["claimCheckLocation"].removeprefix("file://")) for row in said if row["table"] == "t112"
    ]
    assert [file.stat().st_size > 30 * MIB for file in stored] == [True, True]
    between = fresh_name("between")
    create_topic(stack.kafka, between, 1, {"max.message.bytes": str(MIB)})
    _, sink = database_program(stack, between)
    with closing(small_cut(stack, upstream, sink)) as small:
        check_database_rows(stack, small, cut, between)
    assert not errors
