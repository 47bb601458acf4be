"""A page of metrics read back by Prometheus' own parser, and what a snapshot for it is made of."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from consumers.control.api.bodies import StoredFeed
from consumers.control.api.metrics import MetricsSnapshot, Pull, metrics_text
from consumers.control.owner.figures.owner_figures import Rule, SchedulerFigures
from consumers.control.owner.images.image_progress import FeedProgress, TableProgress
from schemas.ids import TableId, Ts, UpstreamId, compose_ts
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedState,
    ChangefeedStatus,
)
from tests.support.control.memory_bus import ME, OTHER

NOW_S = 1_700_000_100.0
PULL = Pull(
    upstream=UpstreamId("u"),
    tables=3,
    spans=4,
    regions=50,
    regions_initialized=48,
    scans_running=2,
    scans_waiting=1,
    streams=5,
    messages=600,
    message_bytes=70_000,
    events=800,
    changes=900,
    stream_failures=6,
    troubles={"not_leader": 4, 'odd"one': 1},
    stalls=(),
    held_bytes=1_000,
    spilled_bytes=2_000,
    landed_rows=31,
    landed_records=32,
    landed_bytes=33,
    acked_rows=34,
    acked_records=35,
    in_flight=36,
    broker_waits=True,
    image_scans=45,
    image_scans_failed=46,
    image_rows=47,
    image_bytes=48,
    locks={"committed": 41, "rolled_back": 42, "left_alive": 43},
)
RULE = Rule(
    upstream=UpstreamId("u"),
    owner_s=12.5,
    resolved_ts=compose_ts(1_700_000_098_500, 7),
    held_ddl=1,
    held_tables=2,
    scheduling=SchedulerFigures(
        tables=9,
        capture_spans={ME.capture_id: 5, OTHER.capture_id: 6},
        states={"replicating": 10, "prepare": 1},
        tasks={"add": 11, "move": 2, "remove": 0},
        running=1,
    ),
    images=(
        FeedProgress(
            namespace="default",
            id="a",
            state="running",
            tables_left=5,
            tables_done=6,
            tables_paused=1,
            rows=7,
            bytes=8,
            tables=(
                TableProgress(table_id=TableId(1), name="d.t", mode="initial", done_share=0.25),
                TableProgress(table_id=TableId(3), name="d.t", partition="p1", mode="initial", done_share=0.5),
                TableProgress(table_id=TableId(2), name="d.u", mode="initial"),
            ),
        ),
    ),
)


def feed(name: str, state: ChangefeedState, namespace: str = "default") -> StoredFeed:
    info = ChangefeedInfo(
        changefeed_id=name,
        namespace=namespace,
        upstream=UpstreamId("u"),
        sink_uri="kafka://h:1/t",
        config={},
        start_ts=Ts(1),
        target_ts=None,
        create_time="",
        creator_version="",
        desired_state="stopped" if state == "stopped" else "normal",
    )
    checkpoint_ts, resolved_ts = compose_ts(1_700_000_090_000, 3), compose_ts(1_700_000_095_250, 0)
    status = ChangefeedStatus(state=state, checkpoint_ts=checkpoint_ts, resolved_ts=resolved_ts, sorter_deaths=2)
    return StoredFeed(info, status)


def scrape(snapshot: MetricsSnapshot) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return each sample's value by name and labels."""
    return read(metrics_text(snapshot)[0].decode())


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(series) == len(samples), "one series was said twice"
    return series


def of(page: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]
