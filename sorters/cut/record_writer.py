"""What writes a cut's records: a producer of Kafka, or nothing at all for a blackhole sink."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from schemas.producer_figures import NO_PRODUCER, ProducerFigures
from schemas.sink.fence import NO_FENCE
from schemas.sink.image_note import WatermarkNote
from sorters.core.records.order import OutputRecords
from sorters.cut.sink_writer import BATCH_BYTES, SinkWriter
from sorters.log.failures import KafkaUnreachableError

NOWHERE: Final[Mapping[str, object]] = {}
"""The options of a sink that nothing is written to, where others have librdkafka's, which are never empty."""


class RecordWriter(Protocol):
    """What a cut's records go through (:class:`~sorters.cut.sink_writer.SinkWriter`)."""

    def write(self, records: OutputRecords, fence: bytes = NO_FENCE, note: WatermarkNote | None = None) -> None:
        """Queue records; ``fence`` is theirs (:mod:`schemas.sink.fence`), ``note`` their watermarks'."""
        ...

    def finish(self) -> None:
        """Return when everything is acknowledged."""
        ...

    def abandon(self) -> None:
        """Forget what has not been sent."""
        ...

    def tend(self) -> None:
        """Called now and then where nothing is written."""
        ...

    def figures(self) -> ProducerFigures:
        """Return what is heard of its producer since the last call."""
        ...


class Nowhere:
    """Takes records and drops them; a cut that is given up fails here as it does before a broker."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def write(self, records: OutputRecords, fence: bytes = NO_FENCE, note: WatermarkNote | None = None) -> None:
        """Drop them.

        Raises:
            KafkaUnreachableError: the cut is given up.
        """
        if self._stopped():
            raise KafkaUnreachableError("blackhole did not take a record", reason="stopped")

    def finish(self) -> None:
        """Return at once."""

    def abandon(self) -> None:
        """There is nothing to forget."""

    def tend(self) -> None:
        """Nothing waits."""

    def figures(self) -> ProducerFigures:
        """There is no producer."""
        return NO_PRODUCER


def record_writer(
    config: Mapping[str, object],
    *,
    batch_bytes: int = BATCH_BYTES,
    stopped: Callable[[], bool] = lambda: False,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> RecordWriter:
    """Return a writer; see :class:`~sorters.cut.sink_writer.SinkWriter`. ``config`` is librdkafka's, or NOWHERE."""
    if not config:
        return Nowhere(stopped)
    return SinkWriter(config, batch_bytes=batch_bytes, stopped=stopped, waiting=waiting)
