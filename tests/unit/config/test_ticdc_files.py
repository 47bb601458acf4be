"""TiCDC's own changefeed files: those of its integration tests and its documented samples (tests/data/ticdc-files).

TiCDC takes all of them, and so do we.
"""

import io
import json
import re
from pathlib import Path
from typing import Final

import pytest
import zstandard

from schemas.config.changefeed import load_changefeed

DATA: Final = Path(__file__).resolve().parents[2] / "data/ticdc-files"
KAFKA = "kafka://h/t?protocol=canal-json&enable-tidb-extension=true"
AVRO = "kafka://h/t?protocol=avro&schema-registry=http://r&enable-tidb-extension=true"
AVRO += "&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string"
OPEN, SIMPLE = "kafka://h/t?protocol=open-protocol", "kafka://h/t?protocol=simple"
DEBEZIUM, MYSQL, FILES = "kafka://h/t?protocol=debezium", "mysql://root@h/", "file:///data?protocol=csv"
SINKS: Final = (
    ("storage|csv", FILES),
    ("debezium", DEBEZIUM),
    ("simple", SIMPLE),
    ("avro", AVRO),
    ("open_protocol", OPEN),
    ("cmd/util/changefeed.toml|kafka|canal_json|mq_sink|multi_topics|big_messages", KAFKA),
    ("syncpoint|bdr|consistent_replicate|redo|table_route|foreign_key", MYSQL),
)
"""Patterns of paths, and the sink that such a test has; of other files Kafka and a database both take them."""


def files(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.jsonl.zst").open("rb") as file:
        return [json.loads(line) for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file))]


def sinks_of(path: str) -> tuple[str, ...]:
    return next(((uri,) for pattern, uri in SINKS if re.search(pattern, path)), (KAFKA, MYSQL))


FEEDS: Final = files("changefeeds")


@pytest.mark.parametrize("file", FEEDS, ids=lambda file: f"{file['repository']}:{file['path']}"[:120])
def test_load_changefeed_takes_each_file_of_ticdcs(file: dict[str, str]) -> None:
    for uri in sinks_of(file["path"]):
        load_changefeed(uri, file["text"], file=file["path"])


def test_ticdcs_files_are_many() -> None:
    assert len(FEEDS) > 150
