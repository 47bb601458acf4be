"""Who runs a cut: threads of the driver, or a Spark job. Decided here and nowhere else, and shown with its reason.

The constants are measured (``make bench ONLY=spark_floor``, ``sorter_vs_copy``; what was measured when:
docs/decisions/2026-11-22-price-of-a-spark-task.md).
"""

from dataclasses import dataclass
from enum import StrEnum


class Runner(StrEnum):
    """Where the rows of a cut are mounted, encoded and written."""

    DRIVER = "driver"
    SPARK = "spark"


class Reason(StrEnum):
    """Why; the text stands in metrics, status and logs."""

    BEYOND_DRIVER_MEMORY = "beyond_driver_memory"
    """The driver holds a whole cut in memory, and this one is larger than it may hold, whoever asks for it."""
    FORCED_BY_CHANGEFEED = "forced_by_changefeed"
    FORCED_BY_SERVICE = "forced_by_service"
    CLUSTER_MASTER = "cluster_master"
    """Executors have machines of their own: no row is worked on by the driver's."""
    BACKLOG = "backlog"
    """The cut is of a streaming query over a backlog, whose JVM runs already."""
    WORTH_A_JOB = "worth_a_job"
    """On this machine, but sooner done by several workers, for little more CPU."""
    CHEAPER_ON_DRIVER = "cheaper_on_driver"
    LAKE_LAYOUT = "lake_layout"
    """Of lake tables: files of one are not the driver's to write, for it has partitions or an order, stands on no local
    file system, or has a field that is not TiDB's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSize:
    """What is known, or guessed, of a cut before it runs."""

    raw_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What running a cut costs on this machine."""

    job_s: float = 0.052
    """Elapsed from asking for a job until its tasks work, and from their end to ours: p50 of a job of one task."""
    job_cpu_s: float = 0.015
    """CPU of a job with one task that does nothing: the JVM's, the worker's and ours."""
    further_task_cpu_s: float = 0.004
    """CPU that each further task of a job adds."""
    row_cpu_s: float = 5e-6
    """CPU of a row from the raw log to the sink, on the driver and in a task alike."""
    driver_bytes_max: int = 16 * 1024 * 1024
    """Raw bytes of a cut that the driver may hold."""
    cpu_ratio_max: float = 1.3
    """CPU by Spark ÷ CPU by the driver above which a sooner end is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who runs a cut, and why."""

    runner: Runner
    reason: Reason


def is_cluster(master: str) -> bool:
    """Tell whether a Spark master runs executors outside of the driver's JVM: all but ``local`` and ``local[n]`` do."""
    return not (master == "local" or master.startswith("local["))


def runner_of(option: str) -> Runner | None:
    """Return whom an option ``auto``, ``driver`` or ``spark`` asks for; None: it leaves it to us."""
    return None if option == "auto" else Runner(option)


def tasks_at_once(master: str) -> int:
    """Return how many tasks a local master runs at once; 1 where it does not say so (``local[*]``, a cluster)."""
    number = master.removeprefix("local[").split(",")[0].rstrip("]")
    return max(1, int(number)) if master.startswith("local[") and number.isdecimal() else 1


def choose_runner(
    size: CutSize,
    *,
    on_cluster: bool,
    tasks: int,
    backlog: bool,
    by_changefeed: Runner | None = None,
    by_service: Runner | None = None,
    costs: Costs | None = None,
) -> Choice:
    """Return who runs a cut.

    What comes first holds: the driver's memory, the changefeed's option, the service's, a cluster, a backlog, the cost.

    Args:
        on_cluster: see :func:`is_cluster`.
        tasks: that a job of this session has at once, on cores of their own.
        backlog: the cut is one of a streaming query.
        by_changefeed: its option; None: it leaves it to us.
        by_service: likewise.
        costs: as measured elsewhere; None: as measured for this version.
    """
    costs = costs or Costs()
    too_large, asked_for = size.raw_bytes > costs.driver_bytes_max, by_changefeed or by_service
    if too_large and asked_for is Runner.DRIVER:
        return Choice(runner=Runner.SPARK, reason=Reason.BEYOND_DRIVER_MEMORY)
    if by_changefeed is not None:
        return Choice(runner=by_changefeed, reason=Reason.FORCED_BY_CHANGEFEED)
    if by_service is not None:
        return Choice(runner=by_service, reason=Reason.FORCED_BY_SERVICE)
    if on_cluster:
        return Choice(runner=Runner.SPARK, reason=Reason.CLUSTER_MASTER)
    if backlog:
        return Choice(runner=Runner.SPARK, reason=Reason.BACKLOG)
    if too_large:
        return Choice(runner=Runner.SPARK, reason=Reason.BEYOND_DRIVER_MEMORY)
    if is_worth_a_job(size.rows, tasks, costs):
        return Choice(runner=Runner.SPARK, reason=Reason.WORTH_A_JOB)
    return Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER)


def is_worth_a_job(rows: int, tasks: int, costs: Costs) -> bool:
    """Tell whether a job of ``tasks`` tasks ends sooner than the driver alone, within the CPU that this may cost."""
    driver_s = rows * costs.row_cpu_s
    spark_s = costs.job_s + driver_s / max(tasks, 1)
    spark_cpu_s = driver_s + costs.job_cpu_s + max(tasks - 1, 0) * costs.further_task_cpu_s
    return spark_s < driver_s and spark_cpu_s <= costs.cpu_ratio_max * driver_s
