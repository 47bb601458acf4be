"""Begins a run for the processor process: connects to both sides and takes the destination over."""

from consumers.apply.connection import Connector
from consumers.apply.ddl import DdlRunner
from consumers.apply.destination import Destination
from consumers.apply.run import ApplyRun, RunSettings
from consumers.apply.source import KafkaSource
from consumers.apply.syncpoints import SyncpointWriter
from consumers.core.apply.partition import start_position
from consumers.core.apply.statements import StatementSettings
from consumers.processor import Assignment
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.sink_topic import group_id, life_of, sink_topic


class DatabaseRun:
    """An :class:`ApplyRun` with its source, as the processor process drives it."""

    def __init__(self, run: ApplyRun, source: KafkaSource) -> None:
        self._run, self._source = run, source

    @property
    def checkpoint_ts(self) -> Ts:
        return self._run.applied.checkpoint_ts

    @property
    def rows_total(self) -> int:
        return self._run.applied.rows_total

    @property
    def ddl_total(self) -> int:
        return self._run.applied.ddl_total

    def turn(self) -> None:
        self._run.turn()

    def finish(self) -> None:
        self._run.finish_claims()

    def close(self) -> None:
        self._run.close()
        self._source.close()


def begin_database(assignment: Assignment) -> DatabaseRun:
    """Begin a run of a changefeed whose sink is a MySQL or TiDB.

    Raises:
        BusError: one of the two sides does not let us.
    """
    info, config, options = assignment.info, assignment.config, assignment.options
    server, mysql = config.uri.server, config.sink.mysql
    if server is None:
        raise InvariantBrokenError("sink is no database", changefeed=info.changefeed_id)
    source = KafkaSource(options.kafka, sink_topic(info), group_id(info))
    try:
        feed = f"{options.cluster}/{info.namespace}/{info.changefeed_id}/{life_of(info)}"
        statements = StatementSettings(
            safe_mode=config.sink.safe_mode, rows_max=mysql.max_txn_row if mysql.enable_batch_dml else 1
        )
        destination = Destination(Connector(server, config), feed, assignment.revision, statements)
        found = destination.open(source.partitions(), start_position(info.start_ts))
        source.start({part: place.next_offset for part, place in found.places.items()})
        syncpoints = SyncpointWriter(
            destination=destination,
            cluster=options.cluster,
            changefeed_id=info.changefeed_id,
            start_ts=info.start_ts,
            interval_s=config.sync_point_interval_s,
            retention_s=config.sync_point_retention_s,
        )
        run = ApplyRun(
            source=source,
            destination=destination,
            runner=DdlRunner(destination=destination, time_zone=mysql.time_zone, stopped=assignment.stopped),
            found=found,
            settings=RunSettings(
                worker_count=mysql.worker_count,
                max_txn_row=mysql.max_txn_row,
                ignore_start_ts=frozenset(config.filter.ignore_txn_start_ts),
            ),
            syncpoints=syncpoints if config.enable_sync_point else None,
        )
        return DatabaseRun(run, source)
    except BaseException:
        source.close()
        raise
