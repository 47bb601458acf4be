"""Tells Spark where the jars are on this machine that it needs beside its own."""

import os

from compose.stack.class_archives import archive_flags, spark_class_path
from compose.stack.jars import cached_spark_jars
from compose.stack.java import find_java
from sorters.spark.session import SPARK_JARS_ENV, SPARK_JVM_ENV


def name_spark_files() -> None:
    """Tell :mod:`sorters.spark.session`, in this process and what it starts, where the jars are, unless it was told.

    A process that serves fetches nothing: the jars are those of ``tidebus setup``, or of whoever set the variable.

    Raises:
        JarsMissingError: they are not here.
        JarChecksumError: those in the cache are not the pinned ones.
        MachineError: no Java.
    """
    find_java()
    if SPARK_JARS_ENV not in os.environ:
        os.environ[SPARK_JARS_ENV] = ",".join(str(jar) for jar in cached_spark_jars())
    if SPARK_JVM_ENV not in os.environ:
        os.environ[SPARK_JVM_ENV] = " ".join(archive_flags("spark", spark_class_path()))
