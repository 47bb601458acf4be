"""The Spark session of a sorter process, started when the first thing is to be done that is worth it.

pyspark is imported with the session, for one with small cuts never needs it
(docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edges.process_marks import is_of_dead, process_mark
from schemas.errors import BusError
from schemas.redaction import REDACT_VARIABLE, Redaction, redaction
from sorters.log.failures import SparkStartError, bus_error
from sorters.spark.addresses import DRIVER_HOST, LOCAL_IP_ENV, LOOPBACK, PUBLIC_NAME_ENV, driver_host
from sorters.spark.connector import SUBMITTED_ENV, jar_settings
from sorters.spark.jvm_pulse import JvmPulse
from sorters.spark.security import security_settings, split_secrets
from sorters.spark.worker import python_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

BLOCK_BYTES_PER_ARROW_BATCH = 8 * 1024 * 1024
"""What Spark hands to Python at once, in blocks of some 512 KiB (:mod:`sorters.core.records.runs`)."""
SPARK_JVM_ENV = "TIDEBUS_SPARK_JVM"
"""Options of the driver's JVM that are this machine's: from which archive of classes it starts."""
SHIPPED_PACKAGES = ("schemas", "edges", "sorters")
CODE_ZIP = "tidebus-code.zip"
LIBRARIES_FOLDER = "tidebus-executors"
"""Where executors look for libraries that are sent to them: the name behind ``#`` in ``spark.archives``."""
EXECUTOR_PATH = "spark.executorEnv.PYTHONPATH"
EXECUTOR_SAFE_PATH = "spark.executorEnv.PYTHONSAFEPATH"
EXECUTOR_REDACTION = f"spark.executorEnv.{REDACT_VARIABLE}"
DRIVER_MEMORY = "1500m"
"""Heap of the one JVM of ``local[n]``: sorts spill to disk, so more only makes fewer spills."""
EVENT_LOG_PART = "32m"
SHOWN_AS_STARS = r"(?i)secret|password|token|access[-.]?key|credential|authorization|jaas|keystore|\.pem"
"""Settings whose values Spark's UI and event log do not show: Spark's own, and what a Kafka client of Java and catalogs
of Iceberg take their secrets in."""
PATHS = frozenset(
    {"spark.archives", "spark.files", "spark.jars", "spark.submit.pyFiles"}
    | {f"spark.yarn.dist.{what}" for what in ("archives", "files", "jars")}
)
"""Settings of Spark that are lists of files: each a URI, or a path on this machine."""
HEARTBEAT_MISSED_MAX = "365d"
LOCAL_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of ``local[n]``, where no row goes through the JVM (:mod:`sorters.spark.tasks.run_folder`): it plans, and hands out
tasks (docs/decisions/2026-11-22-past-the-jvm.md)."""


def zip_code(folder: Path) -> Path:
    """Write the packages that executors import into a zip file and return it; the libraries they need must be there."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / CODE_ZIP
    root = Path(__file__).resolve().parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED_PACKAGES:
            for file in sorted((root / package).rglob("*.py")):
                archive.write(file, file.relative_to(root))
    return target


Session = Callable[[], "SparkSession"]
"""Returns the session, and starts it if need be."""


def jvm_options(*, local: bool) -> str:
    """Return options of the driver's JVM that are the same on every machine."""
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
) -> "SparkSession":
    """Start Spark (a JVM, about 5 s) and return the session; ``conf`` goes before everything here.

    Adaptive execution is off: it would plan twice, and a cut chooses its own number of tasks.

    Raises:
        SparkJarsMissingError: nobody says where the Kafka connector is.
        SparkSecretError: see :func:`sorters.spark.security.security_settings`.
        DriverHostError: see :func:`sorters.spark.addresses.driver_host`.
        SparkStartError: its JVM, or its cluster, refuses.
    """
    settings = _settings(master, app, data_dir.resolve(), driver_memory)
    settings |= security_settings(master, {key: _where_it_is(key, value) for key, value in (conf or {}).items()})
    settings |= jar_settings(master, settings)
    if EXECUTOR_PATH in settings:
        settings[EXECUTOR_PATH] = _with_code(settings[EXECUTOR_PATH])
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    local = master.startswith("local")
    settings.setdefault(DRIVER_HOST, driver_host(master, os.environ))
    if SUBMITTED_ENV not in os.environ:
        for variable in (LOCAL_IP_ENV, PUBLIC_NAME_ENV):
            os.environ.setdefault(variable, LOOPBACK)
    elif LOCAL_IP_ENV not in os.environ:
        # Its JVM has begun without our environment: the UI would listen at all addresses of the machine.
        settings["spark.ui.enabled"] = "false"
        extra = {"variable": LOCAL_IP_ENV}
        log.warning("spark has no UI: spark-submit was started without an address for it", extra=extra)
    _clear_spark_folder(data_dir.resolve() / "spark")
    with contextlib.chdir(_jvm_folder(data_dir.resolve())):
        session = _started(lambda: _session(settings))
    # A task's failure is logged with the text of the exception, which may quote a row.
    session.sparkContext.setLogLevel("ERROR" if redaction() is Redaction.OFF else "OFF")
    if not local:
        session.sparkContext.addPyFile(str(zip_code(data_dir.resolve())))
    return session


def _started(start: Session) -> "SparkSession":
    """Return what ``start`` does.

    Raises:
        SparkStartError: Spark says no, in one of its many kinds.
        BusError: so does ``start``.
    """
    try:
        return start()
    except BusError:
        raise
    except Exception as error:
        reason = bus_error(error).fields.get("reason", error)
        text = "spark did not start; its own words are in the log, or on standard error"
        raise SparkStartError(text, reason=reason) from error


def _session(settings: Mapping[str, str]) -> "SparkSession":
    """Return a session, this process's own if it has one.

    pyspark writes the settings with which it starts the JVM into that command line; so the secret ones come after.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    shown, hidden = split_secrets(settings)
    if SparkContext._gateway is None:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(shown.items())))
    SparkContext.getOrCreate(SparkConf().setAll([*shown.items(), *hidden.items()]))
    return SparkSession.builder.getOrCreate()


def _settings(master: str, app: str, data_dir: Path, driver_memory: str) -> dict[str, str]:
    local = master.startswith("local")
    settings = {
        "spark.master": master,
        "spark.app.name": app,
        "spark.driver.memory": driver_memory,
        "spark.sql.warehouse.dir": str(data_dir / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BLOCK_BYTES_PER_ARROW_BATCH),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.ui.enabled": "false",
        # A GET would do, without a login: any page in a browser on this machine could send it.
        "spark.ui.killEnabled": "false",
        "spark.redaction.regex": SHOWN_AS_STARS,
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        # One attempt beside another must not write: a lost run fails the job (sorters.spark.jobs.own_job).
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.python.worker.reuse": "true",
        # Of a task that was cancelled (sorters.spark.jobs.job_group.DEATH_S).
        "spark.python.task.killTimeout": "500ms",
        "spark.python.daemon.module": python_daemon.MODULE,
        "spark.driver.extraJavaOptions": f"{jvm_options(local=local)} {os.environ.get(SPARK_JVM_ENV, '')}".strip(),
        EXECUTOR_REDACTION: redaction().value,
        # Workers of local[n], too, which work where the JVM does: under spark-submit in any folder.
        EXECUTOR_SAFE_PATH: "1",
    }
    if local:
        settings |= {
            # On a cluster the executors' machines know where they have room.
            "spark.local.dir": str(data_dir / "spark" / process_mark()),
            "spark.driver.bindAddress": LOOPBACK,
            # Its one executor is the driver. Missed for two minutes, as after a suspension, it would be given up, and
            # register anew where nobody listens, every ten seconds, with a stack in the log.
            "spark.storage.blockManagerHeartbeatTimeoutMs": HEARTBEAT_MISSED_MAX,
            # What is shuffled stays on this machine: compressing it takes half as much again as moving it.
            "spark.shuffle.compress": "false",
        }
    else:
        # An executor's daemon starts in the folder that shipped files come to.
        settings[EXECUTOR_PATH] = ""
    if master.startswith("k8s://"):
        # A driver that is no pod of spark-submit's has none, and no right to delete any.
        settings["spark.kubernetes.driver.service.deleteOnTermination"] = "false"
    return settings


def event_log_settings(folder: str) -> dict[str, str]:
    """Return the settings by which Spark writes down its jobs in ``folder``, a Hadoop URI or a path; empty: none.

    A folder of this machine is made where it is missing: Spark would not start without it.
    """
    if not folder:
        return {}
    if ":" not in folder:
        path = Path(folder).resolve()
        path.mkdir(parents=True, exist_ok=True)
        folder = path.as_uri()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder,
        # A service runs for weeks: a history server can make old parts smaller, and whoever cleans up remove them.
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": EVENT_LOG_PART,
    }


def _with_code(path: str) -> str:
    """Return a ``PYTHONPATH`` of executors that has our code in it, also where one is given."""
    ours = (CODE_ZIP, LIBRARIES_FOLDER)
    return ":".join([*ours, *(part for part in path.split(":") if part and part not in ours)])


def _clear_spark_folder(folder: Path) -> None:
    """Remove what JVMs have left behind that were killed: of processes that have ended, and an earlier one of this one.

    A JVM that lives, with or without a session, goes on to use what it has made.
    """
    from pyspark import SparkContext

    for each in folder.glob("*"):
        if is_of_dead(each.name) or (each.name == process_mark() and SparkContext._gateway is None):
            shutil.rmtree(each, ignore_errors=True)


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
        self._pulse: JvmPulse | None = None
        self._web_url = ""
        self._failed = False

    def get(self) -> "SparkSession":
        """Return the session; the first call starts it.

        Raises:
            SparkStartError: it cannot be had. What is left of it in this process is not to be used.
        """
        with self._starting:
            if self._session is None:
                try:
                    session = _started(self._start)
                except BusError:
                    self._failed = True
                    raise
                self._web_url = str(session.sparkContext.uiWebUrl or "")
                self._session, self._failed = session, False
                self._pulse = JvmPulse(self.is_gone, kill_jvm)
                self._pulse.start()
            return self._session

    def is_gone(self) -> bool:
        """Tell whether it can run nothing any more: it did not start, its JVM has ended, its cluster sent it away.

        One that is being started is not gone.
        """
        if self._session is None:
            return self._failed
        try:
            return bool(self._session.sparkContext._jsc.sc().isStopped())
        except Exception:  # Py4J's, of many kinds: nobody answers
            return True

    def executors_and_jobs(self) -> tuple[int, int]:
        """Return how many executors the session has, and how many jobs run or wait; none of either if nobody answers.

        The driver of ``local[n]`` is no executor.
        """
        try:
            spark = self._session.sparkContext._jsc.sc()
            return int(spark.getExecutorMemoryStatus().size()) - 1, len(spark.statusTracker().getActiveJobIds())
        except Exception:  # Py4J's, of many kinds
            return 0, 0

    @property
    def is_started(self) -> bool:
        """Whether there is a session, or was one."""
        return self._session is not None

    @property
    def web_url(self) -> str:
        """Where the session's UI is, or was; empty: it has none. It is not asked for: nobody may be there any more."""
        return self._web_url

    def stop(self) -> None:
        """End it, if it was started."""
        with self._starting:
            if self._session is not None:
                self._session.stop()
            if self._pulse is not None:
                self._pulse.close()


def end_jvm(spark: "SparkSession", timeout_s: float) -> None:
    """End a session and its JVM; return when that has ended. Another session may follow.

    Raises:
        subprocess.TimeoutExpired: it has not ended in time; it is killed.
    """
    from pyspark import SparkContext

    process = SparkContext._gateway.proc
    spark.stop()
    try:
        process.stdin.close()  # the JVM ends with it
        process.wait(timeout_s)
    finally:
        forget_dead_session()


def kill_jvm() -> None:
    """End this process's JVM, which does not answer; one of spark-submit's is our parent, and all ends with it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
    elif gateway is not None and SUBMITTED_ENV in os.environ:
        os.kill(os.getppid(), signal.SIGKILL)


def forget_dead_session() -> None:
    """Make this process ready for another session, after the JVM of the last one has ended.

    pyspark keeps one gateway a process, in its classes, and has no words for a JVM that died.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    for owner, names in (
        (SparkContext, ("_active_spark_context", "_gateway", "_jvm")),
        (SparkSession, ("_instantiatedSession",)),
    ):
        for name in names:
            setattr(owner, name, None)
    if gateway is None:
        return
    with contextlib.suppress(Exception):  # Py4J's, of many kinds: nobody is there any more
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
