"""What the owner's metrics say of sorter services: where they are, how many changefeeds each has, what Spark does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric, UntypedMetricFamily

from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.core.changefeeds.service_plan import dedicated_id
from schemas.nodes.sorter_service import FeedEntry, SparkFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """One that lives."""

    service: str
    capture: str
    """That runs it; empty: it was started by hand."""
    changefeeds: int
    """Assigned to it."""
    spark: SparkFigures
    entries: Sequence[FeedEntry]
    """What it has said of changefeeds that it has."""


def running_services(stored: StoredServices, captures: Sequence[CaptureInfo]) -> list[RunningService]:
    """Return the services that live, by id."""
    places = stored.service_of()
    return [
        RunningService(
            service=service,
            capture=capture_of(service, stored, captures),
            changefeeds=sum(at == service for at in places.values()),
            spark=info.spark,
            entries=[entry for entry in stored.progress.get(service, ()) if places.get(entry.name) == service],
        )
        for service, info in sorted(stored.services.items())
    ]


def capture_of(service: str, stored: StoredServices, captures: Sequence[CaptureInfo]) -> str:
    """Return the id of the capture that runs a service; empty: none does."""
    info = stored.services.get(service)
    namespace, _, changefeed_id = (info.dedicated if info is not None else "").partition("/")
    for capture in captures:
        if capture.service_id and service in (
            capture.service_id,
            dedicated_id(capture.service_id, (namespace, changefeed_id)),
        ):
            return capture.capture_id
    return ""


_LABELS: Final = ("service", "capture")
_OF_SPARK: Final[tuple[tuple[str, str, Callable[[SparkFigures], float]], ...]] = (
    ("tidebus_spark_sessions", "Spark sessions that a service has begun", lambda spark: spark.sessions),
    ("tidebus_spark_cuts", "Cuts that were written by Spark's jobs", lambda spark: spark.cuts),
    ("tidebus_spark_queries", "Streaming queries over backlogs, that were begun", lambda spark: spark.queries),
)


def service_metrics(services: Sequence[RunningService]) -> Iterator[Metric]:
    """Yield what is known of services; counts are since each one's process began."""
    feeds = GaugeMetricFamily("tidebus_service_changefeeds", "Changefeeds that a service has", labels=_LABELS)
    jobs = UntypedMetricFamily("tidebus_spark_jobs", "Spark jobs by how they ended", labels=(*_LABELS, "outcome"))
    cpu = UntypedMetricFamily(
        "tidebus_sorter_cpu_seconds",
        "CPU time of a changefeed, its Spark tasks among it",
        labels=("namespace", "changefeed", "service"),
    )
    of_spark = [(UntypedMetricFamily(name, text, labels=_LABELS), value) for name, text, value in _OF_SPARK]
    for each in services:
        key = (each.service, each.capture)
        feeds.add_metric(key, each.changefeeds)
        jobs.add_metric((*key, "ended"), each.spark.jobs)
        jobs.add_metric((*key, "failed"), each.spark.jobs_failed)
        for family, value in of_spark:
            family.add_metric(key, value(each.spark))
        for entry in each.entries:
            cpu.add_metric((entry.namespace, entry.changefeed_id, each.service), entry.cpu_s)
    yield from (feeds, jobs, cpu, *(family for family, _ in of_spark))
