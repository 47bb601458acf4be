"""What only the owner's metrics say: of changefeeds, of the frontier, and of which capture has which tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily

from consumers.control.changefeeds.stored_feed import StoredFeed
from consumers.control.owner.figures.sink_figures import sink_metrics
from consumers.control.owner.images.image_progress import FeedProgress
from schemas.config.sink.schemes import sink_scheme
from schemas.ids import CaptureId, Ts, UpstreamId, physical_ms
from schemas.nodes.changefeed import ChangefeedStatus

STATES: Final = {"normal": 0, "pending": 1, "failed": 2, "stopped": 3, "finished": 4, "removed": 5, "warning": 6}
"""TiCDC's numbers; anything else is -1."""
MOVING: Final = frozenset({"normal", "pending", "warning"})
"""States in which a lag means something: a changefeed that was stopped lags on purpose."""


PARTS: Final = ("owner", "processor", "maintainer", "dispatchermanager")
"""TiCDC's parts, of both architectures, whose dashboards show a changefeed's progress; here there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """How an upstream's spans are spread."""

    tables: int
    capture_spans: Mapping[CaptureId, int]
    states: Mapping[str, int]
    """Spans by the state of their replication set."""
    tasks: Mapping[str, int]
    """Tasks begun in this reign, by kind: add, move, remove."""
    running: int
    """Tasks under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What an owner knows of its upstream."""

    upstream: UpstreamId
    owner_s: float
    """For how long it has been owner."""
    resolved_ts: Ts
    """Of the newest published frontier record."""
    held_ddl: int
    held_tables: int
    scheduling: SchedulerFigures | None = None
    """None: it was too busy to say."""
    images: Sequence[FeedProgress] = ()
    """Of changefeeds that have table images to come."""


def rule_metrics(rule: Rule | None, feeds: Sequence[StoredFeed] | None, at_s: float) -> Iterator[Metric]:
    """Yield all families of an owner; of another capture only that it is none."""
    # Every capture has it: the sum of rates tells how many owners there are, and that there is none.
    ownership = UntypedMetricFamily("ticdc_owner_ownership_counter", "Seconds for which this capture was owner")
    ownership.add_metric([], rule.owner_s if rule else 0.0)
    yield ownership
    if rule is None:
        return
    yield _gauge("tidebus_metadata_readable", "0 while changefeeds cannot be read from ZooKeeper", feeds is not None)
    yield from _feed_lags(feeds or (), at_s)
    yield from _slow_tables(rule.resolved_ts, feeds or (), at_s)
    yield from _stages(rule.resolved_ts, feeds or (), at_s)
    yield from _feed_figures(feeds or ())
    yield from sink_metrics(feeds or ())
    yield from _frontier(rule, at_s)
    yield from _images(rule.images)
    if rule.scheduling is not None:
        yield from _scheduler(rule.upstream, rule.scheduling)


def lag_s(ts: Ts, at_s: float) -> float:
    """Return how far a ts is behind a clock, never less than 0."""
    return max(0.0, round(at_s - physical_ms(ts) / 1000, 3))


_DOWNSTREAM_TYPES: Final = {
    "mysql": "mysql/tidb",
    "tidb": "tidb",
    "kafka": "kafka",
    "file": "file",
    "s3": "s3",
    "gcs": "gcs",
    "gs": "gcs",
    "azblob": "azblob",
    "azure": "azblob",
    "blackhole": "blackhole",
    "iceberg": "iceberg",
}
"""TiCDC's words (pingcap/ticdc ``pkg/metrics/downstream_type.go``), and Iceberg's, by the scheme without ``+ssl``."""
_Family = TypeVar("_Family", GaugeMetricFamily, UntypedMetricFamily)
_FEED: Final = ("namespace", "changefeed")
_NOTHING: Final = ChangefeedStatus(state="normal", checkpoint_ts=Ts(0), resolved_ts=Ts(0))
_FIGURES: Final[tuple[tuple[str, str, Callable[[ChangefeedStatus], float]], ...]] = (
    (
        "ticdc_sink_table_sink_total_rows_count",
        "Rows written since the sorter's process began",
        lambda status: status.rows_total,
    ),
    (
        "ticdc_sink_dml_event_count",
        "Rows written since the sorter's process began, by its newer name",
        lambda status: status.rows_total,
    ),
    (
        "ticdc_sink_batch_row_count_sum",
        "The same, of which TiCDC has a histogram",
        lambda status: status.rows_total,
    ),
    (
        "ticdc_processor_exit_with_error_count",
        "Sorters that ended without a word since the changefeed was resumed",
        lambda status: status.sorter_deaths,
    ),
    ("tidebus_sorter_corrupt_rows", "Rows that do not fit their checksum", lambda status: status.corrupt_rows_total),
    (
        "tidebus_sorter_damaged_records",
        "Damaged raw records that were passed over, of other tables or by name, since the sorter's process began",
        lambda status: status.damaged_records_total,
    ),
    (
        "tidebus_state_proofs",
        "Physical tables whose state proof is carried",
        lambda status: status.states_proven,
    ),
    (
        "tidebus_state_proofs_lacking",
        "Physical tables that were to have a state proof, and have none (yet)",
        lambda status: status.states_unproven,
    ),
    ("tidebus_sorter_batch_rows", "Rows of the last batch", lambda status: status.batch_rows),
    ("tidebus_sorter_batch_seconds", "Seconds that the last batch took", lambda status: status.batch_s),
)
"""Of the changefeed's status, whoever wrote it; 0 where there is none yet."""


def _feed_lags(feeds: Sequence[StoredFeed], at_s: float) -> Iterator[Metric]:
    status = GaugeMetricFamily("ticdc_owner_status", "State of the changefeed, by TiCDC's numbers", labels=_FEED)
    families = [status]
    shown: dict[str, list[tuple[GaugeMetricFamily, GaugeMetricFamily]]] = {}
    for what in ("checkpoint_ts", "resolved_ts"):
        shown[what] = [
            (
                GaugeMetricFamily(f"ticdc_{part}_{what}", f"The changefeed's {what}, physical ms", labels=_FEED),
                GaugeMetricFamily(f"ticdc_{part}_{what}_lag", f"Seconds since its {what}", labels=_FEED),
            )
            for part in PARTS
        ]
        families += [family for pair in shown[what] for family in pair]
    for feed in feeds:
        key = _key(feed)
        status.add_metric(key, STATES.get(feed.state, -1))
        for what, value in (("checkpoint_ts", feed.checkpoint_ts), ("resolved_ts", feed.resolved_ts)):
            for ts, lag in shown[what]:
                ts.add_metric(key, physical_ms(value))
                if feed.state in MOVING:
                    lag.add_metric(key, lag_s(value, at_s))
    yield from families


def _feed_figures(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    for name, text, value in _FIGURES:
        samples = ((_key(feed), value(feed.status or _NOTHING)) for feed in feeds)
        yield _filled(UntypedMetricFamily(name, text, labels=_FEED), samples)
    mounted = UntypedMetricFamily(
        "ticdc_mounter_total_rows_count",
        "Rows that were mounted and written since the sorter's process began",
        labels=_FEED,
    )
    yield _filled(mounted, ((_key(feed), _of_sorter(feed).rows_total) for feed in feeds))
    yield _rows_by_path(feeds)
    yield _flow_windows(feeds)
    yield from _prologues(feeds)
    working = sum(feed.state in MOVING for feed in feeds)
    counts = (("Working", working), ("Stopped", len(feeds) - working), ("Total", len(feeds)))
    states = GaugeMetricFamily("ticdc_coordinator_changefeed_state", "Changefeeds by state", labels=("state",))
    yield _filled(states, (((state,), count) for state, count in counts))
    kinds = GaugeMetricFamily(
        "ticdc_owner_changefeed_downstream_info", "1 for the kind of its sink", labels=(*_FEED, "downstream_type")
    )
    yield _filled(kinds, (((*_key(feed), _downstream_type(feed.info.sink_uri)), 1) for feed in feeds))
    errors = GaugeMetricFamily("tidebus_changefeed_error", "1 while it has this error", labels=(*_FEED, "code"))
    failing = ((feed, feed.status.error) for feed in feeds if feed.status and feed.status.error)
    yield _filled(errors, (((*_key(feed), error.code), 1) for feed, error in failing))


def _prologues(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    """Of changefeeds that have still to run what was before the raw log."""
    state = GaugeMetricFamily(
        "tidebus_prologue_state", "0: not begun, 1: read from TiKV, 2: the sorter runs it, 3: failed", labels=_FEED
    )
    attempts = GaugeMetricFamily("tidebus_prologue_attempt", "How often its reading was begun", labels=_FEED)
    lags = GaugeMetricFamily(
        "tidebus_prologue_seconds", "From its start ts to where the raw log takes over", labels=_FEED
    )
    for feed in feeds:
        prologue = feed.prologue_to_run
        if prologue is not None:
            is_failed, is_begun = prologue.failure is not None, prologue.attempt > 0
            state.add_metric(_key(feed), 3 if is_failed else 2 if prologue.is_complete else int(is_begun))
            attempts.add_metric(_key(feed), prologue.attempt)
            span_ms = physical_ms(prologue.end_ts) - physical_ms(prologue.start_ts)
            lags.add_metric(_key(feed), span_ms / 1000)
    yield from (state, attempts, lags)


def _slow_tables(published: Ts, feeds: Sequence[StoredFeed], at_s: float) -> Iterator[Metric]:
    """A changefeed's ts are those of its slowest table; the raw log's is that of the slowest of all tables."""
    texts = {
        "checkpoint_ts": "The changefeed's checkpoint_ts, physical ms",
        "resolved_ts": "The changefeed's resolved_ts, physical ms",
        "puller_resolved_ts": "Published resolved ts, physical ms",
        "puller_resolved_ts_lag": "Seconds since the published ts",
    }
    families = {
        name: GaugeMetricFamily(f"ticdc_scheduler_slow_table_{name}", text, labels=_FEED)
        for name, text in texts.items()
    }
    output = UntypedMetricFamily(
        "ticdc_sorter_output_event_count", "Rows written by the sorter", labels=(*_FEED, "type")
    )
    for feed in feeds:
        key = _key(feed)
        families["checkpoint_ts"].add_metric(key, physical_ms(feed.checkpoint_ts))
        families["resolved_ts"].add_metric(key, physical_ms(feed.resolved_ts))
        families["puller_resolved_ts"].add_metric(key, physical_ms(published))
        families["puller_resolved_ts_lag"].add_metric(key, lag_s(published, at_s))
        output.add_metric((*key, "kv"), _of_sorter(feed).rows_total)
    yield from (*families.values(), output)


def _stages(published: Ts, feeds: Sequence[StoredFeed], at_s: float) -> Iterator[Metric]:
    """How far each stage of a changefeed is, by those of TiCDC's names that mean something here."""
    labels = (*_FEED, "stage")
    for what in ("checkpoint_ts", "resolved_ts"):
        name = f"ticdc_scheduler_slow_table_stage_{what}"
        ts = GaugeMetricFamily(name, f"The stage's {what}, physical ms", labels=labels)
        lag = GaugeMetricFamily(f"{name}_lag", f"Seconds since the stage's {what}", labels=labels)
        for feed in feeds:
            stages = {"puller-egress": published, "sink": getattr(feed, what)}
            if feed.status is not None:
                stages["sorter-egress"] = _of_sorter(feed).checkpoint_ts
            for stage, reached in stages.items():
                ts.add_metric((*_key(feed), stage), physical_ms(reached))
                if feed.state in MOVING:
                    lag.add_metric((*_key(feed), stage), lag_s(reached, at_s))
        yield from (ts, lag)


def _downstream_type(sink_uri: str) -> str:
    """TiCDC's word for where a changefeed goes: by the scheme alone, and by no other part of what may be a secret."""
    return _DOWNSTREAM_TYPES.get(sink_scheme(sink_uri).partition("+")[0], "unknown")


def _rows_by_path(feeds: Sequence[StoredFeed]) -> Metric:
    """Who has written rows: tasks of Spark, or the sorter's own threads."""
    rows = CounterMetricFamily(
        "tidebus_sorter_rows",
        "Rows written since the sorter's process began, by who wrote them",
        labels=(*_FEED, "path"),
    )
    for feed in feeds:
        status = feed.sorter_status or feed.status
        if status is not None:
            key = _key(feed)
            rows.add_metric((*key, "spark"), status.spark_rows_total)
            rows.add_metric((*key, "driver"), max(0, status.rows_total - status.spark_rows_total))
    return rows


def _flow_windows(feeds: Sequence[StoredFeed]) -> Metric:
    """Windows of flow proofs: what sorters wrote of the raw log, and what processors took of that."""
    windows = UntypedMetricFamily(
        "tidebus_flow_windows",
        "Windows of flow proofs since the process that holds them began",
        labels=(*_FEED, "stage", "outcome"),
    )
    for feed in feeds:
        key, status = _key(feed), feed.status
        sorter = feed.sorter_status or status
        if status is None or sorter is None:
            continue
        code = status.error.code if status.error else ""
        windows.add_metric((*key, "sorter", "proven"), sorter.windows_proven)
        windows.add_metric((*key, "sorter", "differing"), code == "sorter.flow_broken")
        if feed.sorter_status is not None:
            windows.add_metric((*key, "processor", "proven"), status.windows_proven)
            windows.add_metric((*key, "processor", "unproven"), status.windows_unproven)
            windows.add_metric((*key, "processor", "differing"), code == "apply.flow_broken")
    return windows


def _frontier(rule: Rule, at_s: float) -> Iterator[Metric]:
    text = "Seconds since the published ts, by TiCDC's name"
    for part in ("log_puller", "event_store", "schema_store"):
        yield _gauge(f"ticdc_{part}_resolved_ts_lag", text, lag_s(rule.resolved_ts, at_s))
    for name, text, value in (
        ("resolved_ts", "Published resolved ts, physical ms", physical_ms(rule.resolved_ts)),
        ("resolved_ts_lag", "Seconds since the published ts", lag_s(rule.resolved_ts, at_s)),
        ("held_ddl", "DDL jobs that cannot be read and hold changefeeds back", rule.held_ddl),
        ("held_tables", "Tables left behind by the frontier", rule.held_tables),
    ):
        yield _gauge(f"tidebus_frontier_{name}", text, value, ("upstream",), (rule.upstream,))


_IMAGES: Final[tuple[tuple[str, str, Callable[[FeedProgress], float]], ...]] = (
    ("tables_left", "Tables whose image is to come or not whole", lambda feed: feed.tables_left),
    ("tables_done", "Tables whose image became whole, since its first one here", lambda feed: feed.tables_done),
    ("tables_paused", "Tables of those left that are paused one by one", lambda feed: feed.tables_paused),
    ("rows", "Rows of images that went out, since its first one here", lambda feed: feed.rows),
    ("bytes", "Their keys and values", lambda feed: feed.bytes),
    ("chunks", "In how many chunks", lambda feed: feed.chunks),
)


def _images(feeds: Sequence[FeedProgress]) -> Iterator[Metric]:
    for name, text, value in _IMAGES:
        family = GaugeMetricFamily(f"tidebus_image_{name}", text, labels=_FEED)
        yield _filled(family, (((feed.namespace, feed.id), value(feed)) for feed in feeds))
    shares = GaugeMetricFamily(
        "tidebus_image_table_done_ratio",
        "Of the regions of a table that is begun; each partition is one",
        labels=(*_FEED, "table", "table_id"),
    )
    begun = ((feed, table) for feed in feeds for table in feed.tables)
    yield _filled(
        shares,
        (
            ((feed.namespace, feed.id, table.name, str(table.table_id)), table.done_share)
            for feed, table in begun
            if table.done_share is not None
        ),
    )


def _scheduler(upstream: UpstreamId, figures: SchedulerFigures) -> Iterator[Metric]:
    label, key = ("upstream",), (upstream,)
    yield _gauge("ticdc_scheduler_table", "Tables pulled by all captures", figures.tables, label, key)
    yield _gauge("ticdc_scheduler_table_count", "The same, by its newer name", figures.tables, label, key)
    yield _gauge("ticdc_scheduler_task_running", "Tasks under way", figures.running, label, key)
    total = sum(figures.capture_spans.values())
    yield _gauge("ticdc_scheduler_span_count", "Spans pulled by all captures", total, label, key)
    spans = GaugeMetricFamily("ticdc_scheduler_capture_table", "Spans of a capture", labels=(*label, "capture"))
    yield _counted(spans, upstream, figures.capture_spans)
    states = GaugeMetricFamily("ticdc_scheduler_table_replication_state", "Spans by state", labels=(*label, "state"))
    yield _counted(states, upstream, figures.states)
    tasks = UntypedMetricFamily("ticdc_scheduler_task", "Tasks begun in this reign", labels=(*label, "task"))
    yield _counted(tasks, upstream, figures.tasks)


def _key(feed: StoredFeed) -> tuple[str, str]:
    """The values of ``_FEED``."""
    return (feed.info.namespace, feed.info.changefeed_id)


def _of_sorter(feed: StoredFeed) -> ChangefeedStatus:
    """What its sorter says, also where processors write what it made."""
    return feed.sorter_status or feed.status or _NOTHING


def _counted(family: _Family, upstream: UpstreamId, counts: Mapping[CaptureId, int] | Mapping[str, int]) -> _Family:
    return _filled(family, (((upstream, what), count) for what, count in sorted(counts.items())))


def _filled(family: _Family, samples: Iterable[tuple[Sequence[str], float]]) -> _Family:
    """Return a family with its samples: the values of its labels, and the figure."""
    for key, value in samples:
        family.add_metric(key, value)
    return family


def _gauge(
    name: str, text: str, value: float, labels: Sequence[str] = (), key: Sequence[str] = ()
) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, text, labels=labels), [(key, value)])
