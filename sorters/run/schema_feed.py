"""The schema store of a sorter, on the driver: fed by the ddl topic, as far as a cut needs it.

A job that does not decode or fit is noted in :attr:`SchemaFeed.bad_jobs`; what may run all the same is decided where
the cut is known (:meth:`sorters.run.preparation.Preparation.begin`).
"""

import contextlib
import logging
from collections.abc import Mapping

from edges.kafka.offsets import TopicReader
from schemas.ddl.bad_jobs import BadJob, BadJobs
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.ddl_record import read_ddl_record

log = logging.getLogger(__name__)


class SchemaFeed:
    """Reads the ddl topic from its first record on."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._reader = TopicReader(config, topic)
        self._next = 0
        self.store, self.bad_jobs = SchemaStore.empty(), BadJobs()

    @property
    def bad(self) -> tuple[BadJob, ...]:
        """The jobs that the store could not take."""
        return self.bad_jobs.jobs

    def close(self) -> None:
        self._reader.close()

    def advance(self, ddl_end: int) -> bool:
        """Apply the records below offset ``ddl_end``; tell whether the store has changed.

        A record that fails stays the next one, so that a retry fails at it again and nothing is written beyond it.

        Raises:
            CorruptDataError: a record does not decode; bad jobs are noted instead.
            HistoryLostError, KafkaUnreachableError: see :meth:`TopicReader.read`.
        """
        changed = False
        for offset, value in self._reader.read(self._next, ddl_end):
            topic = self._reader.topic
            record = read_ddl_record(value, topic=topic, offset=offset)
            if record is None:
                where = {"topic": topic, "offset": offset}
                log.error("a record of the ddl topic is no capture's, and is passed over", extra=where)
            else:
                change = self.bad_jobs.apply(self.store, record, topic=topic, offset=offset)
                changed = changed or record.kind not in ("job", "undecodable") or change is not None
            self._next = offset + 1
        return changed

    def forget(self, checkpoint_ts: Ts) -> None:
        """Drop versions that only rows at or below ``checkpoint_ts`` need."""
        self.store.gc(checkpoint_ts)


def schemas_at(config: Mapping[str, object], topic: str, ts: Ts) -> SchemaStore | None:
    """Return the schemas that the ddl topic has at ``ts``; None: its snapshot has not landed, or is younger.

    Args:
        config: librdkafka's: servers, TLS, SASL.
        topic: the ddl topic. Once a job above ``ts`` has landed, every one up to ``ts`` has.
        ts: later jobs are not looked at, so that one which does not decode harms nobody.

    Raises:
        CorruptDataError: a record up to ``ts`` does not decode. Bad jobs are passed over: a sorter says what they stop.
        HistoryLostError, KafkaUnreachableError: see :meth:`TopicReader.read`.
    """
    store, bad_jobs = SchemaStore.empty(), BadJobs()
    with contextlib.closing(TopicReader(config, topic)) as reader:
        for offset, value in reader.read(*reader.bounds()):
            record = read_ddl_record(value, topic=topic, offset=offset)
            if record is None:
                continue
            if record.kind in ("job", "undecodable") and record.ts > ts:
                break
            bad_jobs.apply(store, record, topic=topic, offset=offset)
    return store if store.snapshot_ts is not None and store.snapshot_ts <= ts else None
