"""Begins a run for the processor process: reads where files end, and goes on from there."""

from consumers.apply.source import KafkaSource
from consumers.core.storage.paths import PathForm
from consumers.processor import Assignment
from consumers.storage.run import StorageRun, StorageSettings, noted_places
from consumers.storage.store import file_store
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.sink_topic import group_id, life_of, sink_topic

EXTENSIONS = {"csv": "csv", "canal-json": "json"}


class FilesRun:
    """A :class:`StorageRun` with its source, as the processor process drives it."""

    ddl_total = 0
    """A storage runs no DDL: it keeps their schema files."""

    def __init__(self, run: StorageRun, source: KafkaSource) -> None:
        self._run, self._source = run, source

    @property
    def checkpoint_ts(self) -> Ts:
        return self._run.written.checkpoint_ts

    @property
    def rows_total(self) -> int:
        return self._run.written.rows_total

    def turn(self) -> None:
        self._run.turn()

    def finish(self) -> None:
        """Write what waits, so that a stop leaves little to do again."""
        self._run.flush()

    def close(self) -> None:
        self._run.close()
        self._source.close()


def begin_storage(assignment: Assignment) -> FilesRun:
    """Begin a run of a changefeed whose sink is a folder or an object storage.

    Raises:
        BusError: the storage or Kafka does not let us.
    """
    info, config, sink = assignment.info, assignment.config, assignment.config.sink
    if config.uri.storage is None:
        raise InvariantBrokenError("sink is no storage", changefeed=info.changefeed_id)
    settings = StorageSettings(
        changefeed=f"{info.namespace}.{info.changefeed_id}.{life_of(info)}",
        paths=PathForm(
            extension=EXTENSIONS[config.protocol],
            date_separator=sink.date_separator,
            file_index_digit=sink.file_index_digit,
        ),
        start_ts=info.start_ts,
        flush_interval_s=float(sink.cloud_storage.flush_interval_s),
        file_bytes_max=sink.cloud_storage.file_size_bytes,
        worker_count=sink.cloud_storage.worker_count,
    )
    store = file_store(config.uri.storage)
    source = KafkaSource(assignment.options.kafka, sink_topic(info), group_id(info))
    try:
        states = noted_places(store, settings.changefeed, source.partitions())
        source.start({partition: state.place.offset for partition, state in states.items()})
        return FilesRun(StorageRun(source, store, settings, states), source)
    except BaseException:
        source.close()
        raise
