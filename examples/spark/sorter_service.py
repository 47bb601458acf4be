"""A sorter service whose JVM ``spark-submit`` starts, with what that says of queues, files and memory:

    spark-submit --master yarn --jars "$JARS" --conf spark.driver.memory=1500m examples/spark/sorter_service.py \\
        --master yarn --kafka 127.0.0.1:9092 --zookeeper 127.0.0.1:2181

``JARS`` are those that ``tidebus setup`` has fetched, separated by commas; TideBus is installed for the Python that
runs this (``PYSPARK_DRIVER_PYTHON``). What follows the script's name is for ``tidebus sorters``.
"""

import sys

from compose.cli import run_cli

if __name__ == "__main__":
    sys.exit(run_cli(["sorters", *sys.argv[1:]]))
