"""One query of the Spark source on the driver: its columns, its borders, the tasks of its batches."""

import time
from dataclasses import replace
from functools import cached_property
from typing import Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from schemas.ids import Ts
from sorters.core.source.change_rows import Program
from sorters.core.source.errors import SchemaChangedError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import EARLIEST, IMAGE, LATEST, SourceOptions, check_time
from sorters.core.source.row_shape import RowShape
from sorters.core.source.start_image import StartImage
from sorters.core.source.table_history import table_at, versions_of
from sorters.log.failures import HistoryLostError
from sorters.source.planner import Planner
from sorters.source.table_log import TableLog
from sorters.source.task import ChangesPartition, ImagePartition

TASK_RECORDS: Final = 128
"""Raw records that a task reads: some 32 MiB of a busy table. A task costs tens of milliseconds before any row."""


def spark_schema(shape: RowShape) -> StructType:
    """Return the columns of a query as Spark's types."""
    return from_arrow_schema(shape.arrow, prefer_timestamp_ntz=True)


class Query:
    """One query on the driver: clients and plans, made when they are first needed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._known_image: tuple[tuple[int, int], StartImage] | None = None
        """By the frontier records that list it."""

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
        """Return the border at a ts, at ``earliest`` or ``latest``, or before the table's newest ``image``.

        Raises:
            SourceOptionError: the ts is of a time that has not come.
            HistoryLostError: the log does not go back so far.
            NoImageError: there is no image.
        """
        if isinstance(bound, int):
            check_time(bound, time.time())
        newest = self.log.border_now()
        if bound == LATEST:
            return newest
        if bound == IMAGE:
            image, records = self.log.newest_image()
            return replace(self.offset_at(image.before_ts), image=records)
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

    def next_end(self, start: SourceOffset) -> SourceOffset:
        """Return where a batch from ``start`` ends; see :meth:`Planner.next_end`."""
        image = self.planner.image = self.image_from(start)
        end = self.planner.next_end(start.border, self._options.batch_rows_max)
        return end if image is None or end.resolved_ts >= image.upto_ts else replace(end, image=start.image)

    def partitions(self, start: SourceOffset, end: SourceOffset) -> list[InputPartition]:
        """Return the tasks of a batch."""
        shape, planner, log = self.shape, self.planner, self.log
        image = self.image_from(start)
        tasks: list[InputPartition] = []
        cut = planner.cut(start.border, end.border)
        if cut is not None:
            tables = log.ids(cut.after_ts, cut.upto_ts)
            program = Program(log.schemas.store.part(tables), log.name, shape, self._options.feed_filter)
            held = image and image.still_to_come(cut.after_ts)
            # Where changes may stand twice, one task must see all of them.
            count = 1 if cut.may_repeat else -(-cut.offsets // TASK_RECORDS)
            events = log.topics.region_events
            tasks += [
                ChangesPartition(log.config, events, cut, tables, program, held, number, count)
                for number in range(count)
            ]
        if image is not None:
            for chunk in image.between(start.resolved_ts, end.resolved_ts):
                if chunk.landed.rows:
                    store = log.schemas.store.part({chunk.landed.table_id})
                    program = Program(store, log.name, shape, self._options.feed_filter)
                    tasks.append(ImagePartition(log.config, log.topics.images, chunk, program))
        return tasks

    def image_from(self, start: SourceOffset) -> StartImage | None:
        """Return the image that the query started at, and has not passed at ``start``."""
        if start.image is None:
            return None
        if self._known_image is None or self._known_image[0] != start.image:
            self._known_image = start.image, self.log.image(start.image)
        image = self._known_image[1]
        return image if image.upto_ts > start.resolved_ts else None
