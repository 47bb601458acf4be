"""Keeps a lakehouse table equal to a TiDB table: MERGE of the newest change of each key, batch after batch.

    spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1 examples/spark/merge_into.py \\
        --kafka 127.0.0.1:9092 --raw default --table shop.orders --key id \\
        --warehouse /data/lake --target lake.shop.orders --checkpoint /data/checkpoints/orders

A batch that is run again after a crash has the same changes, and merging them twice changes nothing: so no change is
lost and none counts twice. ``--starting-ts earliest`` is right for a table that was created after TideBus was; copy an
older one first, and start above the ts of the copy.
"""

import argparse
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidebus.spark import register

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def newest(batch: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the last change of each key: where a transaction deletes a row and inserts its key anew, the insert."""
    order = Window.partitionBy(*key).orderBy(F.desc("_commit_version"), F.expr("_change_type = 'delete'"))
    changes = batch.where("_change_type <> 'update_preimage'")
    return changes.withColumn("_number", F.row_number().over(order)).where("_number = 1").drop("_number")


def merging(target: str, key: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """Return what merges a batch into a table, which it makes if there is none."""

    def merge(batch: DataFrame, _: int) -> None:
        spark = batch.sparkSession
        rows = batch.drop(*CHANGE_COLUMNS)
        if not spark.catalog.tableExists(target):
            rows.limit(0).writeTo(target).create()
        newest(batch, key).createOrReplaceTempView("changes")
        same = " AND ".join(f"t.`{column}` = c.`{column}`" for column in key)
        columns = [f"`{column}`" for column in rows.columns]
        spark.sql(
            f"MERGE INTO {target} t USING changes c ON {same} "
            "WHEN MATCHED AND c._change_type = 'delete' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{column} = c.{column}' for column in columns)} "
            f"WHEN NOT MATCHED AND c._change_type <> 'delete' THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(f'c.{column}' for column in columns)})"
        )

    return merge


def main(argv: Sequence[str] | None = None) -> None:
    """Follow the table until it is stopped; with ``--once`` until all that there is now is merged."""
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
        .config("spark.sql.variable.substitute", "false")  # names of columns are upstream's
        .getOrCreate()
    )
    register(spark)
    source = {"kafka": given.kafka, "raw": given.raw, "table": given.table, "startingTs": given.starting_ts}
    source["maxRowsPerBatch"] = "0" if given.once else "500000"
    changes = spark.readStream.format("tidebus").options(**source).load()
    writer = changes.writeStream.foreachBatch(merging(given.target, given.key))
    writer = writer.option("checkpointLocation", given.checkpoint)
    query = (writer.trigger(availableNow=True) if given.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
