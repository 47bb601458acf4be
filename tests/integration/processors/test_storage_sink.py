"""Storage sinks over a real Kafka, into a folder and into a server that speaks S3: killed and begun again."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from consumers.processors.storage.store import LeasedStore, StorageUnavailableError, file_store
from edges.zookeeper.session import LeaseLostError
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.sink.topic import sink_topic
from tests.support.storages.aws import ask_s3, s3_keys
from tests.support.topics.storage_lives import (
    SETTINGS,
    Files,
    apply_with_crashes,
    check_files,
    info_of,
    write_topic,
)
from tests.support.topics.storage_topic import topic_of


def bucket_files(endpoint: str) -> Files:
    return {key.removeprefix("out/"): ask_s3(endpoint, f"rows/{key}") for key in s3_keys(endpoint, "rows")}


def folder_files(root: Path) -> Files:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", [1, 2])
def test_storage_sink_into_a_folder_killed_and_begun_again_shows_every_line_once(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, seed: int
) -> None:
    topic, meant, last_ts = topic_of(random.Random(seed))
    info = info_of(fresh_name("files"), f"file://{tmp_path}/out?protocol=csv&flush-interval=2s")
    write_topic(stack.kafka, sink_topic(info), topic)
    apply_with_crashes(stack.kafka, info, last_ts, random.Random(seed))
    check_files(folder_files(tmp_path / "out"), meant, last_ts)


def test_storage_sink_into_a_bucket_killed_and_begun_again_shows_every_line_once(
    stack: Addresses, fresh_name: Callable[[str], str], aws: str
) -> None:
    ask_s3(aws, "rows", "PUT")
    topic, meant, last_ts = topic_of(random.Random(5))
    keys = "access-key=ak&secret-access-key=hidden-word&region=us-east-1"
    info = info_of(fresh_name("bucket"), f"s3://rows/out?protocol=csv&flush-interval=2s&endpoint={aws}&{keys}")
    write_topic(stack.kafka, sink_topic(info), topic)
    apply_with_crashes(stack.kafka, info, last_ts, random.Random(5))
    check_files(bucket_files(aws), meant, last_ts)


@pytest.mark.parametrize("megabytes", [1, 20], ids=["at once", "in parts"])
def test_file_of_who_loses_its_lease_while_it_is_written_never_shows(tmp_path: Path, aws: str, megabytes: int) -> None:
    ask_s3(aws, f"late{megabytes}", "PUT")
    keys = "access-key=ak&secret-access-key=hidden-word&region=us-east-1"
    bucket = f"s3://late{megabytes}/out?protocol=csv&endpoint={aws}&{keys}"
    for uri in (f"file://{tmp_path}/out?protocol=csv", bucket):
        storage = load_changefeed(uri, SETTINGS).uri.storage
        assert storage is not None
        answers: list[BusError | None] = []

        def check(answers: list[BusError | None] = answers) -> None:
            if (answer := answers.pop(0)) is not None:
                raise answer

        store, old, new = LeasedStore(file_store(storage), check), b"old", b"n" * (megabytes << 20)
        answers[:] = [None, None]
        store.put("d/file", [old])
        answers[:] = [None, LeaseLostError("gone")]
        with pytest.raises(LeaseLostError):
            store.put("d/file", [new[:10], new[10:]])
        assert store.get("d/file") == old
        answers[:] = [None, None]
        store.put("d/file", [new[:10], new[10:]])
        assert store.get("d/file") == new
        assert not answers


def test_storage_sink_into_a_folder_that_cannot_be_written_says_which_and_may_be_tried_again(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, meant, last_ts = topic_of(random.Random(1))
    (tmp_path / "out").write_text("a file where the folder should be")
    info = info_of(fresh_name("files"), f"file://{tmp_path}/out?protocol=csv&flush-interval=2s")
    write_topic(stack.kafka, sink_topic(info), topic)
    with pytest.raises(StorageUnavailableError, match=f"{tmp_path}/out"):
        apply_with_crashes(stack.kafka, info, last_ts, random.Random(1))
    (tmp_path / "out").unlink()
    apply_with_crashes(stack.kafka, info, last_ts, random.Random(1))
    check_files(folder_files(tmp_path / "out"), meant, last_ts)
