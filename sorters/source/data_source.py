"""The data source ``tidebus`` of pyspark 4.0: ``spark.readStream.format("tidebus")`` and ``spark.read``.

Spark makes one of each object here in a process of its own, with what ``options`` say: nothing is shared but through
offsets and partitions. The camel-case names are Spark's.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from schemas.ids import Ts
from sorters.core.source.errors import NotReachedError, SourceOptionError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import LATEST, SourceOptions, read_options
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at
from sorters.source.python_start import hooked
from sorters.source.query import Query, spark_schema
from sorters.source.table_log import TableLog
from sorters.source.task import ChangesPartition, ImagePartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME = "tidebus"


class TideBusDataSource(DataSource):  # type: ignore[misc] # pyspark's classes have no types here
    """A table's changes, by its name; see :func:`sorters.core.source.options.read_options`."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table, at the end of a read or as they are now, and those of the change."""
        # Which of the two it is for, Spark does not say here: what only one takes is checked when it is made.
        given = {name: value for name, value in self.options.items() if name.lower() != "maxrowsperbatch"}
        options = _options(given, stream=False)
        with contextlib.closing(TableLog(options)) as log:
            _, newest = log.newest()
            ts = newest.resolved_ts if options.ending == LATEST else Ts(int(options.ending))
            store = log.schemas.store
            if ts < (store.snapshot_ts or ts):
                raise log.lost(ts, "the log begins above it")
            version = store.decoded(table_at(store, options.table, ts))
            if options.feed_filter is not None and not options.feed_filter.contains(version):
                raise options.not_replicated
            return spark_schema(RowShape.of(version))

    def reader(self, schema: StructType) -> "TideBusReader":
        """Return what reads the changes between two ts."""
        return TideBusReader(_options(self.options, stream=False), schema)

    def streamReader(self, schema: StructType) -> "TideBusStreamReader":  # noqa: N802 # Spark's name
        """Return what follows the changes."""
        return TideBusStreamReader(_options(self.options, stream=True), schema)


def _options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """Return options with what the changefeed says that they name, if they name one."""
    options = read_options(given, stream=stream)
    if options.feed is None:
        return options
    from sorters.source.changefeed import with_changefeed  # ZooKeeper's client and all settings of changefeeds

    return with_changefeed(options, options.feed)


class TideBusReader(DataSourceReader):  # type: ignore[misc] # pyspark's classes have no types here
    """Reads the changes above ``startingTs`` and up to ``endingTs``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """``schema`` is what :meth:`TideBusDataSource.schema` has said."""
        self._options, self._query = options, Query(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task a raw partition.

        Raises:
            NotReachedError: ``endingTs``, or the image that the read starts at, is above the frontier.
            HistoryLostError: ``startingTs`` is below what the log holds.
            SourceOptionError: ``endingTs`` is below ``startingTs``, or within the image that the read starts at.
        """
        with contextlib.closing(self._query) as query:
            newest = query.log.border_now()
            end = newest if self._options.ending == LATEST else query.offset_at(self._options.ending)
            if end.resolved_ts > newest.resolved_ts:
                raise NotReachedError(
                    "frontier has not reached endingTs", ending_ts=end.resolved_ts, resolved_ts=newest.resolved_ts
                )
            start = query.offset_at(self._options.starting)
            if start.resolved_ts > end.resolved_ts:
                raise SourceOptionError(
                    "read starts above its end", option="startingTs", seen=start.resolved_ts, ending_ts=end.resolved_ts
                )
            image = query.image_from(start)
            if image is not None and end.resolved_ts < image.upto_ts:  # ranges of keys would be missing
                if self._options.ending == LATEST:  # the table lags
                    raise NotReachedError(
                        "frontier has not reached the end of the table's image",
                        resolved_ts=end.resolved_ts,
                        image_upto_ts=image.upto_ts,
                    )
                raise SourceOptionError(
                    "endingTs lies within the table's image; read to where it ends, or above",
                    option="endingTs",
                    seen=end.resolved_ts,
                    image_upto_ts=image.upto_ts,
                )
            return query.partitions(start, end)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the rows of a task. Of a read without any Spark makes one of no partition."""
        if partition is None:
            return iter(())
        assert isinstance(partition, ChangesPartition | ImagePartition)
        return partition.batches()


class TideBusStreamReader(DataSourceStreamReader):  # type: ignore[misc] # pyspark's classes have no types here
    """Follows the table's changes. Spark 4.0 sets a stream source no limit, so each batch is bounded here."""

    _initial: SourceOffset | None = None
    _at: SourceOffset | None = None
    """Where the next batch starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """``schema`` is what :meth:`TideBusDataSource.schema` has said."""
        self._options, self._query = options, Query(options, schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return where a query without a checkpoint starts. Spark may ask after it has asked for the first end."""
        if self._initial is None:
            self._initial = self._query.offset_at(self._options.starting)
        return self._initial.as_json()

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return where the next batch ends."""
        if self._at is None:  # a restarted query says where it stands before it asks
            self._at = SourceOffset.read(self.initialOffset())
        end = self._query.next_end(self._at)
        if end == self._at:
            self._query.planner.wait(self._at.border)
            end = self._query.next_end(self._at)
        return end.as_json()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return a task a raw partition; with ``start`` as ``end`` Spark says where a restarted query stands."""
        self._at = SourceOffset.read(end)
        return self._query.partitions(SourceOffset.read(start), self._at)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a task."""
        assert isinstance(partition, ChangesPartition | ImagePartition)
        return partition.batches()

    def stop(self) -> None:
        """Let go of the clients."""
        self._query.close()


def register(spark: "SparkSession") -> None:
    """Make ``format("tidebus")`` known to a Spark session."""
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):  # one of Spark Connect, whose processes are on its server
        spark.dataSource.register(TideBusDataSource)
        return
    with hooked(spark.sparkContext.environment):
        spark.dataSource.register(TideBusDataSource)
