"""When a run's time is over, and what its changefeeds are."""

from pathlib import Path

import pytest

from compose.local.live_run import START_S, Deadline, data_folder, demo_changefeed
from compose.stack.local import Addresses
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import UpstreamId

PARTS = Addresses(kafka="127.0.0.1:9092", zookeeper="127.0.0.1:2181", schema_registry="http://127.0.0.1:8081")


def test_deadline_counts_from_when_everything_flows() -> None:
    now = [0.0]
    deadline = Deadline(90.0, lambda: now[0])
    now[0] = 100.0
    assert not deadline.is_over(False)
    assert not deadline.is_over(True)
    now[0] = 189.0
    assert not deadline.is_over(True)
    now[0] = 190.0
    assert deadline.is_over(False)


def test_deadline_when_nothing_ever_flows_ends_all_the_same() -> None:
    now = [0.0]
    deadline = Deadline(10.0, lambda: now[0])
    now[0] = START_S + 1
    assert not deadline.is_over(False)
    now[0] += 10
    assert deadline.is_over(False)


def test_demo_changefeeds_are_allowed_and_name_every_tables_topic() -> None:
    for protocol, topic in (("canal-json", "canal_{schema}_{table}"), ("avro", "avro_{schema}_{table}")):
        request = demo_changefeed(protocol, PARTS, UpstreamId("u"))
        config = load_changefeed(request.sink_uri, request.config)
        assert config.protocol == protocol
        assert [rule.topic for rule in config.sink.dispatchers] == [topic]


def test_data_folder_of_an_earlier_run_is_emptied_unless_kept(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "run", keep=False)
    (folder / "topics").touch()
    assert (data_folder(folder, keep=True) / "topics").exists()
    assert not (data_folder(folder, keep=False) / "topics").exists()


def test_data_folder_of_somebody_else_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds files that are not of a run"):
        data_folder(tmp_path, keep=False)
    assert (tmp_path / "thesis.tex").exists()
