"""The one Spark session of a service: started with its first changefeed, kept warm, begun anew when its JVM is gone, or
when its cluster has left it without executors.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING

from schemas.errors import BusError
from sorters.core.service.stranded import STRANDED_S, Stranded
from sorters.spark.jobs.first_job import run_first_job
from sorters.spark.jobs.spark_counts import OF_PROCESS
from sorters.spark.session import Session, SparkOnDemand, forget_dead_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Between two looks whether a session that should be warm is still there."""
AGAIN_MAX_S = 60.0
"""Between two starts of one that does not start, at most: each costs a JVM, or asks a cluster that has no room."""


class SharedSpark:
    """From any thread."""

    def __init__(self, start: Session) -> None:
        """``start`` starts a session, which may be the second one of this process."""
        self._start = start
        self._spark = SparkOnDemand(start)
        self._lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self._look_at_s = self._executors_at_s = 0.0
        self._again_s = LOOK_S
        """How long the next start waits if this one fails."""
        self._stranded = Stranded()

    def get(self) -> "SparkSession":
        """Return the session, and start it where there is none, or none that lives.

        Raises:
            SparkStartError: it cannot be had.
        """
        with self._lock:
            if self._spark.is_gone():
                log.warning("spark is gone; it is started again")
                forget_dead_session()
                self._spark = SparkOnDemand(self._start)
                self._stranded = Stranded()
            spark = self._spark
        if spark.is_started:
            return spark.get()
        session = spark.get()
        OF_PROCESS.add(sessions=1)
        return session

    def is_warm(self) -> bool:
        """Tell whether there is a session, whether it lives or has just died."""
        return self._spark.is_started

    def warm(self) -> None:
        """See that there is a session soon; returns at once, also where its JVM stands and answers nothing."""
        if time.monotonic() < self._look_at_s or (self._warming is not None and self._warming.is_alive()):
            return
        self._look_at_s = time.monotonic() + LOOK_S
        self._warming = threading.Thread(target=self._warm, name="spark-start", daemon=True)
        self._warming.start()

    def look(self) -> None:
        """See that the session of a cluster, if there is one, has executors for its jobs; returns soon."""
        now_s, spark = time.monotonic(), self._spark
        if now_s < self._executors_at_s or not spark.is_started or spark.is_gone():
            return
        self._executors_at_s = now_s + LOOK_S
        if self._stranded.sees(*spark.executors_and_jobs(), now_s):
            log.warning("spark has no executors left; the session is given up", extra={"after_s": STRANDED_S})
            self._stranded = Stranded()
            # Whose jobs wait finds out, and asks for another session.
            threading.Thread(target=spark.stop, name="spark-stop", daemon=True).start()

    @property
    def web_url(self) -> str:
        """Where Spark's UI is; empty: there is no session, or it has none."""
        spark = self._spark
        return spark.web_url if spark.is_started else ""

    def stop(self) -> None:
        """End it, if it was started."""
        self._spark.stop()

    def _warm(self) -> None:
        if self._spark.is_started and not self._spark.is_gone():
            return
        try:
            spark = self.get()
        except BusError as error:
            # Who needs it gets the same error, and its changefeed's state shows it.
            extra = {"code": error.code, "reason": str(error), "again_in_s": self._again_s}
            log.warning("spark did not start", extra=extra)
            self._look_at_s = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            return
        self._again_s = LOOK_S
        run_first_job(spark)
