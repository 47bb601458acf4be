"""One query of the Spark source on the driver: its columns, its borders, the tasks of its batches."""

from functools import cached_property

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from schemas.ids import Ts
from sorters.core.source.change_rows import Program
from sorters.core.source.errors import SchemaChangedError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import EARLIEST, LATEST, SourceOptions
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at, versions_of
from sorters.log.failures import HistoryLostError
from sorters.source.planner import Planner
from sorters.source.table_log import TableLog
from sorters.source.task import ChangesPartition


def spark_schema(shape: RowShape) -> StructType:
    """Return the columns of a query as Spark's types."""
    return from_arrow_schema(shape.arrow, prefer_timestamp_ntz=True)


class Query:
    """One query on the driver: clients and plans, made when they are first needed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def __reduce__(self) -> tuple[object, ...]:
        # Spark sends what reads to its tasks, which need no more of it.
        return type(self), (self._options, self._schema)

    def close(self) -> None:
        """Let go of the clients."""
        if "log" in self.__dict__:
            self.log.close()

    @cached_property
    def log(self) -> TableLog:
        """The upstream's raw log."""
        return TableLog(self._options)

    @cached_property
    def shape(self) -> RowShape:
        """The version of the table that the query's columns are of: the newest that has them."""
        end_ts = self.log.border_now().resolved_ts
        ts = end_ts if self._options.ending == LATEST else Ts(int(self._options.ending))
        store = self.log.schemas.store
        for version in versions_of(store, table_at(store, self._options.table, ts)):
            shape = RowShape.of(version)
            if spark_schema(shape) == self._schema:
                return shape
        raise SchemaChangedError(
            "table has no version with the columns of the query; load() takes those that it has, and .schema() is not "
            "for this source",
            table=str(self._options.table),
        )

    @cached_property
    def planner(self) -> Planner:
        """Plans this query's batches."""
        return Planner(self.log, self._options, self.shape)

    def offset_at(self, bound: Ts | str) -> SourceOffset:
        """Return the border at a ts, or at ``earliest`` or ``latest``.

        Raises:
            HistoryLostError: the log does not go back so far.
        """
        newest = self.log.border_now()
        if bound == LATEST:
            return newest
        earliest = self.log.earliest()
        if bound == EARLIEST:
            return earliest
        ts = Ts(int(bound))
        if ts < earliest.resolved_ts:
            raise self.log.lost(ts, "retention has passed it")
        try:
            return SourceOffset(ts, self.log.frontier.find(ts))
        except HistoryLostError as error:
            raise self.log.lost(ts, error.message) from error

    def partitions(self, start: SourceOffset, end: SourceOffset) -> list[InputPartition]:
        """Return the tasks of a batch."""
        shape, planner, log = self.shape, self.planner, self.log
        tasks = []
        for cut in planner.cuts(start, end):
            tables = log.ids(cut.after_ts, cut.upto_ts)
            program = Program(log.schemas.store.part(tables), shape, self._options.feed_filter)
            tasks.append(ChangesPartition(log.config, log.topics.region_events, cut, tables, program))
        return tasks
