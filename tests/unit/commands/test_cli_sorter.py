"""What ``tidebus sorter`` and ``tidebus sorters`` hand to the process, and what a capture hands to its services."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compose.cli.options.spark import sorter_options
from compose.cli.sorter_commands import sorter, sorters
from consumers.control.fleets.service_fleet import ServiceFleet, _Service
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.sorter_service import FeedName
from sorters.run import job
from sorters.run.job import SorterOptions
from sorters.service import service
from sorters.service.service import ServiceOptions
from sorters.spark.session import event_log_settings

ARGUMENTS = ["--changefeed", "cf", "--kafka", "127.0.0.1:1", "--zookeeper", "127.0.0.1:2"]


@pytest.mark.parametrize(("given", "expected"), [([], "auto"), (["--run-cuts", "spark"], "spark")])
def test_sorter_hands_on_who_is_to_run_cuts(monkeypatch: pytest.MonkeyPatch, given: list[str], expected: str) -> None:
    options: list[SorterOptions] = []

    def run(taken: SorterOptions) -> int:
        options.append(taken)
        return 0

    monkeypatch.setattr(job, "run_sorter", run)
    outcome: Any = CliRunner().invoke(sorter, [*ARGUMENTS, *given])
    assert outcome.exception is None, outcome.output
    assert [taken.run_cuts for taken in options] == [expected]


def settings_of(*given: str) -> SorterSettings:
    """Return what a capture takes of its command line."""
    taken: list[SorterSettings] = []

    @click.command()
    @sorter_options
    def capture(sorters: SorterSettings) -> None:
        taken.append(sorters)

    outcome: Any = CliRunner().invoke(capture, list(given))
    assert outcome.exception is None, outcome.output
    return taken[0]


def service_options(
    settings: SorterSettings, folder: Path, monkeypatch: pytest.MonkeyPatch, feed: FeedName | None = None
) -> ServiceOptions:
    """Return what a service of a capture with these settings takes of the command line that the capture gives it."""
    addresses = BusAddresses(
        kafka=KafkaAccess("127.0.0.1:1"),
        zookeeper=ZooKeeperAccess("127.0.0.1:2"),
        schema_registry=RegistryAccess.at(""),
        cluster="c",
        upstream=UpstreamId("u"),
    )
    children: Any = None
    fleet = ServiceFleet(ZkPaths("c"), addresses, children, ("tidebus",), replace(settings, data_dir=folder))
    program, command, *arguments = fleet._command(_Service("s", feed))
    taken: list[ServiceOptions] = []

    def run(options: ServiceOptions) -> int:
        taken.append(options)
        return 0

    monkeypatch.setattr(service, "run_service", run)
    outcome: Any = CliRunner().invoke(sorters, arguments)
    assert outcome.exception is None, outcome.output
    assert (program, command) == ("tidebus", "sorters")
    return taken[0]


def test_capture_hands_on_what_it_is_told_of_its_services_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--sorter-spark-ui-port", "4040", "--sorter-event-log", "hdfs:///events", "--sorter-spark-on-demand")
    settings = settings_of(*flags)
    shared = service_options(settings, tmp_path, monkeypatch)
    assert (shared.spark_ui_port, shared.event_log, shared.keeps_spark_warm) == (4040, "hdfs:///events", False)
    alone = service_options(settings, tmp_path, monkeypatch, ("default", "cf"))
    assert (alone.spark_ui_port, alone.dedicated) == (0, "default/cf"), "one port is for one service"
    untold = service_options(settings_of(), tmp_path, monkeypatch)
    assert (untold.spark_ui_port, untold.event_log, untold.keeps_spark_warm) == (0, "", True)
    off = settings_of("--sorter-spark-ui-port", "-1")
    for feed in (None, ("default", "cf")):
        assert service_options(off, tmp_path, monkeypatch, feed).spark_ui_port is None


def test_event_log_is_kept_in_a_folder_that_is_made_or_at_a_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert event_log_settings("") == {}
    assert event_log_settings("kept/events")["spark.eventLog.dir"] == (tmp_path / "kept" / "events").as_uri()
    assert (tmp_path / "kept" / "events").is_dir(), "the JVM works in another folder, which is emptied"
    assert event_log_settings("hdfs:///events")["spark.eventLog.dir"] == "hdfs:///events"
