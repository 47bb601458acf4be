"""One run of a changefeed: its streaming query from start to stop, with everything that the query needs."""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.changefeed import ChangefeedInfo
from schemas.config.changefeed import ChangefeedConfig
from schemas.config.client_options import librdkafka_options, librdkafka_producer_options
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.rawlog.topics import RawTopics
from schemas.sink_topic import own_topic_config
from sorters.core.feed import compile_feed
from sorters.cut_job import CutJob
from sorters.epochs import Epochs, Progress
from sorters.failures import HistoryLostError, bus_error
from sorters.frontier_reader import FrontierReader
from sorters.glue_registry import GlueRegistry
from sorters.preparation import Preparation
from sorters.query_folder import QUERY, Folder, HadoopFolder, LocalFolder, Origin, last_epoch, read_origin, write_origin
from sorters.registry import ConfluentRegistry, SchemaRegistry
from sorters.schema_feed import SchemaFeed
from sorters.topic_admin import TopicAdmin

log = logging.getLogger(__name__)
FRONTIER_RECORDS_MAX = 5_000
"""Frontier records in one epoch: at ten a second some eight minutes of catch-up, which the batch budget divides."""


class TargetNotReachedError(BusError):
    """Rows up to the target ts may still come."""

    code, action = "sorter.target_not_reached", Action.RETRY


class FeedRun:
    """Holds the clients of one run; :meth:`close` must be called."""

    def __init__(
        self,
        spark: Any,
        *,
        kafka: str,
        raw_topics: RawTopics,
        schema_registry: str | None,
        data_dir: Path,
        info: ChangefeedInfo,
        config: ChangefeedConfig,
        checkpoint_ts: Ts,
        before_cut: Callable[[], None],
        on_progress: Callable[[Progress], None],
        checkpoint_dir: str = "",
    ) -> None:
        """``kafka`` holds the raw log; ``schema_registry`` is for a changefeed that names none.

        ``checkpoint_dir`` is the Hadoop URI of the streaming query's folder; empty: it is ``data_dir``.
        """
        self._spark = spark
        self._kafka = kafka
        self._frontier_topic = raw_topics.frontier
        self._folder: Folder = HadoopFolder(spark, checkpoint_dir) if checkpoint_dir else LocalFolder(data_dir)
        self._failure: BusError | None = None
        self._query: Any = None
        self._stopping = threading.Event()
        raw_config = {"bootstrap.servers": kafka}
        self._frontier = FrontierReader(raw_config, raw_topics.frontier)
        self._schemas = SchemaFeed(raw_config, raw_topics.ddl)
        feed = compile_feed(config, info.namespace, changefeed_id=info.changefeed_id)
        self._preparation = Preparation(
            spark,
            feed,
            self._schemas,
            TopicAdmin(
                librdkafka_options(config),
                partitions=config.kafka.partition_num,
                replication=config.kafka.replication_factor,
                auto_create=config.kafka.auto_create_topic,
                acks_all=config.kafka.required_acks == -1,
                topic_config=own_topic_config(config),
            ),
            _registry(config, schema_registry),
            start_ts=info.start_ts,
            target_ts=info.target_ts,
        )
        self._job = CutJob(
            spark,
            raw_topic=raw_topics.region_events,
            raw_config=raw_config,
            sink_config=librdkafka_producer_options(config, lambda file: Path(file).read_text()),
        )
        self._checkpoint_ts = checkpoint_ts
        self._target_ts = info.target_ts
        self._before_cut = before_cut
        self._on_progress = on_progress

    def start(self) -> None:
        """Start the query, where the last run left off if its files are there and fit the checkpoint.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            KafkaUnreachableError: the raw log does not answer.
        """
        origin_ts, offset = self._origin()
        epochs = self._epochs(origin_ts)

        def on_epoch(_frame: Any, epoch: int) -> None:
            try:
                epochs.run(epoch)
            except BaseException as error:
                if not self._stopping.is_set():
                    self._failure = bus_error(error)
                raise

        frontier = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka)
            .option("assign", json.dumps({self._frontier_topic: [0]}))
            .option("startingOffsets", json.dumps({self._frontier_topic: {"0": offset}}))
            .option("maxOffsetsPerTrigger", str(FRONTIER_RECORDS_MAX))
            .load()
        )
        self._query = (
            frontier.writeStream.foreachBatch(on_epoch)
            .option("checkpointLocation", self._folder.location(QUERY))
            .start()
        )

    def run_to_target(self) -> None:
        """Write what lies between the checkpoint and the target ts, with no streaming query, and return.

        What is written, and how it is cut, hangs on the raw log alone: a second run writes the same bytes.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            TargetNotReachedError: it has not come to the target ts.
            BusError: whatever stops a changefeed.
        """
        assert self._target_ts is not None
        start, end = self._frontier.find(self._checkpoint_ts), self._frontier.end()
        epochs = self._epochs(self._checkpoint_ts)
        newest_ts = epochs.place(self._frontier.place_before(end)).resolved_ts
        if newest_ts < self._target_ts:
            where = {"target_ts": self._target_ts, "newest_ts": newest_ts, "topic": self._frontier_topic}
            raise TargetNotReachedError(
                "raw log has not come to the target ts, or holds tables back before it", **where
            )
        for at in range(start, end, FRONTIER_RECORDS_MAX):
            if epochs.checkpoint_ts >= self._target_ts:
                return
            epochs.run_records(at, min(at + FRONTIER_RECORDS_MAX, end))

    def _epochs(self, origin_ts: Ts) -> Epochs:
        return Epochs(
            frontier=self._frontier,
            frontier_topic=self._frontier_topic,
            query_folder=self._folder,
            schemas=self._schemas,
            preparation=self._preparation,
            job=self._job,
            origin_ts=origin_ts,
            checkpoint_ts=self._checkpoint_ts,
            target_ts=self._target_ts,
            before_cut=self._before_cut,
            on_progress=self._on_progress,
        )

    def failure(self) -> BusError | None:
        """Return why the query has ended; None while it runs."""
        if self._failure is not None:
            return self._failure
        if self._query.isActive:
            return None
        error = self._query.exception()
        return bus_error(error) if error is not None else bus_error(RuntimeError("streaming query ended by itself"))

    def close(self) -> None:
        """Stop the query and what it has under way, and close the clients."""
        self._stopping.set()
        if self._query is not None:
            self._query.stop()
        self._job.close()
        self._frontier.close()
        self._schemas.close()

    def _origin(self) -> tuple[Ts, int]:
        """Return the ts and the frontier offset at which the query began, or begins now.

        The query's files are good if the checkpoint is where the epoch begins that would run next, or within it: that
        epoch is then repeated as it was. Otherwise (another machine was further, the user has set the checkpoint back)
        the query begins anew at the checkpoint; at most rows are written again.
        """
        origin = read_origin(self._folder)
        if origin is None or not self._fits(origin):
            offset = self._frontier.find(self._checkpoint_ts)
            origin = Origin(self._frontier_topic, self._checkpoint_ts, offset)
            write_origin(self._folder, origin)
        return origin.ts, origin.offset

    def _fits(self, origin: Origin) -> bool:
        if origin.frontier_topic != self._frontier_topic:
            return False  # a removed changefeed of this name had another upstream
        epoch = last_epoch(self._folder, self._frontier_topic)
        if epoch is None:
            return origin.ts == self._checkpoint_ts
        try:
            first, last = (self._frontier.place_before(offset).resolved_ts for offset in (epoch.start, epoch.end))
        except HistoryLostError:
            return False  # the checkpoint itself may still be within the log
        # A committed epoch is not repeated, so a checkpoint within it (set back, or never written) would leave a gap.
        return (last if epoch.committed else first) <= self._checkpoint_ts <= last


def _registry(config: ChangefeedConfig, default_url: str | None) -> SchemaRegistry | None:
    if config.protocol != "avro":
        return None
    if config.kafka.glue_schema_registry_config is not None:
        return GlueRegistry(config.kafka.glue_schema_registry_config)
    url = config.sink.schema_registry.reveal() if config.sink.schema_registry else default_url
    return ConfluentRegistry(url) if url else None
