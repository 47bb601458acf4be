"""``claim-check`` to an object storage: a server that speaks S3, on loopback."""

import json
from base64 import b64decode
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import Action
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import OutputRecords
from sorters.cut.claim_store import ClaimStoreError
from sorters.cut.worker import FeedProgram, output_records
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.storages.aws import ask_s3, s3_keys

TABLE_ID, COMMIT_TS = TableId(112), 445644800000000001
ACCESS = "access-key=ak&secret-access-key=hidden-word&region=us-east-1"
TEXT: dict[str, Any] = {"tp": 15, "flen": 5000, "charset": "utf8mb4", "collation": "utf8mb4_bin"}


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
    info = table_info(TABLE_ID, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])
    value = encode_row_v2({2: b"x" * 2000})
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, row_key(TABLE_ID, 1), "put", value, b"", 0)
    rows = row_changes(TABLE_ID, [change])
    raw_record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
    cut = Cut(after_ts=Ts(COMMIT_TS - 1), upto_ts=Ts(COMMIT_TS), start=(0,), end=(1,), may_repeat=False, ddl_end=0)
    program = FeedProgram(snapshot(("test", 1, [info])), feed)
    (records,) = output_records(iter([raw_record]), cut, program, 1_700_000_000_100)
    return records


def test_large_messages_go_to_an_s3_bucket_and_messages_name_the_object(aws: str) -> None:
    ask_s3(aws, "claims", "PUT")
    uri = f"s3://claims/some/prefix/?{ACCESS}&endpoint={aws}"
    said = [json.loads(made(uri)["value"][0].as_py()) for _ in range(2)]
    location = said[0]["_tidb"]["claimCheckLocation"]
    assert said[0] == said[1]
    (stored,) = s3_keys(aws, "claims")  # the repeated batch has written the same one
    assert location == f"s3://claims/{stored}"
    assert stored.startswith("some/prefix/")
    whole = json.loads(b64decode(json.loads(ask_s3(aws, f"claims/{stored}"))["value"]))
    assert whole["data"] == [{"id": "1", "val": "x" * 2000}]
    assert said[0]["data"] == [{"id": "1"}]
    (value,) = made(f"s3://claims/raw?{ACCESS}&endpoint={aws}", raw=True)["value"].to_pylist()
    (raw,) = s3_keys(aws, "claims", "raw/")
    assert json.loads(value)["_tidb"]["claimCheckLocation"] == f"s3://claims/{raw}"
    assert json.loads(ask_s3(aws, f"claims/{raw}")) == whole


def test_storage_that_refuses_is_tried_again_and_the_error_holds_no_secret(aws: str) -> None:
    with pytest.raises(ClaimStoreError, match="storage=s3://no-such-bucket") as caught:
        made(f"s3://no-such-bucket/x?{ACCESS}&endpoint={aws}")
    assert caught.value.action is Action.RETRY
    assert "hidden-word" not in str(caught.value)
