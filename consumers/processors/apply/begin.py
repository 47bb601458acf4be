"""Connects a processor to both sides of a database sink: its topic, and the server."""

from collections.abc import Mapping
from typing import Protocol

from consumers.processors.apply.connection import Connector
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.lead import DatabaseLead, Syncpoints, barriers_from
from consumers.processors.apply.share import DatabaseShare, RunSettings
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.core.apply.barriers import Barriers
from consumers.processors.core.apply.partition import DdlMark, start_position
from consumers.processors.core.apply.statements import StatementSettings
from consumers.processors.processor import ProcessorInputs
from consumers.processors.sink_source import KafkaSource, Source, read_record
from schemas.config.zone import session_zone
from schemas.errors import InvariantBrokenError
from schemas.sink.position import decode_position
from schemas.sink.sql_rows import decode_ddl
from schemas.sink.topic import destination_feed, group_id, sink_topic


class DatabaseSides:
    """A changefeed's topic and destination, as its settings say. The source is one thread's."""

    def __init__(self, inputs: ProcessorInputs) -> None:
        info, config, options = inputs.info, inputs.config, inputs.options
        if config.uri.server is None:
            raise InvariantBrokenError("sink is no database", changefeed=info.changefeed_id)
        mysql = config.sink.mysql
        self._inputs, self._connector = inputs, Connector(config.uri.server, config, info.source_id)
        self.settings = RunSettings(
            worker_count=mysql.worker_count,
            max_txn_row=mysql.max_txn_row,
            ignore_start_ts=frozenset(config.filter.ignore_txn_start_ts),
            topic=sink_topic(info),
        )
        self.start = start_position(info.start_ts)
        self.source = KafkaSource(options.kafka, sink_topic(info), group_id(info))

    def partitions(self) -> int:
        """Return how many partitions of the topic its sorter writes.

        Raises:
            SinkTopicMissingError: the topic is not there yet.
            SinkTopicUnavailableError: Kafka does not answer.
        """
        return self.source.partitions()

    def destination(self, revision: int) -> DatabaseDestination:
        """Return the destination as the leader of ``revision`` has it; 0: as who leads nothing."""
        info, config = self._inputs.info, self._inputs.config
        feed = destination_feed(self._inputs.options.cluster, info)
        statements = StatementSettings(
            safe_mode=config.sink.safe_mode,
            safe_until_ts=info.safe_until_ts,
            rows_max=config.sink.mysql.max_txn_row if config.sink.mysql.enable_batch_dml else 1,
        )
        return DatabaseDestination(self._connector, feed, revision, statements)

    def runner(self, destination: DatabaseDestination) -> DdlRunner:
        """Return what runs DDL there."""
        zone = session_zone(self._inputs.config, self._inputs.info.time_zone)
        return DdlRunner(
            destination=destination,
            time_zone=zone,
            read_timeout_s=self._inputs.config.sink.mysql.read_timeout_s,
            stopped=self._inputs.stopped,
        )

    def syncpoints(self, destination: DatabaseDestination) -> SyncpointWriter | None:
        """Return what writes syncpoints there; None: none are wanted."""
        info, config = self._inputs.info, self._inputs.config
        if not config.enable_sync_point:
            return None
        return SyncpointWriter(
            destination=destination,
            cluster=self._inputs.options.cluster,
            changefeed_id=info.changefeed_id,
            namespace=info.namespace,
            start_ts=info.start_ts,
            interval_s=config.sync_point_interval_s,
            retention_s=config.sync_point_retention_s,
        )

    def read_ddl(self, offsets: Mapping[int, int]) -> DdlMark:
        """Read a DDL from one of the partitions that have it.

        Raises:
            BusError: Kafka does not give it.
        """
        info = self._inputs.info
        partition, offset = min(offsets.items())
        record = read_record(self._inputs.options.kafka, sink_topic(info), group_id(info), partition, offset)
        start_ts = decode_position(record.position).start_ts
        return DdlMark(record.position, start_ts, decode_ddl(record.value), offset)


class SinkSides(Protocol):
    """What is asked of :class:`DatabaseSides`."""

    @property
    def settings(self) -> RunSettings: ...
    @property
    def source(self) -> Source: ...
    @property
    def start(self) -> bytes:
        """Position at which a partition begins that the destination does not know."""
        ...

    def partitions(self) -> int: ...
    def destination(self, revision: int) -> DatabaseDestination: ...
    def runner(self, destination: DatabaseDestination) -> DdlRunner: ...
    def syncpoints(self, destination: DatabaseDestination) -> Syncpoints | None: ...
    def read_ddl(self, offsets: Mapping[int, int]) -> DdlMark: ...


class DatabaseWork:
    """What a processor may come to do for a changefeed whose sink is a database."""

    def __init__(self, sides: SinkSides) -> None:
        """Connect to nothing but Kafka.

        Raises:
            SinkTopicMissingError: the topic is not there yet.
            SinkTopicUnavailableError: Kafka does not answer.
        """
        self._sides, self._partitions = sides, sides.partitions()
        self.share = DatabaseShare(sides.source, sides.destination(0), sides.settings)

    def lead(self, revision: int) -> tuple[DatabaseLead, Barriers]:
        """Take the lead at the destination.

        Raises:
            BusError: it does not let us, or a later leader is there.
        """
        destination = self._sides.destination(revision)
        syncpoints = self._sides.syncpoints(destination)
        interval_ms = 0 if syncpoints is None else syncpoints.interval_ms
        state = destination.lead(self._partitions, self._sides.start, interval_ms)
        self.share.expect(state.positions)
        lead = DatabaseLead(
            self._sides.runner(destination),
            self._find,
            syncpoints=syncpoints,
            ignore_start_ts=self._sides.settings.ignore_start_ts,
        )
        return lead, barriers_from(state, syncpoints)

    def end_writes(self) -> None:
        """Nothing to wait for: the destination refuses who has been replaced."""

    def close(self) -> None:
        """Wait for what is under way, and give all connections back."""
        self.share.close()
        self._sides.source.close()

    def _find(self, position: bytes, offsets: Mapping[int, int]) -> DdlMark:
        return self.share.mark(position) or self._sides.read_ddl(offsets)


def begin_database_work(inputs: ProcessorInputs) -> DatabaseWork:
    """Begin a processor's part in a changefeed whose sink is a MySQL or TiDB.

    Raises:
        BusError: Kafka does not let us.
    """
    sides = DatabaseSides(inputs)
    try:
        return DatabaseWork(sides)
    except BaseException:
        sides.source.close()
        raise
