"""Records of the ddl topic that no capture has written: captures and sorters read past them, and past nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from producers.pull.ddl import ddl_feed
from producers.pull.ddl.ddl_feed import DdlFeed
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord, encode_ddl_record
from sorters.run import schema_feed
from sorters.run.schema_feed import SchemaFeed, schemas_at

TOPIC = "tidebus.u.ddl"
SCHEMA = DdlRecord(kind="schema", ts=Ts(5), payload={"id": 2, "db_name": {"O": "d", "L": "d"}, "state": 5})
END = DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})
WRITTEN = [encode_ddl_record(SCHEMA), encode_ddl_record(END)]
STRAYS = (b"", b"hello, wrong topic", b"{}", b'{"ts":1}', b"\x00\xff", b'["kind"]')


@dataclass
class Topic:
    """Stands for a reader of the topic."""

    values: Sequence[bytes]
    topic: str = TOPIC

    def bounds(self) -> tuple[int, int]:
        return 0, len(self.values)

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        yield from list(enumerate(self.values))[start:end]

    def close(self) -> None:
        pass


def read_by_a_capture(values: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, DdlRecord]]:
    monkeypatch.setattr(ddl_feed, "TopicReader", lambda *_, **__: Topic(values))
    feed: Any = DdlFeed.__new__(DdlFeed)
    feed._kafka, feed.topics = SimpleNamespace(config=dict), SimpleNamespace(ddl=TOPIC)
    return list(feed._read_topic())


def read_by_a_sorter(values: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> SchemaFeed:
    monkeypatch.setattr(schema_feed, "TopicReader", lambda *_: Topic(values))
    feed = SchemaFeed({}, TOPIC)
    feed.advance(len(values))
    return feed


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_stray_record_is_passed_over_and_said(
    stray: bytes, at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = [*WRITTEN[:at], stray, *WRITTEN[at:]]
    assert [record for _, record in read_by_a_capture(values, monkeypatch)] == [SCHEMA, END]
    feed = read_by_a_sorter(values, monkeypatch)
    assert (feed.store.snapshot_ts, feed.bad) == (5, ())
    assert [(said.__dict__["topic"], said.__dict__["offset"]) for said in caplog.records] == [(TOPIC, at)] * 2
    store = schemas_at({}, TOPIC, Ts(9))
    assert store is not None and store.snapshot_ts == 5


def test_record_of_a_capture_that_does_not_decode_is_named_and_passed_over_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for read in (read_by_a_capture, read_by_a_sorter):
        with pytest.raises(CorruptDataError) as error:
            read([WRITTEN[0], WRITTEN[1][:-2]], monkeypatch)
        assert (error.value.fields["topic"], error.value.fields["offset"]) == (TOPIC, 1)
