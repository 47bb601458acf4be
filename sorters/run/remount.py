"""``tidebus remount``: any interval that the raw log still holds, once more, as another changefeed would write it.

It is a changefeed's run from one ts to another without a changefeed: no lock, no status, no checkpoint of its own. So
nobody may write to its topics beside it, and a second run writes everything again, byte for byte.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from schemas.config.settings import ChangefeedConfig
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo
from schemas.rawlog.topics import raw_topics
from sorters.cut.leave import GIVEN
from sorters.log.failures import HistoryLostError, bus_error
from sorters.run.cut_job import RunBy
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.run_inputs import RunInputs
from sorters.spark.session import Session, SparkOnDemand, create_session


class IntervalGoneError(BusError):
    """The raw log no longer holds the interval's beginning."""

    code, action = "sorter.interval_gone", Action.STOP_CHANGEFEED


@dataclass(frozen=True, kw_only=True)
class Remount:
    """What to write where."""

    kafka: KafkaAccess
    """Of the raw log."""
    upstream: UpstreamId
    config: ChangefeedConfig
    from_ts: Ts
    """Rows above it."""
    to_ts: Ts
    """The last ts, inclusive."""
    name: str = "remount"
    """Stands for a changefeed's id: in the names of files that large messages go to."""
    schema_registry: RegistryAccess = RegistryAccess()
    data_dir: Path
    raw_prefix: str = "tidebus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remounted:
    """What was written."""

    rows: int
    cuts: int
    corrupt_rows: int


def remount(
    spark: Session,
    order: Remount,
    on_progress: Callable[[CutProgress], None] = lambda _: None,
    run_by: RunBy | None = None,
) -> Remounted:
    """Write an interval; return when everything is acknowledged.

    Raises:
        ConfigError: the interval is empty, or the sink is no Kafka.
        IntervalGoneError: see there.
        TargetNotReachedError: the raw log has not come to ``to_ts``.
        BusError: whatever stops a changefeed.
    """
    check(order)
    seen: list[CutProgress] = []

    def note(progress: CutProgress) -> None:
        seen.append(progress)
        on_progress(progress)

    run: FeedRun | None = None
    try:
        run = FeedRun(
            spark,
            RunInputs(
                kafka=order.kafka,
                raw_topics=raw_topics(order.upstream, order.raw_prefix),
                schema_registry=order.schema_registry,
                info=ChangefeedInfo(
                    changefeed_id=order.name,
                    namespace=NAMESPACE_DEFAULT,
                    upstream=order.upstream,
                    sink_uri="",
                    config={},
                    start_ts=order.from_ts,
                    target_ts=order.to_ts,
                ),
                config=order.config,
                run_by=run_by or RunBy(),
            ),
            data_dir=order.data_dir,
            checkpoint_ts=order.from_ts,
            ask=lambda: GIVEN,
            on_progress=note,
        )
        run.run_to_target()
    except Exception as error:
        failure = bus_error(error)
        if isinstance(failure, HistoryLostError):
            where = {"from_ts": order.from_ts, "oldest_ts": failure.fields.get("oldest_ts"), "reason": failure.message}
            raise IntervalGoneError("the raw log no longer holds this interval", **where) from error
        raise failure from error
    finally:
        if run is not None:
            run.close()
    return Remounted(
        rows=sum(progress.rows for progress in seen),
        cuts=len(seen),
        corrupt_rows=sum(progress.corrupt_rows for progress in seen),
    )


def check(order: Remount) -> None:
    """Refuse what cannot be done, before Spark starts.

    Raises:
        ConfigError: see :func:`remount`.
    """
    if order.from_ts >= order.to_ts:
        raise ConfigError("--from-ts must be below --to-ts", from_ts=order.from_ts, to_ts=order.to_ts)
    if not order.config.uri.brokers:
        raise ConfigError("a remount writes to Kafka only", key="sink-uri", scheme=order.config.uri.scheme)


def remount_alone(order: Remount, master: str, on_progress: Callable[[CutProgress], None]) -> Remounted:
    """Do one remount, with a Spark of its own if that is worth it; see :func:`remount`."""
    check(order)
    spark = SparkOnDemand(lambda: create_session(master, f"tidebus-{order.name}", order.data_dir))
    try:
        return remount(spark.get, order, on_progress, RunBy(is_warm=lambda: spark.is_started))
    finally:
        spark.stop()
