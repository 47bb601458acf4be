"""A TiDB table's changes as a Spark DataFrame, read from the raw log: docs/spark.md.

>>> from tidebus.spark import register  # doctest: +SKIP
>>> register(spark)  # doctest: +SKIP
>>> orders = spark.readStream.format("tidebus").option("kafka", "127.0.0.1:9092").option("raw", "default")
... # doctest: +SKIP
>>> changes = orders.option("table", "shop.orders").load()  # doctest: +SKIP
"""

from sorters.source.data_source import TideBusDataSource, register

__all__ = ["TideBusDataSource", "register"]
