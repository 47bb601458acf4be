"""``claim-check`` to an object storage: a server that speaks S3, on loopback."""

import http.client
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from moto.server import ThreadedMotoServer

from schemas.config.changefeed import load_changefeed
from schemas.errors import Action
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.claim_store import ClaimStoreError
from sorters.core.cut import Cut
from sorters.core.feed import compile_feed
from sorters.core.order import OutputRecords
from sorters.worker import Program, output_records
from tests.support.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.mounting import row_changes
from tests.support.recording import CommittedChange

TABLE_ID, COMMIT_TS = TableId(112), 445644800000000001
ACCESS = "access-key=ak&secret-access-key=hidden-word&region=us-east-1"
TEXT: dict[str, Any] = {"tp": 15, "flen": 5000, "charset": "utf8mb4", "collation": "utf8mb4_bin"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def ask(endpoint: str, path: str, method: str = "GET") -> bytes:
    """Ask the server without a client of S3; it looks at no signature, but wants one."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, f"/{path}", headers={"Authorization": "AWS ak:x"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    finally:
        connection.close()


def keys(endpoint: str, prefix: str) -> list[str]:
    listed = ElementTree.fromstring(ask(endpoint, f"claims?list-type=2&prefix={prefix}"))
    return [element.text or "" for element in listed.iter() if element.tag.endswith("}Key")]


def made(uri: str, *, raw: bool = False) -> OutputRecords:
    large = {
        "large-message-handle-option": "claim-check",
        "claim-check-storage-uri": uri,
        "claim-check-raw-value": raw,
    }
    sink = "kafka://h:1/t?protocol=canal-json&enable-tidb-extension=true&max-message-bytes=1000"
    config = load_changefeed(sink, {"sink": {"kafka-config": {"large-message-handle": large}}})
    feed = compile_feed(config, "default", {"t": 1}, changefeed_id="f")
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **TEXT)]
    info = table_info(TABLE_ID, "t1", columns=[spec | {"offset": place} for place, spec in enumerate(columns)])
    value = encode_row_v2({2: b"x" * 2000})
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, row_key(TABLE_ID, 1), "put", value, b"", 0)
    rows = row_changes(TABLE_ID, [change])
    raw_record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
    cut = Cut(after_ts=Ts(COMMIT_TS - 1), upto_ts=Ts(COMMIT_TS), start=(0,), end=(1,), may_repeat=False, ddl_end=0)
    program = Program(snapshot(("test", 1, [info])), feed)
    (records,) = output_records(iter([raw_record]), cut, program, 1_700_000_000_100)
    return records


def test_large_messages_go_to_an_s3_bucket_and_messages_name_the_object(s3: str) -> None:
    ask(s3, "claims", "PUT")
    uri = f"s3://claims/some/prefix/?{ACCESS}&endpoint={s3}"
    said = [json.loads(made(uri)["value"][0].as_py()) for _ in range(2)]
    location = said[0]["_tidb"]["claimCheckLocation"]
    assert said[0] == said[1]
    (stored,) = keys(s3, "")  # the repeated batch has written the same one
    assert location == f"s3://claims/{stored}"
    assert stored.startswith("some/prefix/")
    whole = json.loads(b64decode(json.loads(ask(s3, f"claims/{stored}"))["value"]))
    assert whole["data"] == [{"id": "1", "val": "x" * 2000}]
    assert said[0]["data"] == [{"id": "1"}]
    (value,) = made(f"s3://claims/raw?{ACCESS}&endpoint={s3}", raw=True)["value"].to_pylist()
    (raw,) = keys(s3, "raw/")
    assert json.loads(value)["_tidb"]["claimCheckLocation"] == f"s3://claims/{raw}"
    assert json.loads(ask(s3, f"claims/{raw}")) == whole


def test_storage_that_refuses_is_tried_again_and_the_error_holds_no_secret(s3: str) -> None:
    with pytest.raises(ClaimStoreError, match="storage=s3://no-such-bucket") as caught:
        made(f"s3://no-such-bucket/x?{ACCESS}&endpoint={s3}")
    assert caught.value.action is Action.RETRY
    assert "hidden-word" not in str(caught.value)
