"""``kill -9`` of the sorter service in mid-epoch, the capture in mid-landing and the broker, while rows keep coming.

The upstream is the region server, in this process: what its store holds is the truth that the topics are compared with.
Each test compares all that was written so far, so the one that writes most comes last but for the one of a late
changefeed, before which the others are removed.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from compose.kafka_follower import TopicFollower
from compose.local.bus import BusOptions, LocalBus
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.log.raw_log import retained_frontier
from edges.kafka.access import KafkaAccess
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, UpstreamId
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import PositionClass, decode_position
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import MET_S
from tests.support.database.state_writer import SCHEMA, StateWriter
from tests.support.processes.bus import (
    create_from_the_start,
    sorter_pid,
    status,
    stored_upstream,
    topic_count,
    topic_ends,
    topic_records,
    wait_checkpoint,
    wait_until,
)
from tests.support.processes.secure_bus import SECURE, made_secrets, region_server_tls, with_parameters
from tests.support.topics.imaged_topics import ImagedTopics, has_begun, is_whole, wait_whole
from tests.support.topics.messages import decode_canal_json
from tests.support.topics.validator import Validator

FEED, TOPIC = "kill", "kill_"
NEIGHBOUR, NEIGHBOUR_TOPIC = "near", "near_"
"""Another changefeed in the same service, which nobody pauses: it is killed with the first one."""
UPSTREAM = UpstreamId("kill")
ROWS_PER_S = 2_000.0
BACKLOG_ROWS = 60_000
"""So many that a sorter writes them for longer than a look at the topics takes, and can be met in the middle."""
ATTEMPTS_MAX = 4
"""To meet it there; mostly the first one does."""
OUTAGE_ROWS = 4_000
"""Written from the first to the last while the broker is away: two seconds of rows."""
GROWING_ROWS = 4_000
PARTITIONS_GROWN = 40
"""So many that hardly a table of a capture that knows them stays in the first eight."""
LATE, LATE_TOPIC = "imaged", "imaged_"
IMAGED_ROWS, IMAGED_ROWS_PER_S = 100_000, 300.0
"""Of the largest table before its changefeed comes, and what is written meanwhile."""
SCANNED_ROWS_PER_S = 20_000
"""So that an image of so many rows takes some seconds, and can be met in the middle."""
CATCH_UP_S = 240.0
"""For a restarted part to be back and the checkpoint to pass everything; a loaded two-core machine needs a minute."""


@dataclass
class Chaos:
    """A running bus over a region server of this process."""

    bus: LocalBus
    server: RegionServer
    start_ts: int
    """The changefeed's."""
    neighbour_start_ts: int
    generators: list[Generator] = field(default_factory=list)

    def write(self, rows: int, rows_per_s: float = ROWS_PER_S) -> tuple[Generator, "Future[None]"]:
        """Let a generator write ``rows`` row changes into a schema of its own; 0 a second: as fast as it can."""
        number = len(self.generators) + 1
        options = GeneratorOptions(schema=f"gen{number}", rows_per_s=rows_per_s, rows_max=rows, tables=3, seed=number)
        generator = Generator(self.server, options)
        self.generators.append(generator)
        return generator, self.server.spawn(generator.run())

    def raw_records(self) -> int:
        """Return how many records the raw log's row topic holds."""
        with TopicFollower(self.bus.addresses.kafka_access, raw_topics(UPSTREAM).region_events) as follower:
            return sum(high for _, high in follower.bounds().values())

    def landed_ts(self) -> int:
        """Return up to which ts the raw log is whole."""
        window = retained_frontier(self.bus.addresses.kafka_access, raw_topics(UPSTREAM))
        return 0 if window is None else window.newest_ts

    def settle(self, generator: Generator, writing: "Future[None]") -> None:
        """Wait until everything written is in the topics."""
        wait_until(writing.done, CATCH_UP_S, "generator", self.bus)
        writing.result()
        for name in (FEED, NEIGHBOUR):
            wait_checkpoint(self.bus, name, generator.last_commit_ts, CATCH_UP_S)

    def validated(self, upto_ts: int) -> Validator:
        """Read all topics of both changefeeds and hold them against the region server's store; return the first's."""
        self._validated(NEIGHBOUR_TOPIC, self.neighbour_start_ts, upto_ts)
        return self._validated(TOPIC, self.start_ts, upto_ts)

    def _validated(self, prefix: str, start_ts: int, upto_ts: int) -> Validator:
        names = {
            table.table_id: f"gen{number}.{table.shape.name}_{position}"
            for number, generator in enumerate(self.generators, 1)
            for position, table in enumerate(generator._tables, 1)
        }
        stored = self.server.act(lambda store: stored_upstream(store, names))
        upstream = [change for change in stored if change.commit_ts > start_ts]
        validator = Validator(decode_canal_json, upstream)
        validator.note_all(topic_records(self.bus.addresses.kafka_access, prefix))
        assert len(upstream) > 1_000
        assert validator.finish(need_watermark=upto_ts) == []
        return validator


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    folder = tmp_path_factory.mktemp("kill")
    secrets = made_secrets(folder)
    with RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=region_server_tls(secrets))) as server:
        # Makes what TiDB's own bootstrap would have made; a capture waits for no less.
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(
            data_dir=folder,
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=secrets,
            capture_arguments=("--image-rows-per-second", str(SCANNED_ROWS_PER_S), "--sorter-spark-on-demand"),
        )
        with LocalBus(options) as bus:
            start_ts = create_from_the_start(bus, requested(bus, FEED, TOPIC))
            yield Chaos(bus, server, start_ts, create_from_the_start(bus, requested(bus, NEIGHBOUR, NEIGHBOUR_TOPIC)))


def requested(bus: LocalBus, name: str, prefix: str) -> ChangefeedRequest:
    """Return a changefeed with a topic for each table."""
    uri = f"kafka://{bus.addresses.kafka}/{prefix}ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    dispatch = {"matcher": ["*.*"], "topic": prefix + "{schema}_{table}", "partition": "index-value"}
    return ChangefeedRequest(
        upstream=UPSTREAM,
        sink_uri=with_parameters(uri, bus.sink_parameters),
        config={"sink": {"dispatchers": [dispatch]}},
        changefeed_id=name,
    )


def is_epoch_open(kafka: KafkaAccess, checkpoint_ts: int, ends: Mapping[tuple[str, int], int]) -> bool:
    """Tell whether the topics held, up to these ends, rows above a checkpoint and above all watermarks: the epoch was
    cut in two.

    Args:
        checkpoint_ts: from before the epoch.
    """
    newest = dict.fromkeys(PositionClass, 0)
    for record in topic_records(kafka, TOPIC):
        if record.position is not None and record.offset < ends.get((record.topic, record.partition), 0):
            position = decode_position(record.position)
            newest[position.position_class] = max(newest[position.position_class], position.commit_ts)
    return newest[PositionClass.ROW] > max(checkpoint_ts, newest[PositionClass.WATERMARK])


def kill_sorter_in_mid_epoch(chaos: Chaos, rows: int) -> bool:
    """Kill the service when it begins to write what has piled up in a pause; tell whether it had not written all."""
    kafka = chaos.bus.addresses.kafka_access

    def feed_pid() -> int | None:
        return sorter_pid(chaos.bus, FEED)

    with lasting_session(chaos.bus.addresses.zookeeper_access) as session:
        control = ChangefeedControl(session, chaos.bus.zk_paths)
        control.pause(FEED)
        wait_until(lambda: feed_pid() is None, CATCH_UP_S, "the sorter ends", chaos.bus)
        generator, writing = chaos.write(rows, rows_per_s=0)
        wait_until(writing.done, CATCH_UP_S, "generator", chaos.bus)
        wait_until(lambda: chaos.landed_ts() >= generator.last_commit_ts, CATCH_UP_S, "all rows land", chaos.bus)
        before, paused_at = topic_count(kafka, TOPIC), status(chaos.bus, FEED)
        assert paused_at is not None
        control.resume(FEED)
    wait_until(lambda: feed_pid() is not None, CATCH_UP_S, "a sorter begins", chaos.bus, longest_s=MET_S)
    killed = feed_pid()
    assert killed is not None
    assert killed == sorter_pid(chaos.bus, NEIGHBOUR), "one service runs both"

    def has_begun_to_write() -> bool:
        """Let the service run for as long as one look takes, and look again while it stands: it cannot outrun us."""
        os.killpg(killed, signal.SIGCONT)
        topic_count(kafka, TOPIC)
        os.killpg(killed, signal.SIGSTOP)
        return topic_count(kafka, TOPIC) > before + 500  # above the few events that create the tables

    wait_until(has_begun_to_write, CATCH_UP_S, "rows are written", chaos.bus, longest_s=MET_S)  # it stands meanwhile
    os.killpg(killed, signal.SIGKILL)
    # Who comes next writes on while all is read, so that where the topics ended is asked for first.
    is_cut = is_epoch_open(kafka, paused_at.checkpoint_ts, topic_ends(kafka, TOPIC))
    chaos.settle(generator, writing)
    wait_until(lambda: feed_pid() not in (None, killed), CATCH_UP_S, "the next sorter", chaos.bus)
    return is_cut


def test_capture_killed_in_mid_landing_loses_nothing(chaos: Chaos) -> None:
    generator, writing = chaos.write(16_000)
    for _ in range(2):
        landed = chaos.raw_records()
        wait_until(lambda landed=landed: chaos.raw_records() > landed, CATCH_UP_S, "rows land", chaos.bus)  # type: ignore[misc]
        chaos.bus.processes["capture"].kill()
        wait_until(chaos.bus.processes["capture"].is_running, CATCH_UP_S, "capture is back", chaos.bus)
    chaos.settle(generator, writing)
    chaos.validated(generator.last_commit_ts)
    assert chaos.bus.supervisor.deaths()["capture"] == 2


def test_broker_killed_while_everything_writes_loses_nothing(chaos: Chaos) -> None:
    generator, writing = chaos.write(16_000)
    landed = chaos.raw_records()
    wait_until(lambda: chaos.raw_records() > landed, CATCH_UP_S, "rows land", chaos.bus)
    chaos.bus.part("kafka").kill()
    late_generator, late_writing = chaos.write(OUTAGE_ROWS)
    wait_until(late_writing.done, CATCH_UP_S, "rows are written without a broker")
    chaos.bus.restart_part("kafka")
    chaos.settle(generator, writing)
    chaos.settle(late_generator, late_writing)
    chaos.validated(max(generator.last_commit_ts, late_generator.last_commit_ts))


@pytest.mark.skipif(SECURE, reason="no role of the bus may add partitions")
def test_raw_topic_that_grows_under_capture_and_sorter_has_rows_of_its_new_partitions_sorted(chaos: Chaos) -> None:
    chaos.settle(*chaos.write(500))
    topic, before = raw_topics(UPSTREAM).region_events, sorter_pid(chaos.bus, FEED)
    assert before is not None
    with TopicFollower(chaos.bus.addresses.kafka_access, topic) as follower:
        known = len(follower.bounds())
    generator, writing = chaos.write(GROWING_ROWS)
    admin = AdminClient({**chaos.bus.addresses.kafka_access.config(), "log_level": 0})
    admin.create_partitions([NewPartitions(topic, PARTITIONS_GROWN)])[topic].result(30)
    chaos.settle(generator, writing)
    # The first capture lands in those that it knows; one that comes now knows all, and gets its share of the tables.
    chaos.bus.start_capture("capture 2", "--sorter-master", "none")  # or the owner would spread changefeeds over both

    def grown() -> int:
        with TopicFollower(chaos.bus.addresses.kafka_access, topic) as follower:
            return sum(high for number, (_, high) in follower.bounds().items() if number >= known)

    for _ in range(ATTEMPTS_MAX):
        generator, writing = chaos.write(GROWING_ROWS)
        chaos.settle(generator, writing)
        if grown():
            break
    assert grown() > 0, "nobody landed in the new partitions"
    assert sorter_pid(chaos.bus, FEED) == before, "one sorter has seen the topic grow"
    chaos.validated(generator.last_commit_ts)


def test_sorter_killed_in_mid_epoch_loses_nothing_and_repeats_the_same(chaos: Chaos) -> None:
    warm, writing = chaos.write(2_000)
    chaos.settle(warm, writing)
    attempts = 1
    while not kill_sorter_in_mid_epoch(chaos, rows=BACKLOG_ROWS):
        attempts += 1
        assert attempts <= ATTEMPTS_MAX, "the sorter was never met in mid-epoch"
    validator = chaos.validated(chaos.generators[-1].last_commit_ts)
    cut_topics = f"{TOPIC}gen{len(chaos.generators)}_"
    rows = [
        (noted.partition, noted.position)
        for noted in validator.noted
        if noted.message.kind == "row" and noted.record.topic.startswith(cut_topics)
    ]
    assert len(rows) > len(set(rows)), "the epoch was cut in two, so its first half stands twice"
    after = status(chaos.bus, FEED)
    assert after is not None
    # Named as what the service died of is who computed; whose cut Spark runs, or waits for the broker, is not.
    assert after.sorter_deaths <= 1, "a user who resumes begins the count anew"


def test_image_of_a_large_table_is_the_source_at_two_watermarks_though_capture_and_sorter_die(chaos: Chaos) -> None:
    bus = chaos.bus
    with lasting_session(bus.addresses.zookeeper_access) as session:
        for name in (FEED, NEIGHBOUR):  # all that they wrote is compared, and nobody waits for what they write of this
            ChangefeedControl(session, bus.zk_paths).remove(name)
    writer = StateWriter(chaos.server, rows_per_s=IMAGED_ROWS_PER_S)
    chaos.server.spawn(writer.load((("large", "int", IMAGED_ROWS), ("small", "int", 1_000)))).result(CATCH_UP_S)
    writing = chaos.server.spawn(writer.run())
    request = requested(bus, LATE, LATE_TOPIC)
    config = {**request.config, "initial": "snapshot", "filter": {"rules": [f"{SCHEMA}.*"]}}
    bus.create_changefeed(replace(request, config=config))
    wait_until(lambda: sorter_pid(bus, LATE) is not None and has_begun(bus, LATE), CATCH_UP_S, "image has begun", bus)
    killed = sorter_pid(bus, LATE)
    assert killed is not None
    os.killpg(killed, signal.SIGKILL)
    bus.processes["capture"].kill()
    assert not is_whole(bus, LATE), "both die in the middle"
    wait_whole(bus, LATE, CATCH_UP_S)
    first_ts = chaos.server.tso()
    wait_checkpoint(bus, LATE, first_ts, CATCH_UP_S)
    writer.stop()
    writing.result(60)
    last_ts = chaos.server.tso()
    wait_checkpoint(bus, LATE, last_ts, CATCH_UP_S)
    assert sorter_pid(bus, LATE) != killed
    topics = ImagedTopics(
        bus.addresses.kafka_access,
        f"^{LATE_TOPIC}.*",
        {(SCHEMA, name): TableId(int(table.info["id"])) for name, table in writer.tables.items()},
    )
    topics.hold_against(chaos.server, (first_ts, last_ts))
    assert topics.looked_partial, "no proof was refused while the image was under way"
