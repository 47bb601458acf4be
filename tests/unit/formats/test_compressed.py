"""Messages that the changefeed compresses: taken apart they are those of a changefeed that does not."""

import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.encode.wire.protocol import EncodedMessage
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount.mounter import SMALL_ROWS
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.decompress import unlz4, unsnappy

TABLE_ID, UPDATE_TS, COMMIT_TS, ENCODED_AT_MS = TableId(112), 445644700000000000, 445644800000000001, 1_700_000_000_100
TEXT: dict[str, Any] = {"tp": 15, "flen": 5000, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
URIS = {
    "canal-json": "canal-json&enable-tidb-extension=true",
    "simple": "simple",
    "simple-avro": "simple&encoding-format=avro",
    "debezium": "debezium&enable-tidb-extension=true",
    "open-protocol": "open-protocol",
}
PROTOCOLS = pytest.mark.parametrize("protocol", URIS)
ROWS = pytest.mark.parametrize("count", [3, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
CODECS = pytest.mark.parametrize(("codec", "undo"), [("lz4", unlz4), ("snappy", unsnappy)])
Undo = Callable[[bytes], bytes]
Pair = tuple[bytes | None, bytes | None]


class AddColumn:
    schema, table, ddl_type, commit_ts = "test", "t1", 5, Ts(COMMIT_TS)
    query = "alter table t1 add column c int"
    pre = post = None


def store() -> SchemaStore:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **TEXT)]
    placed = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    info = table_info(TABLE_ID, "t1", columns=placed) | {"update_timestamp": UPDATE_TS}
    return snapshot(("test", 1, [info]))


def feed(protocol: str, compression: str, limit: int = 1 << 20, **large: Any) -> CompiledFeed:
    settings = {"large-message-handle-compression": compression} | {
        name.replace("_", "-"): value for name, value in large.items()
    }
    uri = f"kafka://h:1/t?protocol={URIS[protocol]}&max-message-bytes={limit}"
    config = load_changefeed(uri, {"sink": {"kafka-config": {"large-message-handle": settings}}})
    assert not config.notes or protocol.startswith("simple")
    return compile_feed(config, "default", {"t": 1}, changefeed_id="f")


def rows(compiled: CompiledFeed, count: int, text: bytes = b"aa", store_claim: StoreClaim | None = None) -> list[Pair]:
    value = encode_row_v2({2: text})
    changes = [
        CommittedChange(COMMIT_TS + n, COMMIT_TS - 1, row_key(TABLE_ID, n), "put", value, b"", 0) for n in range(count)
    ]
    records = records_of(
        row_changes(TABLE_ID, changes), store(), compiled, encoded_at_ms=ENCODED_AT_MS, store_claim=store_claim
    )
    return list(zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True))


def undone(protocol: str, message: Pair, undo: Undo) -> Pair:
    """Return a message as it was before it was compressed, by what the protocol compresses."""
    key, value = message
    assert value is not None
    if protocol == "open-protocol":
        if value == bytes(8):
            return key, value
        size, body = int.from_bytes(value[:8], "big"), value[8:]
        assert size == len(body)
        plain = undo(body)
        return key, len(plain).to_bytes(8, "big") + plain
    return undo(key) if protocol == "debezium" and key is not None else key, undo(value)


def letters(count: int) -> bytes:
    """Return what no compression makes much shorter."""
    return "".join(random.Random(7).choices(string.ascii_letters, k=count)).encode()


def pair(message: EncodedMessage | None) -> Pair:
    assert message is not None
    return message.key, message.value


@ROWS
@PROTOCOLS
@CODECS
def test_compressed_rows_are_those_of_a_changefeed_that_does_not_compress(
    protocol: str, codec: str, undo: Undo, count: int
) -> None:
    plain, packed = (rows(feed(protocol, name), count, b"a" * 500) for name in ("none", codec))
    assert [undone(protocol, message, undo) for message in packed] == plain
    assert all(
        len(packed_row[1] or b"") < len(plain_row[1] or b"")
        for packed_row, plain_row in zip(packed, plain, strict=True)
    )


@PROTOCOLS
@CODECS
def test_compressed_ddl_watermarks_and_bootstraps_are_those_of_a_changefeed_that_does_not_compress(
    protocol: str, codec: str, undo: Undo
) -> None:
    plain, packed = feed(protocol, "none"), feed(protocol, codec)
    said = []
    for compiled in (plain, packed):
        messages = [
            pair(compiled.encoder.encode_ddl(AddColumn(), encoded_at_ms=ENCODED_AT_MS)),
            pair(compiled.encoder.encode_watermark(Ts(COMMIT_TS), encoded_at_ms=ENCODED_AT_MS)),
        ]
        if compiled.bootstraps is not None:
            table = store().table_at(TABLE_ID, Ts(COMMIT_TS))
            assert table is not None
            messages.append(pair(compiled.bootstraps.encoder.encode_bootstrap(table, encoded_at_ms=ENCODED_AT_MS)))
        said.append(messages)
    assert said[0] != said[1]
    assert [undone(protocol, message, undo) for message in said[1]] == said[0]
    assert (plain.encoder.ddl_partitions, plain.encoder.watermark_partitions) == (
        packed.encoder.ddl_partitions,
        packed.encoder.watermark_partitions,
    )


@ROWS
@pytest.mark.parametrize("protocol", ["canal-json", "simple", "simple-avro", "open-protocol"])
def test_compressed_row_is_too_large_only_by_what_is_left_of_it(protocol: str, count: int) -> None:
    # 2,000 equal bytes are few once they are compressed; what is not compressed is beyond the limit.
    compiled = feed(protocol, "lz4", limit=700, large_message_handle_option="handle-key-only")
    for message in rows(compiled, count, b"a" * 2000):
        assert b"a" * 2000 in (undone(protocol, message, unlz4)[1] or b"")
    noise = letters(2000)
    marks = {"open-protocol": (0, b'"ohk":true'), "simple": (1, b'"handleKeyOnly":true'),
             "canal-json": (1, b'"onlyHandleKey":true')}  # fmt: skip
    for message in rows(feed(protocol, "lz4", limit=700, large_message_handle_option="handle-key-only"), count, noise):
        plain = undone(protocol, message, unlz4)
        assert noise not in (plain[1] or b"")
        if protocol in marks:
            side, mark = marks[protocol]
            assert mark in (plain[side] or b"")


@ROWS
@CODECS
def test_compressed_claim_check_stores_the_compressed_message(codec: str, undo: Undo, count: int) -> None:
    files: dict[str, bytes] = {}
    noise = letters(5000)
    compiled = feed(
        "canal-json", codec, limit=900, large_message_handle_option="claim-check",
        claim_check_storage_uri="file:///claims", claim_check_raw_value=True,
    )  # fmt: skip
    said = rows(compiled, count, noise, files.__setitem__)
    whole = rows(feed("canal-json", codec), count, noise)
    for (_, value), (_, stored) in zip(said, whole, strict=True):
        location = undo(value or b"").partition(b'"claimCheckLocation":"')[2].partition(b'"')[0].decode()
        assert files[location.removeprefix("file:///claims/")] == stored


@pytest.mark.parametrize("protocol", ["avro&schema-registry=http://r:1", "canal"])
def test_compression_that_a_protocol_does_not_read_is_noted(protocol: str) -> None:
    settings = {"large-message-handle": {"large-message-handle-compression": "lz4"}}
    config = load_changefeed(f"kafka://h:1/t?protocol={protocol}", {"sink": {"kafka-config": settings}})
    assert any("large-message-handle-compression has no effect" in note for note in config.notes)
