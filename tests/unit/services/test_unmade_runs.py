"""A run that cannot be made leaves nothing open: neither the sources that it was given, nor clients of its own."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.config.changefeed import load_changefeed
from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.nodes.sorter_service import Assigned, FeedEntry
from schemas.rawlog.topics import raw_topics
from sorters.run import job, lake_run, run_parts
from sorters.run.cut_job import RunBy
from sorters.run.feed_run import FeedRun
from sorters.run.job import SorterOptions, SorterProcess
from sorters.run.lake_run import LakeRun
from sorters.run.nodes.status import Edition
from sorters.run.run_inputs import RunInputs
from sorters.run.run_parts import RunParts
from sorters.service.hosted_feed import FeedHome, HostedFeed
from tests.support.control.memory_zookeeper import MemoryZooKeeper

UPSTREAM = UpstreamId("u")
KAFKA_URI = "kafka://k:9092/t?protocol=canal-json"
LAKE_URI = "iceberg://?warehouse=file:///nowhere"
EDITION = Edition(1, 0)


class Closed:
    """Stands for what must be closed, and counts that."""

    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)
        self.count = 0

    def close(self) -> None:
        self.count += 1


def sources() -> Closed:
    return Closed(schemas=None, frontier=None, raw_reader=lambda _: Closed(), record_bytes=lambda: 0.0)


def failing(*_: object, **__: object) -> Never:
    raise CorruptDataError("a file is gone")


def unanswered(_what: str, _path: str) -> Never:
    raise KazooTimeoutError


def info_of(uri: str) -> ChangefeedInfo:
    return ChangefeedInfo(changefeed_id="orders", upstream=UPSTREAM, sink_uri=uri, start_ts=Ts(10))


def hosted(given: Closed, tmp_path: Path, zookeeper: MemoryZooKeeper) -> HostedFeed:
    home = SimpleNamespace(
        client=zookeeper,
        lease=None,
        paths=ZkPaths("c"),
        sources=lambda *_: given,
        spark=lambda: None,
        run_by=RunBy(),
        kafka=KafkaAccess("k:9092"),
        schema_registry=RegistryAccess(),
        raw_prefix="tidebus",
        cluster="c",
        data_dir=tmp_path,
        checkpoint_dir="",
        worker_deaths=set(),
    )
    assigned = Assigned(namespace="default", changefeed_id="orders", created_zxid=1, epoch=0, revision=1)
    feed = HostedFeed(assigned, cast("FeedHome", home))
    feed._entry = FeedEntry(
        namespace="default",
        changefeed_id="orders",
        created_zxid=1,
        epoch=0,
        revision=1,
        checkpoint_ts=Ts(10),
        resolved_ts=Ts(10),
    )
    return feed


def make_feed_run(feed: HostedFeed) -> FeedRun:
    return feed._feed_run(info_of(KAFKA_URI), load_changefeed(KAFKA_URI, {}), EDITION, cast("Any", None), None)


def make_lake_run(feed: HostedFeed) -> LakeRun:
    return feed._lake_run(info_of(LAKE_URI), load_changefeed(LAKE_URI, {}), EDITION, cast("Any", None))


@pytest.mark.parametrize("is_away", [True, False])
def test_sources_of_a_feed_run_are_closed_once_where_zookeeper_does_not_answer_and_else_with_the_run(
    tmp_path: Path, is_away: bool
) -> None:
    given, zookeeper = sources(), MemoryZooKeeper()
    feed = hosted(given, tmp_path, zookeeper)
    if is_away:
        zookeeper.on_request = unanswered
        with pytest.raises(ZooKeeperUnreachableError):
            make_feed_run(feed)
    else:
        run = make_feed_run(feed)
        assert given.count == 0
        run.close()
    assert given.count == 1


@pytest.mark.parametrize("fails", [True, False])
def test_sources_of_a_lake_run_are_closed_once_where_it_cannot_be_made_and_else_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    given = sources()
    feed = hosted(given, tmp_path, MemoryZooKeeper())
    if fails:
        monkeypatch.setattr(lake_run, "compile_feed", failing)
        with pytest.raises(CorruptDataError):
            make_lake_run(feed)
    else:
        run = make_lake_run(feed)
        assert given.count == 0
        run.close()
    assert given.count == 1


def test_parts_that_cannot_be_made_close_what_they_have_made_and_not_what_they_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, given, registry = sources(), sources(), Closed()
    monkeypatch.setattr(run_parts, "OwnSources", lambda *_: own)
    monkeypatch.setattr(run_parts, "registry_of", lambda *_: registry)
    monkeypatch.setattr(run_parts, "_producer_options", failing)
    inputs = RunInputs(
        info=info_of(KAFKA_URI),
        config=load_changefeed(KAFKA_URI, {}),
        kafka=KafkaAccess("k:9092"),
        raw_topics=raw_topics(UPSTREAM, "tidebus"),
        schema_registry=RegistryAccess(),
    )
    for each in (inputs, replace(inputs, sources=cast("Any", given))):
        with pytest.raises(CorruptDataError):
            RunParts.of(lambda: cast("Any", None), each)
    assert (own.count, registry.count, given.count) == (1, 2, 0)


def test_lake_run_of_a_process_of_its_own_that_cannot_be_made_closes_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sources()
    monkeypatch.setattr(job, "OwnSources", lambda *_: own)
    monkeypatch.setattr(lake_run, "compile_feed", failing)
    options = SorterOptions(
        changefeed_id="orders", kafka=KafkaAccess("k:9092"), zookeeper=ZooKeeperAccess("z:2181"), data_dir=tmp_path
    )
    process, nothing = SorterProcess(options), cast("Any", SimpleNamespace(check=None))
    with pytest.raises(CorruptDataError):
        process._lake_run(nothing, nothing, info_of(LAKE_URI), load_changefeed(LAKE_URI, {}), Ts(10), "")
    assert own.count == 1
