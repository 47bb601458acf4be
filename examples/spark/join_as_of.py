"""Joins two TiDB tables as they both stood at one ts, so that no transaction is seen by half.

    spark-submit examples/spark/join_as_of.py --kafka 127.0.0.1:9092 --raw default --ts 460000000000000001 \\
        --left shop.orders --left-key id --right shop.customers --right-key id --on "l.customer = r.id" \\
        --output /data/orders-with-customers

Each table is replayed from the log up to the ts, so the log must reach back to where the tables were empty. For older
tables keep a history (scd2.py), and join ``WHERE _valid_from <= ts AND (_valid_to IS NULL OR _valid_to > ts)``.
"""

import argparse
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidebus.spark import register

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def table_as_of(spark: SparkSession, source: Mapping[str, str], table: str, key: Sequence[str], ts: int) -> DataFrame:
    """Return the rows of a table as TiDB's ``AS OF`` has them: the last change of each key, if that is no delete."""
    changes = spark.read.format("tidebus").options(**source).option("table", table).option("endingTs", ts).load()
    order = Window.partitionBy(*key).orderBy(F.desc("_commit_version"), F.expr("_change_type = 'delete'"))
    changes = changes.where("_change_type <> 'update_preimage'").withColumn("_number", F.row_number().over(order))
    return changes.where("_number = 1 AND _change_type <> 'delete'").drop("_number", *CHANGE_COLUMNS)


def joined(left: DataFrame, right: DataFrame, on: str) -> DataFrame:
    """Return all rows of both, those that belong together in one; columns are called ``left_…`` and ``right_…``."""
    both = left.alias("l").join(right.alias("r"), F.expr(on), "full_outer")
    names = [F.col(f"l.`{name}`").alias(f"left_{name}") for name in left.columns]
    return both.select(*names, *(F.col(f"r.`{name}`").alias(f"right_{name}") for name in right.columns))


def main(argv: Sequence[str] | None = None) -> None:
    """Write the join as Parquet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kafka", "raw", "left", "right", "on", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ts", required=True, type=int)
    parser.add_argument("--left-key", required=True, nargs="+", help="columns of the primary key")
    parser.add_argument("--right-key", required=True, nargs="+", help="columns of the primary key")
    given = parser.parse_args(argv)
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    source = {"kafka": given.kafka, "raw": given.raw}
    left = table_as_of(spark, source, given.left, given.left_key, given.ts)
    right = table_as_of(spark, source, given.right, given.right_key, given.ts)
    joined(left, right, given.on).write.mode("overwrite").parquet(given.output)


if __name__ == "__main__":
    main()
