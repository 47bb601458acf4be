"""What an owner's metrics say of sorter services and their Spark, and how often a service says it."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from consumers.control.api.metrics import MetricsSnapshot, metrics_text
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.owner.figures.service_figures import running_services
from edges.zookeeper.session import Session
from schemas.ids import Ts
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, FeedEntry, ServiceInfo, SparkFigures, decode_service
from sorters.service import registration
from sorters.service.registration import FIGURES_S, ServiceNode
from sorters.spark.jobs.spark_counts import SparkCounts
from tests.support.control.memory_bus import ME
from tests.support.control.metrics_page import NOW_S, PULL, RULE

SPARK = SparkFigures(sessions=2, jobs=30, jobs_failed=1, cuts=70, queries=3)
INFO = ServiceInfo(service="s1", host="h", pid=7, version="1", started_at_s=1, master="local[1]", spark=SPARK)


def assigned(name: str, revision: int) -> Assigned:
    return Assigned(namespace="n", changefeed_id=name, created_zxid=1, epoch=2, revision=revision)


def entry(name: str, cpu_s: float) -> FeedEntry:
    return FeedEntry(
        namespace="n",
        changefeed_id=name,
        created_zxid=1,
        epoch=2,
        revision=3,
        checkpoint_ts=Ts(9),
        resolved_ts=Ts(9),
        cpu_s=cpu_s,
    )


def test_owners_metrics_say_what_each_service_has_and_what_its_spark_did() -> None:
    stored = StoredServices(
        services={"s1": INFO, "hand": replace(INFO, service="hand", spark=SparkFigures())},
        assignments={
            "s1": (Assignment(feeds=(assigned("a", 3), assigned("b", 3))), 0),
            "hand": (Assignment(feeds=(assigned("b", 4),)), 0),
        },
        progress={"s1": [entry("a", 1.5), entry("b", 9.0)], "hand": [entry("b", 0.25)]},
    )
    services = running_services(stored, [replace(ME, service_id="s1")])
    text = metrics_text(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[], services=services))[0].decode()
    for line in (
        'tidebus_service_changefeeds{capture="me",service="s1"} 1.0',
        'tidebus_service_changefeeds{capture="",service="hand"} 1.0',
        'tidebus_spark_jobs{capture="me",outcome="ended",service="s1"} 30.0',
        'tidebus_spark_jobs{capture="me",outcome="failed",service="s1"} 1.0',
        'tidebus_spark_sessions{capture="me",service="s1"} 2.0',
        'tidebus_spark_cuts{capture="me",service="s1"} 70.0',
        'tidebus_spark_queries{capture="me",service="s1"} 3.0',
        'tidebus_sorter_cpu_seconds{changefeed="a",namespace="n",service="s1"} 1.5',
        'tidebus_sorter_cpu_seconds{changefeed="b",namespace="n",service="hand"} 0.25',
    ):
        assert line in text.split("\n"), line
    assert 'changefeed="b",namespace="n",service="s1"' not in text, "who has given it away says nothing of it"
    other = metrics_text(MetricsSnapshot(at_s=NOW_S, pull=PULL, services=services))[0].decode()
    assert "tidebus_spark" not in other, "the owner alone says it"


def test_counts_of_spark_add_up() -> None:
    counts = SparkCounts()
    counts.add(sessions=1)
    counts.add(jobs=1, cuts=4)
    counts.add(jobs=1, cuts=1, jobs_failed=2, queries=1)
    assert counts.figures == SparkFigures(sessions=1, jobs=2, cuts=5, jobs_failed=2, queries=1)


def test_service_tells_figures_alone_each_five_seconds_and_all_else_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [100.0], list[ServiceInfo]()
    monkeypatch.setattr(registration, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Client:
        def ensure_path(self, path: str) -> None: ...

        def create(self, path: str, node: bytes, *, ephemeral: bool) -> None: ...

        def set(self, path: str, node: bytes) -> None:
            seen.append(decode_service(node))

    class Requests:
        timeout_s = 6.0

        def requests(self, what: str) -> AbstractContextManager[Client]:
            return nullcontext(Client())

    there = ServiceNode(cast(Session, Requests()), ServicePaths(ZkPaths("c")), replace(INFO, spark=SparkFigures()))
    for jobs in range(1, 11):
        there.tell(spark_ui="", spark=SparkFigures(jobs=jobs))
        now[0] += FIGURES_S / 5
    assert [info.spark.jobs for info in seen] == [1, 6]
    there.tell(spark_ui="http://127.0.0.1:1", spark=SparkFigures(jobs=11))
    there.tell(spark_ui="http://127.0.0.1:1", spark=SparkFigures(jobs=11))
    assert [(info.spark_ui, info.spark.jobs) for info in seen[2:]] == [("http://127.0.0.1:1", 11)]
