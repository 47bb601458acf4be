"""Holds each new row against expectations, as Delta Live Tables do: warn, drop into quarantine, or fail.

    spark-submit examples/spark/quality_check.py --kafka 127.0.0.1:9092 --raw default --table shop.orders \\
        --warn "priced: price IS NOT NULL" --drop "positive: amount > 0" --fail "known: state IN ('new', 'paid')" \\
        --output /data/orders-checked --checkpoint /data/checkpoints/orders-checked

What passes goes to ``OUTPUT/passed``, what does not to ``OUTPUT/quarantine`` with the names of what it broke, and
``OUTPUT/counts`` says for each batch how many rows broke what. Each batch has folders of its own, which it writes anew
when it is run again. Rows that break a ``--fail`` go to ``OUTPUT/failed``, and end the query before it has passed their
batch.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidebus.spark import register

KINDS = ("warn", "drop", "fail")


class ExpectationFailedError(Exception):
    """A row broke an expectation that must hold."""


def checking(output: str, expectations: Mapping[str, Mapping[str, str]]) -> Callable[[DataFrame, int], None]:
    """Return what checks a batch and writes it. ``expectations``: kind → name → SQL; null counts as broken."""

    def broken(kind: str) -> Column:
        names = [F.expr(f"IF(coalesce({sql}, false), NULL, '{name}')") for name, sql in expectations[kind].items()]
        return F.array_compact(F.array(*names)) if names else F.array().cast("array<string>")

    def check(batch: DataFrame, number: int) -> None:
        rows = batch.where("_change_type IN ('insert', 'update_postimage')")
        for kind in KINDS:
            rows = rows.withColumn(f"_{kind}", broken(kind))
        rows.persist()
        every = F.explode(F.concat(*(f"_{kind}" for kind in KINDS))).alias("expectation")
        counts = rows.select(every).groupBy("expectation").count()
        if not (failed := rows.where("size(_fail) > 0")).isEmpty():
            failed.write.mode("overwrite").parquet(f"{output}/failed/batch={number}")
            raise ExpectationFailedError(f"batch {number} has rows that must not be: {output}/failed/batch={number}")
        passed = rows.where("size(_drop) = 0").drop("_drop", "_fail")
        dropped = rows.where("size(_drop) > 0").drop("_fail")
        for name, frame in (("passed", passed), ("quarantine", dropped), ("counts", counts)):
            frame.write.mode("overwrite").parquet(f"{output}/{name}/batch={number}")
        rows.unpersist()

    return check


def main(argv: Sequence[str] | None = None) -> None:
    """Follow the table until it is stopped; with ``--once`` until all that there is now is checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kafka", "raw", "table", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    for name in KINDS:
        parser.add_argument(f"--{name}", action="append", default=[], help="NAME: SQL")
    parser.add_argument("--starting-ts", default="earliest")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args(argv)
    expectations = {kind: dict(text.split(":", 1) for text in getattr(given, kind)) for kind in KINDS}
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    source = {"kafka": given.kafka, "raw": given.raw, "table": given.table, "startingTs": given.starting_ts}
    source["maxRowsPerBatch"] = "0" if given.once else "500000"
    changes = spark.readStream.format("tidebus").options(**source).load()
    writer = changes.writeStream.foreachBatch(checking(given.output, expectations))
    writer = writer.option("checkpointLocation", given.checkpoint)
    query = (writer.trigger(availableNow=True) if given.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
