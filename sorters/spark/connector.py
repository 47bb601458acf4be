"""Where Spark's driver takes the jars from that pyspark does not have: its Kafka connector, Iceberg, a user's own.

``spark.jars`` are copied, by a server of Spark's own, into a folder of each executor, which the driver of ``local[n]``
is as well: 57 MB, a sixth of a session's start. And what is loaded from there is in no archive of classes. So the jars
of ``tidebus setup`` are on the class path of the driver's JVM, and are copied where other processes need them, too
(docs/decisions/2026-11-30-what-a-session-loads.md).

Not where there are others beside them: classes on the class path do not see those that Spark copies, and Iceberg looks
for a driver of JDBC, or a client of S3, that a user has named.
"""

import os
from collections.abc import Mapping

from sorters.core.cut.runner import is_cluster
from sorters.log.failures import SparkJarsMissingError

SPARK_JARS_ENV = "TIDEBUS_SPARK_JARS"
"""Comma-separated paths of the jars."""
SPARK_CLASS_PATH_ENV = "TIDEBUS_SPARK_CLASS_PATH"
"""Those that may stand on the driver's class path, before Spark's own, separated as there."""
SUBMITTED_ENV = "PYSPARK_GATEWAY_PORT"
"""Set where ``spark-submit`` has started this process, whose JVM is then that one."""
CLASS_PATH, JARS = "spark.driver.extraClassPath", "spark.jars"


def connector_jars() -> str:
    """Return the jars, comma-separated. Spark itself is never asked to fetch any.

    Raises:
        SparkJarsMissingError: nobody says where they are.
    """
    jars = os.environ.get(SPARK_JARS_ENV)
    if not jars:
        raise SparkJarsMissingError(
            "nobody says where the jars of spark's kafka connector are: run `tidebus setup`, or name jars of your own",
            variable=SPARK_JARS_ENV,
        )
    return jars


def jar_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which a session has the jars.

    Args:
        given: all others, a user's among them: jars of theirs are instead of those that are named for this, a class
            path of theirs comes before ours.

    Raises:
        SparkJarsMissingError: nobody says where they are.
    """
    jars = connector_jars()
    on_class_path = os.environ.get(SPARK_CLASS_PATH_ENV, "").split(os.pathsep)
    if SUBMITTED_ENV in os.environ or JARS in given or not {*jars.split(",")} <= {*on_class_path}:
        return {JARS: given.get(JARS, jars)}
    class_path = {CLASS_PATH: os.pathsep.join(filter(None, [given.get(CLASS_PATH, ""), *on_class_path]))}
    # Executors of a cluster are other processes, and have their own class path.
    return class_path | {JARS: jars} if is_cluster(master) else class_path
