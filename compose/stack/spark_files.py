"""Tells Spark where its Kafka connector's jars are on this machine."""

import os

from compose.stack.jars import Say, spark_connector_jars
from compose.stack.java import find_java
from sorters.spark.session import SPARK_JARS_ENV


def name_spark_files(say: Say) -> None:
    """Tell :mod:`sorters.spark.session`, in this process and what it starts, where the jars are, unless it was told.

    Raises:
        JarsError: they are not here and could not be fetched.
        MachineError: no Java.
    """
    find_java()
    if SPARK_JARS_ENV not in os.environ:
        os.environ[SPARK_JARS_ENV] = ",".join(str(jar) for jar in spark_connector_jars(say))
