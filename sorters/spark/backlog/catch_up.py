"""Lets a Spark streaming query run a backlog: epoch after epoch, up to what the frontier topic held when it began.

Turning a micro-batch has a price, which a backlog of large cuts does not feel and a small cut does: those the driver
runs by itself (docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from edges.kafka.java_properties import spark_address
from sorters.log.failures import bus_error
from sorters.spark.jobs.spark_counts import OF_PROCESS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FRONTIER_RECORDS_MAX = 5_000
"""Frontier records in one epoch: at ten a second some eight minutes of catch-up, which the budget of a cut divides."""
_LOOK_S = 0.2


def catch_up(  # noqa: PLR0913 # what a query takes, named once
    spark: "SparkSession",
    *,
    kafka: Mapping[str, str],
    frontier_topic: str,
    start: int,
    checkpoint: str,
    name: str,
    on_epoch: Callable[[int], None],
    stopping: threading.Event,
    given_up: threading.Event,
) -> None:
    """Run all epochs from frontier offset ``start`` on.

    Args:
        spark: the session.
        kafka: the options of Spark's own source that name the cluster and let us in.
        checkpoint: where the query keeps its files; a Hadoop URI or a path.
        name: of the query, in Spark's UI.
        on_epoch: runs one, by its number in the query's offset log.
        stopping: no further epoch is run.
        given_up: the one under way is not waited for either.

    Raises:
        BusError: what ``on_epoch`` has raised, or what Spark says.
    """
    failed: list[BaseException] = []

    def on_batch(_frame: object, number: int) -> None:
        if stopping.is_set():
            return
        try:
            on_epoch(number)
        except BaseException as error:
            failed.append(error)
            raise

    frontier = (
        spark.readStream.format("kafka")
        .options(**kafka)
        .option("assign", json.dumps({frontier_topic: [0]}))
        .option("startingOffsets", json.dumps({frontier_topic: {"0": start}}))
        .option("maxOffsetsPerTrigger", str(FRONTIER_RECORDS_MAX))
        .load()
    )
    query = (
        frontier.writeStream.queryName(name)
        .foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    OF_PROCESS.add(queries=1)
    while query.isActive:
        if given_up.wait(_LOOK_S):
            query.stop()
    error = failed[0] if failed else query.exception()
    if error is not None and not stopping.is_set():
        raise bus_error(error, spark_address(kafka)) from error
