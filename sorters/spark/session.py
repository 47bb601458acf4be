"""The Spark session of a sorter process, started when the first thing is to be done that is worth it.

pyspark is imported with the session, for one with small batches never needs it
(docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import contextlib
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sorters.log.failures import SparkStartError, bus_error

BLOCK_BYTES_PER_ARROW_BATCH = 8 * 1024 * 1024
"""What Spark hands to Python at once, in blocks of some 512 KiB (:mod:`sorters.core.records.runs`)."""
SPARK_JARS_ENV = "TIDEBUS_SPARK_JARS"
"""Comma-separated paths of the Kafka connector's jars."""
SHIPPED_PACKAGES = ("schemas", "sorters")
DRIVER_MEMORY = "1500m"
"""Heap of the one JVM of ``local[n]``: sorts spill to disk, so more only makes fewer spills."""
PATHS = frozenset(
    {"spark.archives", "spark.files", "spark.jars", "spark.submit.pyFiles"}
    | {f"spark.yarn.dist.{what}" for what in ("archives", "files", "jars")}
)
"""Settings of Spark that are lists of files: each a URI, or a path on this machine."""
LOCAL_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of ``local[n]``, where no row goes through the JVM (:mod:`sorters.spark.run_folder`): it plans, and hands out tasks
(docs/decisions/2026-11-22-past-the-jvm.md)."""


def zip_code(folder: Path) -> Path:
    """Write the packages that executors import into a zip file and return it; the libraries they need must be there."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "tidebus-code.zip"
    root = Path(__file__).resolve().parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED_PACKAGES:
            for file in sorted((root / package).rglob("*.py")):
                archive.write(file, file.relative_to(root))
    return target


Session = Callable[[], Any]
"""Returns the session, and starts it if need be."""


def connector_packages() -> str:
    """Return the Maven coordinates of the Kafka connector for the installed pyspark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def _connector() -> tuple[str, str]:
    """Return the setting that brings the Kafka connector.

    ``$TIDEBUS_SPARK_JARS`` names jars that are here already; without it Ivy looks into its cache in the home folder and
    fetches what is missing. Two sessions that start at once must not share that cache while it is filled.
    """
    jars = os.environ.get(SPARK_JARS_ENV)
    return ("spark.jars", jars) if jars else ("spark.jars.packages", connector_packages())


def _jvm_options(*, local: bool) -> str:
    options = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"]
    if local:
        options.append(LOCAL_JVM_OPTIONS)
    return " ".join(options)


def create_session(
    master: str,
    app: str,
    data_dir: Path,
    *,
    driver_memory: str = DRIVER_MEMORY,
    conf: Mapping[str, str] | None = None,
) -> Any:
    """Start Spark (a JVM, about 5 s) and return the session; ``conf`` goes before everything here.

    Adaptive execution is off: it would plan twice, and a batch chooses its own number of tasks.
    """
    from pyspark.sql import SparkSession

    data_dir = data_dir.resolve()
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    local = master.startswith("local")
    builder = (
        SparkSession.builder.master(master)
        .appName(app)
        .config(*_connector())
        .config("spark.driver.memory", driver_memory)
        .config("spark.sql.warehouse.dir", str(data_dir / "warehouse"))
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(BLOCK_BYTES_PER_ARROW_BATCH))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.minBatchesToRetain", "10")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.ui.retainedExecutions", "5")
        .config("spark.ui.retainedJobs", "20")
        .config("spark.ui.retainedStages", "20")
        .config("spark.ui.retainedTasks", "100")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.speculation", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.driver.extraJavaOptions", _jvm_options(local=local))
    )
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark looks for the host's name, and warns
        builder = (
            # On a cluster the executors' machines know where they have room.
            builder.config("spark.local.dir", str(data_dir / "spark"))
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            # What is shuffled stays on this machine: compressing it takes half as much again as moving it.
            .config("spark.shuffle.compress", "false")
        )
    for key, value in (conf or {}).items():
        builder = builder.config(key, _where_it_is(key, value))
    with contextlib.chdir(_jvm_folder(data_dir)):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not local:
        session.sparkContext.addPyFile(str(zip_code(data_dir)))
    return session


def _jvm_folder(data_dir: Path) -> Path:
    """Return the folder in which the JVM is to work, without what a killed one has left there: Spark keeps a folder
    ``artifacts`` wherever it was started."""
    folder = data_dir / "jvm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _where_it_is(key: str, value: str) -> str:
    """Return a setting with its relative paths as seen from our folder, for the JVM works in another."""
    if key not in PATHS:
        return value
    return ",".join(path if ":" in path else str(Path(path).resolve()) for path in value.split(",") if path)


class SparkOnDemand:
    """A process's one session, from any thread."""

    def __init__(self, start: Session) -> None:
        """``start`` is :func:`create_session` with all that it takes."""
        self._start = start
        self._starting = threading.Lock()
        self._session: Any = None
        self._failed = False

    def get(self) -> Any:
        """Return the session; the first call starts it.

        Raises:
            SparkStartError: it cannot be had. What is left of it in this process is not to be used.
        """
        with self._starting:
            if self._session is None:
                self._failed = True
                try:
                    self._session = self._start()
                except Exception as error:
                    reason = bus_error(error).fields.get("reason", error)
                    raise SparkStartError(
                        "spark did not start; its own words are in the sorter's log", reason=reason
                    ) from error
                self._failed = False
            return self._session

    def is_gone(self) -> bool:
        """Tell whether it can run nothing any more: it did not start, its JVM has ended, its cluster sent it away."""
        if self._session is None:
            return self._failed
        try:
            return bool(self._session.sparkContext._jsc.sc().isStopped())
        except Exception:  # Py4J's, of many kinds: nobody answers
            return True

    def stop(self) -> None:
        """End it, if it was started."""
        with self._starting:
            if self._session is not None:
                self._session.stop()
