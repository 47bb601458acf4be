"""Keeps every version of every row: a slowly changing dimension of type 2, made by one MERGE a batch.

    spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1 examples/spark/scd2.py \\
        --kafka 127.0.0.1:9092 --raw default --table shop.orders --key id \\
        --warehouse /data/lake --target lake.shop.orders_history --checkpoint /data/checkpoints/orders-history

A version holds from ``_valid_from`` on and before ``_valid_to``, which are commit_ts of TiDB; null: it holds now. The
table as it stood at a ts: ``WHERE _valid_from <= ts AND (_valid_to IS NULL OR _valid_to > ts)``.
"""

import argparse
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidebus.spark import register


def versions(batch: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the versions that a batch begins; a delete begins none, and ends the one before as any change does."""
    once = Window.partitionBy(*key, "_commit_version").orderBy(F.expr("_change_type = 'delete'"))
    changes = batch.where("_change_type <> 'update_preimage'").withColumn("_number", F.row_number().over(once))
    by_time = Window.partitionBy(*key).orderBy("_valid_from")
    changes = changes.where("_number = 1").withColumnRenamed("_commit_version", "_valid_from")
    return changes.withColumn("_valid_to", F.lead("_valid_from").over(by_time)).drop("_number", "_commit_timestamp")


def keeping(target: str, key: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """Return what merges the versions of a batch into a table, which it makes if there is none."""

    def merge(batch: DataFrame, _: int) -> None:
        spark = batch.sparkSession
        begun = versions(batch, key)
        new = begun.where("_change_type <> 'delete'").drop("_change_type")
        if not spark.catalog.tableExists(target):
            new.limit(0).writeTo(target).create()
        # Ended are versions of before the batch: one that is run again ends no version of its own.
        first = begun.groupBy(*key).agg(F.min("_valid_from").alias("_end"))
        ended = spark.table(target).where("_valid_to IS NULL").join(first, list(key)).where("_valid_from < _end")
        ended = ended.withColumn("_valid_to", F.col("_end"))
        new.unionByName(ended.select(*new.columns)).createOrReplaceTempView("versions")
        same = " AND ".join(f"t.`{column}` = v.`{column}`" for column in (*key, "_valid_from"))
        spark.sql(
            f"MERGE INTO {target} t USING versions v ON {same} "
            "WHEN MATCHED THEN UPDATE SET t._valid_to = v._valid_to WHEN NOT MATCHED THEN INSERT *"
        )

    return merge


def main(argv: Sequence[str] | None = None) -> None:
    """Follow the table until it is stopped; with ``--once`` until all that there is now is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kafka", "raw", "table", "target", "warehouse", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--key", required=True, nargs="+", help="columns of the table's primary key")
    parser.add_argument("--starting-ts", default="earliest")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args(argv)
    spark = (
        SparkSession.builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", given.warehouse)
        .getOrCreate()
    )
    register(spark)
    source = {"kafka": given.kafka, "raw": given.raw, "table": given.table, "startingTs": given.starting_ts}
    source["maxRowsPerBatch"] = "0" if given.once else "500000"
    changes = spark.readStream.format("tidebus").options(**source).load()
    writer = changes.writeStream.foreachBatch(keeping(given.target, given.key))
    writer = writer.option("checkpointLocation", given.checkpoint)
    query = (writer.trigger(availableNow=True) if given.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
