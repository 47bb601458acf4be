"""What a real TiDB wrote, through every real process of the bus, as an independent consumer reads it.

Three captures pull it while it is replayed: tables are created, dropped, truncated, renamed, recovered and exchanged
and partitions come and go, on whichever capture it is; and one of the captures is killed in the midst of it.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose.local.bus import LocalBus
from compose.local.live_run import demo_changefeed
from consumers.client.avro import registry_schemas
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import UpstreamId
from tests.support.processes.bus import (
    create_from_the_start,
    recorded_upstream,
    status,
    topic_names,
    topic_records,
    wait_checkpoint,
)
from tests.support.processes.cluster import Cluster, cluster
from tests.support.recorded.recording import TIDB_DATA, oracle, read_jsonl
from tests.support.topics.materialise import NO_KEY, Contents, Table, differences, explained
from tests.support.topics.messages import AvroDecoder, decode_canal_json
from tests.support.topics.validator import Validator

CANAL_WITHOUT = frozenset({"d2.t_pkadd"})
AVRO_WITHOUT = CANAL_WITHOUT | {"d1.t_all"}
"""As the demo's changefeed files leave out, and why they do: compose/local/demo/*.toml."""
COMPARED_MIN = 150
PARTITIONS = 3
SPEED = 0.5
"""Half a minute, so that DDL goes on while captures share the tables and one of them dies."""
HALF = 0.5
"""Of the steps: so much of them comes after the kill, however slow the machine."""
SHARED_MIN = 12
"""Tables at the time of the kill, of 28 in the end: half of the DDL is still to come."""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBus]:
    """A bus through which the recording has gone, with a canal-json and an Avro changefeed."""
    recording = read_recording(TIDB_DATA)
    server = RegionServer(min_ts_interval_ms=200)
    replay = Replay(server, recording)
    with server:
        server.call(replay.load())
        with cluster(tmp_path_factory.mktemp("bus"), UpstreamId("local"), server=server) as running:
            bus = running.bus
            for protocol in ("canal-json", "avro"):
                create_from_the_start(bus, demo_changefeed(protocol, bus.addresses, running.upstream))
            running.wait_registered()  # what is replayed before all have come is shared by fewer
            replaying = server.spawn(replay.run(SPEED, until=HALF))
            killed = _kill_one_that_shares(running)
            replaying.result(60)
            replaying = server.spawn(replay.run(SPEED))
            for protocol in ("canal-json", "avro"):
                wait_checkpoint(bus, f"{protocol}-demo", recording.end_ts, 400)
            replaying.result(60)
            yield bus
            assert bus.supervisor.deaths() == {killed: 1}
            statuses = [status(bus, f"{protocol}-demo") for protocol in ("canal-json", "avro")]
            assert [seen and (seen.state, seen.sorter_deaths) for seen in statuses] == [("normal", 0)] * 2


def _kill_one_that_shares(running: Cluster) -> str:
    """Wait until all captures have tables, and kill one that is not the owner; its sorters go on."""

    def shares() -> bool:
        spans = running.spans()
        return len(spans) == 3 and min(spans.values()) > 1 and sum(spans.values()) > SHARED_MIN

    running.wait(shares, "all captures share what there is")
    killed = running.other()
    running.child(killed).kill()
    return killed


@pytest.fixture(scope="module")
def canal(bus: LocalBus) -> Validator:
    """What a consumer of the canal-json topics has read."""
    upstream = recorded_upstream(after_ts=0, without=CANAL_WITHOUT)
    validator = Validator(decode_canal_json, upstream)
    validator.note_all(topic_records(bus.addresses.kafka_access, "canal"))
    return validator


def test_recording_canal_json_keeps_order_watermarks_and_every_change(bus: LocalBus, canal: Validator) -> None:
    end_ts = read_recording(TIDB_DATA).end_ts
    assert canal.complete is not None and len(canal.complete.upstream) > 17_000
    reached = status(bus, "canal-json-demo")
    assert reached is not None and reached.checkpoint_ts >= end_ts
    # Topics of tables that are gone get no more watermarks, so completeness is judged by the checkpoint.
    assert canal.finish(need_watermark=reached.checkpoint_ts, watermarks=False) == []
    alive = {check["check"].replace("`", "") for check in _checks() if check.get("point") == "final"}
    topics = {f"canal_{name.replace('.', '_')}" for name in alive - CANAL_WITHOUT - NO_KEY.keys()}
    marks = {at: ts for at, ts in canal.watermark.highest.items() if at[0] in topics}
    assert len(marks) == PARTITIONS * len(topics) > 60
    assert min(marks.values()) >= end_ts
    kinds = Counter(noted.message.kind for noted in canal.distinct())
    assert kinds["ddl"] > 90 and kinds["row"] >= len(canal.complete.upstream)


def test_recording_avro_keeps_order_and_every_change(bus: LocalBus) -> None:
    decode = AvroDecoder(registry_schemas(bus.addresses.schema_registry))
    validator = Validator(decode, recorded_upstream(after_ts=0, without=AVRO_WITHOUT))
    validator.note_all(topic_records(bus.addresses.kafka_access, "avro"))
    reached = status(bus, "avro-demo")
    assert reached is not None
    assert validator.finish(need_watermark=reached.checkpoint_ts, watermarks=False) == []


def test_recording_materialised_from_topics_is_what_select_returned(canal: Validator) -> None:
    elements: dict[str, dict[str, list[str]]] = {}
    for version in oracle("table_versions"):
        for column in version["columns"]:
            if column.get("elems"):
                elements.setdefault(f"{version['schema']}.{version['table']}", {})[column["name"]] = column["elems"]
    contents, compared, failures = Contents(), 0, list[str]()
    upcoming = iter(canal.distinct())
    noted = next(upcoming, None)
    for check in _checks():
        while noted is not None and noted.position.commit_ts <= int(check["read_ts"]):
            contents.apply(noted.message)
            noted = next(upcoming, None)
        name, result = check["check"].replace("`", ""), check["result"]
        if name in CANAL_WITHOUT or explained(name, contents):
            continue
        wrong = differences(
            contents.tables.get(name, Table()),
            result["columns"],
            result["types"],
            result["rows"],
            elements.get(name, {}),
        )
        failures += [what for what in (f"{name}: {text}" for text in wrong) if not explained(what, contents)]
        compared += 1
    assert failures == []
    assert compared >= COMPARED_MIN


def test_recording_topics_are_one_per_table_with_the_asked_partitions(bus: LocalBus) -> None:
    canal, avro = (topic_names(bus.addresses.kafka_access, f"{name}_") for name in ("canal", "avro"))
    tables = {f"{row['schema']}_{row['table']}" for row in oracle("mounted")}
    assert {f"canal_{table}" for table in tables - {"d2_t_pkadd"}} <= set(canal)
    assert {f"avro_{table}" for table in tables - {"d2_t_pkadd", "d1_t_all"}} <= set(avro)


def _checks() -> list[dict[str, Any]]:
    lines = [line for line in read_jsonl(Path(TIDB_DATA) / "sql.jsonl.zst") if line.get("check") and line.get("result")]
    return sorted(lines, key=lambda line: int(line["read_ts"]))
