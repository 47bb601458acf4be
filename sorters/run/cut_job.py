"""One cut, from the raw log to the sink: by a Spark job, or by the driver if it is not worth one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sorters.core.cut.cut import Cut
from sorters.core.records.order import OutputRecords
from sorters.cut.raw_records import tables_of
from sorters.cut.small_cut import SmallCut
from sorters.cut.worker import CutCounts, FeedProgram, batch_bytes
from sorters.run.preparation import Preparation
from sorters.spark.session import Session

if TYPE_CHECKING:
    from sorters.spark.cut import SparkCut

DRIVER_CUT_BYTES_MAX = 16 * 1024 * 1024
"""Raw bytes (some 70,000 rows) up to which the driver does the cut itself, in less time than a Spark job takes."""
TABLES_AT_ONCE_MAX = 500
"""Tables that are made ready for a large cut though they may have no rows in it; where more wait, its tasks look first
which have: they read the raw log twice then."""
RAW_RECORD_BYTES_GUESS = 4 * 1024
"""Size of a raw record before the first cut: low, since starting Spark in vain costs more than reading in vain."""


class CutJob:
    """Runs cuts of one changefeed, one at a time."""

    def __init__(
        self, spark: Session, *, raw_topic: str, raw_config: Mapping[str, Any], sink_config: Mapping[str, Any]
    ) -> None:
        """Both maps are librdkafka's; the sink's must keep the order, and hold texts where it could name files.

        ``spark`` is asked for its session at the first cut that is worth it.
        """
        self._spark = spark
        self._raw_topic, self._raw_config, self._sink_config = raw_topic, raw_config, sink_config
        self._small = SmallCut(raw_config, raw_topic, sink_config)
        self._large: SparkCut | None = None
        self._record_bytes: float | None = None
        """Mean size of a raw record; None: no cut has been run yet."""

    def give_up(self) -> None:
        """Let what is under way in another thread fail; nothing more is done from here on."""
        self._small.give_up()
        if self._large is not None:
            self._large.give_up()

    def close(self) -> None:
        """Close the clients of the driver."""
        self._small.close()

    def is_small(self, cut: Cut) -> bool:
        """Tell whether the driver is going to try a cut by itself."""
        return cut.offsets * (self._record_bytes or RAW_RECORD_BYTES_GUESS) <= DRIVER_CUT_BYTES_MAX

    def write(self, program: FeedProgram, records: OutputRecords) -> None:
        """Write records on the driver that stand before all of the next cut, in their order, until acknowledged.

        Raises:
            BusError: a record cannot be sent, or Kafka does not answer.
        """
        self._small.write(records, batch_bytes(program))

    def run(self, cut: Cut, preparation: Preparation, extras: OutputRecords, encoded_at_ms: int) -> CutCounts:
        """Write everything of ``cut``, and ``extras``, in order; return once that is acknowledged.

        ``preparation`` has begun the cut (:meth:`Preparation.begin`).

        Raises:
            Exception: Spark's, Py4J's; see :func:`sorters.log.failures.bus_error`.
        """
        counts = self._run_small(cut, preparation, extras, encoded_at_ms) if self.is_small(cut) else None
        if counts is None:
            counts = self._run_large(cut, preparation, extras, encoded_at_ms)
        if cut.offsets:
            mean = counts.raw_bytes / cut.offsets
            self._record_bytes = mean if self._record_bytes is None else (self._record_bytes + mean) / 2
        return counts

    def _run_small(
        self, cut: Cut, preparation: Preparation, extras: OutputRecords, encoded_at_ms: int
    ) -> CutCounts | None:
        """Run a cut on the driver; None: it is too large for that, and nothing is written."""
        # With some slack where it is known how large records are: giving up has read them in vain.
        raw_bytes_max = DRIVER_CUT_BYTES_MAX * (1 if self._record_bytes is None else 2)
        raw = self._small.read(cut, raw_bytes_max)
        if raw is None:
            return None
        program = preparation.make_ready(cut, tables_of(raw.records, cut))
        return self._small.run(cut, raw, program, extras, encoded_at_ms)

    def _run_large(self, cut: Cut, preparation: Preparation, extras: OutputRecords, encoded_at_ms: int) -> CutCounts:
        """Run a cut as a Spark job."""
        large = self.large()
        has_many = preparation.waiting > TABLES_AT_ONCE_MAX
        program = preparation.make_ready(cut, large.tables_of(cut) if has_many else None)
        return large.run(cut, program, preparation.sent(program), extras, encoded_at_ms)

    def large(self) -> "SparkCut":
        """Return what runs large cuts; the first call starts Spark."""
        if self._large is None:
            spark = self._spark()
            # After Spark's start: importing pyspark takes as long as all else that a small changefeed imports.
            from sorters.spark.cut import SparkCut

            self._large = SparkCut(
                spark, raw_topic=self._raw_topic, raw_config=self._raw_config, sink_config=self._sink_config
            )
        return self._large
