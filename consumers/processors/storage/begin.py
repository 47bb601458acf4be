"""Connects a processor to both sides of a storage sink: its topic, and the folder or bucket."""

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply.barriers import Answer, BarrierOrder, Barriers
from consumers.processors.core.apply.executor import PartitionProgress, WorkOrder
from consumers.processors.core.storage.paths import PathForm
from consumers.processors.processor import ProcessorInputs
from consumers.processors.sink_source import KafkaSource
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import ExpiringStore, LeasedStore, file_store
from schemas.config.parse.cron import parse_cron
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.sink.topic import group_id, life_of, sink_topic
from schemas.sink_figures import Spread

EXTENSIONS = {"csv": "csv", "canal-json": "json"}


class FilesShare:
    """The partitions that a processor writes. Implements :class:`consumers.processors.run.PartitionWork`."""

    def __init__(self, run: StorageRun) -> None:
        self._run = run

    @property
    def rows_total(self) -> int:
        return self._run.rows_total

    def obey(self, orders: list[WorkOrder]) -> None:
        self._run.obey(orders)

    def turn(self, barrier: Barrier, *, is_restless: bool) -> list[WorkOrder]:
        return self._run.turn(barrier, is_restless=is_restless)

    def progress(self, partition: int) -> PartitionProgress:
        return self._run.progress(partition)

    def finish(self) -> None:
        """Write what waits, so that a stop leaves little to do again."""
        self._run.flush()


class FilesLead:
    """The leader's part at a storage: the metadata file. DDL and syncpoints stand in files by themselves.

    Implements :class:`consumers.processors.run.LeadWork`.
    """

    is_busy = False
    held_ts = None
    ddls_us = Spread()

    def __init__(self, run: StorageRun) -> None:
        self._run = run

    def begin(self, order: BarrierOrder) -> None:
        raise InvariantBrokenError("a storage stands still at nothing", order=order)

    def answer(self) -> Answer | None:
        return None

    def note(self, checkpoint_ts: Ts) -> None:
        self._run.note_checkpoint(checkpoint_ts)

    def close(self) -> None:
        pass


class StorageWork:
    """What a processor may come to do for a changefeed whose sink is a storage.

    Implements :class:`consumers.processors.run.Work`.
    """

    def __init__(self, run: StorageRun, source: KafkaSource, partitions: int) -> None:
        self._run, self._source, self._partitions = run, source, partitions
        self.share = FilesShare(run)

    def lead(self, revision: int) -> tuple[FilesLead, Barriers]:
        """Take the lead."""
        return FilesLead(self._run), Barriers(frozenset(range(self._partitions)))

    def end_writes(self) -> None:
        """Wait for files that are being written: the next processor writes some of the same names."""
        self._run.close()

    def close(self) -> None:
        """Give everything back."""
        self._run.close()
        self._source.close()


def begin_storage_work(inputs: ProcessorInputs) -> StorageWork:
    """Begin a processor's part in a changefeed whose sink is a folder or an object storage.

    Raises:
        BusError: Kafka does not let us.
    """
    settings, store, source = _sides(inputs)
    try:
        leased = LeasedStore(store, inputs.check_lease)
        return StorageWork(StorageRun(source, leased, settings), source, source.partitions())
    except BaseException:
        source.close()
        raise


def _sides(inputs: ProcessorInputs) -> tuple[StorageSettings, ExpiringStore, KafkaSource]:
    info, config, sink = inputs.info, inputs.config, inputs.config.sink
    if config.uri.storage is None:
        raise InvariantBrokenError("sink is no storage", changefeed=info.changefeed_id)
    settings = StorageSettings(
        changefeed=f"{info.namespace}.{info.changefeed_id}.{life_of(info)}",
        paths=PathForm(
            extension=EXTENSIONS[config.protocol],
            date_separator=sink.date_separator,
            file_index_digit=sink.file_index_digit,
        ),
        topic=sink_topic(info),
        start_ts=info.start_ts,
        time_zone=info.time_zone,
        flush_interval_s=float(sink.cloud_storage.flush_interval_s),
        file_bytes_max=sink.cloud_storage.file_size_bytes,
        worker_count=sink.cloud_storage.worker_count,
        expiration_days=sink.cloud_storage.file_expiration_days,
        cleanup=parse_cron(sink.cloud_storage.file_cleanup_cron_spec),
    )
    source = KafkaSource(inputs.options.kafka, sink_topic(info), group_id(info))
    return settings, file_store(config.uri.storage), source
