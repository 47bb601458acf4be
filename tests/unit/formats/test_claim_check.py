"""Rows that are too large for Kafka and go to a storage: the messages, the files, and what of them stays the same.

Source: reference of the Kafka protocols, "claim-check"; nothing here is taken from what the encoders said.
"""

import json
import os
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import NotSupportedYetError
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.feed.claim_check import ClaimCheck
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.records.order import sort_records
from sorters.cut.claim_store import ClaimFolder, ClaimStoreError
from sorters.cut.worker import FeedProgram, output_records
from tests.support.control.changefeed_config import CANAL, refused
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE_ID, UPDATE_TS, ENCODED_AT_MS = TableId(112), 445644700000000000, 1_700_000_000_100
COMMIT_TS = 445644800000000001
"""Of the first row; the others follow one by one."""
TEXT: dict[str, Any] = {"tp": 15, "flen": 5000, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
LIMIT = 1000
ROWS = pytest.mark.parametrize("count", [3, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
NAME = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.json"
Pairs = list[tuple[bytes | None, bytes]]


def store(indexes: list[dict[str, Any]] | None = None) -> SchemaStore:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **TEXT), column(3, "u")]
    placed = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    info = table_info(TABLE_ID, "t1", columns=placed, indexes=indexes) | {"update_timestamp": UPDATE_TS}
    return snapshot(("test", 1, [info]))


def feed(
    protocol: str,
    *,
    limit: int = LIMIT,
    raw: bool = False,
    name: str = "f",
    topic: str = "t",
    uri: str = "file:///claims/",
) -> CompiledFeed:
    sink = f"kafka://h:1/{topic}?protocol={protocol}&max-message-bytes={limit}"
    sink += "&enable-tidb-extension=true" if protocol == "canal-json" else ""
    large = {
        "large-message-handle-option": "claim-check",
        "claim-check-storage-uri": uri,
        "claim-check-raw-value": raw,
    }
    config = load_changefeed(sink, {"sink": {"kafka-config": {"large-message-handle": large}}})
    return compile_feed(config, "default", {topic: 1}, changefeed_id=name)


def inserts(count: int, large: int) -> list[CommittedChange]:
    """Return rows with id 0, 1, …; ``val`` of row ``large`` is too large."""
    rows = (encode_row_v2({2: b"x" * 2000 if n == large else b"aa", 3: b"\x01"}) for n in range(count))
    return [
        CommittedChange(COMMIT_TS + n, COMMIT_TS - 1, row_key(TABLE_ID, n), "put", row, b"", 0)
        for n, row in enumerate(rows)
    ]


def sent(
    compiled: CompiledFeed,
    rows: list[CommittedChange],
    *,
    schemas: SchemaStore | None = None,
    encoded_at_ms: int = ENCODED_AT_MS,
) -> tuple[Pairs, dict[str, bytes]]:
    """Return the messages in their order, and the files."""
    files: dict[str, bytes] = {}

    def keep(name: str, content: bytes) -> None:
        assert name not in files
        files[name] = content

    changes = row_changes(TABLE_ID, rows)
    records = sort_records(
        records_of(changes, schemas or store(), compiled, encoded_at_ms=encoded_at_ms, store_claim=keep)
    )
    return list(zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True)), files


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


def expected(protocol: str, location: bytes) -> tuple[bytes | None, bytes]:
    """Return the message of the insert of the row with id 1."""
    if protocol == "canal-json":
        value = (
            b'{"id":0,"database":"test","table":"t1","pkNames":["id"],"isDdl":false,"type":"INSERT","es":1700000000000,'
        )
        value += (
            b'"ts":1700000000100,"sql":"","sqlType":{"id":4},"mysqlType":{"id":"int"},"old":null,"data":[{"id":"1"}],'
        )
        return None, value + b'"_tidb":{"commitTs":445644800000000002,"claimCheckLocation":"%s"}}' % location
    if protocol == "simple":
        value = (
            b'{"version":1,"database":"test","table":"t1","tableID":112,"type":"INSERT","commitTs":445644800000000002,'
        )
        value += b'"buildTs":1700000000100,"schemaVersion":445644700000000000,'
        return None, value + b'"claimCheckLocation":"%s","handleKeyOnly":true,"data":{"id":"1"}}' % location
    key = b'{"ts":445644800000000002,"scm":"test","tbl":"t1","rid":1,"t":1,"ccl":"%s"}' % location
    return bytes(7) + b"\x01" + framed(key), framed(b'{"u":{"id":{"t":3,"h":true,"f":11,"v":1}}}')


@ROWS
@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
def test_claim_check_message_says_where_the_whole_message_is(protocol: str, count: int) -> None:
    whole, none = sent(feed(protocol, limit=10_000), inserts(count, large=1))
    said, files = sent(feed(protocol), inserts(count, large=1))
    ((name, content),) = files.items()
    assert none == {}
    assert re.fullmatch(NAME, name)
    assert said[1] == expected(protocol, b"file:///claims/" + name.encode())
    assert said[:1] + said[2:] == whole[:1] + whole[2:]
    shown = json.loads(content)
    assert list(shown) == ["key", "value"]
    key = None if shown["key"] is None else b64decode(shown["key"], validate=True)
    assert (key, b64decode(shown["value"], validate=True)) == whole[1]


@pytest.mark.parametrize("protocol", ["canal-json", "simple"])
def test_claim_check_raw_value_file_is_the_value(protocol: str) -> None:
    whole, _ = sent(feed(protocol, limit=10_000), inserts(3, large=1))
    _, files = sent(feed(protocol, raw=True), inserts(3, large=1))
    assert list(files.values()) == [whole[1][1]]


def test_claim_check_file_name_is_a_function_of_changefeed_topic_and_position() -> None:
    # printf 'default/f\0t\0\x06\x2f' | sha256sum, its first 16 bytes with version 5 and variant of RFC 9562.
    claim_check = ClaimCheck(storage=parse_storage_uri("file:///a b/"), raw_value=False, changefeed="default/f")
    assert claim_check.file_name("t", b"\x06\x2f") == "18020e8c-0c6b-5608-ac62-836ef269e17c.json"
    assert claim_check.location("n.json") == "file:///a b/n.json"


@ROWS
def test_claim_check_repeated_batch_names_the_same_files(count: int) -> None:
    _, first = sent(feed("canal-json"), inserts(count, large=1))
    _, again = sent(feed("canal-json"), list(reversed(inserts(count, large=1))), encoded_at_ms=ENCODED_AT_MS + 5)
    assert first.keys() == again.keys()
    for other in (feed("canal-json", name="g"), feed("canal-json", topic="t2")):
        assert not first.keys() & sent(other, inserts(count, large=1))[1].keys()


def test_claim_check_halves_of_a_split_update_have_files_of_their_own() -> None:
    keyed = store([index(1, "u", [2], unique=True)])
    old, new = (encode_row_v2({2: b"x" * 2000, 3: unique}) for unique in (b"\x01", b"\x02"))
    update = CommittedChange(COMMIT_TS, COMMIT_TS - 1, row_key(TABLE_ID, 1), "put", new, old, 0)
    said, files = sent(feed("canal-json"), [update], schemas=keyed)
    shown = [json.loads(value) for _, value in said]
    assert [message["type"] for message in shown] == ["DELETE", "INSERT"]
    for message in shown:
        content = files[message["_tidb"]["claimCheckLocation"].rpartition("/")[2]]
        assert json.loads(b64decode(json.loads(content)["value"]))["type"] == message["type"]


@ROWS
def test_claim_check_message_that_is_still_too_large_stores_nothing(count: int) -> None:
    keyed = store()
    files: dict[str, bytes] = {}
    with pytest.raises(SinkMessageTooLargeError, match="with the handle key alone"):
        records_of(
            row_changes(TABLE_ID, inserts(count, large=1)),
            keyed,
            feed("canal-json", limit=300),
            encoded_at_ms=ENCODED_AT_MS,
            store_claim=files.__setitem__,
        )
    assert files == {}


def test_claim_folder_replaces_a_file_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    seen: list[list[str]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        seen.append([path.read_text() for path in folder.iterdir() if not path.name.startswith(".")])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    ClaimFolder(folder).store("n.json", b"one")
    ClaimFolder(folder).store("n.json", b"two")
    # The file's content is on disk before its name is, and then the name.
    assert seen == [[], ["one"], ["one"], ["two"]]
    assert [path.name for path in folder.iterdir()] == ["n.json"]


def test_claim_folder_that_cannot_be_written_leaves_nothing_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ClaimStoreError, match="No space left") as caught:
            ClaimFolder(tmp_path).store("n.json", b"one")
    assert caught.value.action is Action.RETRY
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ClaimStoreError, match="folder="):
        ClaimFolder(tmp_path / "file").store("n.json", b"one")


@ROWS
def test_worker_stores_whole_messages_before_it_hands_over_those_that_name_them(tmp_path: Path, count: int) -> None:
    compiled = feed("simple", uri=f"file://{tmp_path}/claims%20here")
    rows = row_changes(TABLE_ID, inserts(count, large=1))
    raw = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
    cut = Cut(
        after_ts=Ts(COMMIT_TS - 1), upto_ts=Ts(COMMIT_TS + count), start=(0,), end=(1,), may_repeat=False, ddl_end=0
    )
    made = output_records(iter([raw]), cut, FeedProgram(store(), compiled), ENCODED_AT_MS)
    (value,) = (value for value in next(made)["value"].to_pylist() if b"claimCheckLocation" in value)
    ((path, content),) = ((path, path.read_bytes()) for path in (tmp_path / "claims here").iterdir())
    assert json.loads(value)["claimCheckLocation"] == f"file://{tmp_path}/claims%20here/{path.name}"
    assert json.loads(b64decode(json.loads(content)["value"]))["data"]["val"] == "x" * 2000


LARGE = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'claim-check'\n"
EXTENDED = CANAL + "&enable-tidb-extension=true"


@pytest.mark.parametrize(
    ("uri", "text", "key", "words"),
    [
        (EXTENDED, "", "large-message-handle-option", "needs claim-check-storage-uri"),
        (EXTENDED, "claim-check-storage-uri = 'file://host/x'", "claim-check-storage-uri", "must be file:///path"),
        (EXTENDED, "claim-check-storage-uri = '/x'", "claim-check-storage-uri", "must be file:///path"),
        (
            EXTENDED,
            "claim-check-storage-uri = 's3://b?external-id=x'",
            "claim-check-storage-uri",
            "external-id without role-arn",
        ),
        (EXTENDED, "claim-check-storage-uri = 's3:///p'", "claim-check-storage-uri", "must be s3://bucket"),
        (
            EXTENDED.replace("canal-json", "open-protocol"),
            "claim-check-storage-uri = 'file:///x'\nclaim-check-raw-value = true",
            "claim-check-raw-value",
            "is for canal-json and simple",
        ),
    ],
)
def test_load_changefeed_claim_check_that_is_not_usable_names_the_setting(
    uri: str, text: str, key: str, words: str
) -> None:
    error = refused(uri, LARGE + text)
    assert words in error.message
    assert error.fields["key"] == f"sink.kafka-config.large-message-handle.{key}"


@pytest.mark.parametrize("scheme", ["ks3", "hdfs", "noop"])
def test_load_changefeed_claim_check_in_another_storage_is_refused_by_its_own_code(scheme: str) -> None:
    error = refused(
        EXTENDED, LARGE + f"claim-check-storage-uri = '{scheme}://b/p?secret-access-key=k'", NotSupportedYetError
    )
    assert f"scheme `{scheme}` is not supported yet" in error.message
    assert "secret" not in str(error)


def test_load_changefeed_claim_check_settings_without_the_option_are_noted() -> None:
    text = "[sink.kafka-config.large-message-handle]\nclaim-check-storage-uri = 'file:///x'"
    assert any("claim-check-* has no effect" in line for line in load_changefeed(CANAL, text).notes)
