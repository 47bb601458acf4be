"""Nodes and records of commit 45ec899, the last version without sorter services, are read; and it reads ours.

That version takes the keys that it knows of an object and passes over others, but in ``error`` and ``failure`` of a
status, where it refuses any other key.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from consumers.control.cluster.capture_registry import CaptureInfo, decode_capture, encode_capture
from schemas.changes import RowChanges
from schemas.ids import CaptureId, RegionId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    SET_EPOCH_UNKNOWN,
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.creation_zone import with_zone, without_zone
from schemas.nodes.failures import StoppingDdl
from schemas.nodes.sorter_service import FeedEntry, with_progress
from schemas.rawlog.ddl_record import DdlRecord, decode_ddl_record, encode_ddl_record
from schemas.rawlog.frontier import (
    FrontierRecord,
    HeldDdl,
    HeldTables,
    TopicIds,
    decode_frontier,
    encode_frontier,
)
from schemas.rawlog.region_batch import RegionBatch, decode_region_batch, encode_region_batch
from sorters.core.cut.beginning import BegunEpoch, decode_begun, encode_begun
from tests.support.sources.repository import ROOT

RECORDS: dict[str, str] = json.loads((ROOT / "tests/data/release-45ec899/records.json").read_text())
T = 449_000_000_000_000_000
AT = "2026-11-22T04:00:00+00:00"

INFO = ChangefeedInfo(
    changefeed_id="orders",
    namespace="shop",
    upstream=UpstreamId("7012"),
    sink_uri="kafka://127.0.0.1:9092/orders?protocol=canal-json",
    config={"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}},
    start_ts=Ts(T),
    target_ts=Ts(T + 900),
    desired_state="stopped",
    epoch=3,
    create_time=AT,
    creator_version="0.1.0",
)
STATUS = ChangefeedStatus(
    state="normal",
    checkpoint_ts=Ts(T + 100),
    resolved_ts=Ts(T + 150),
    rows_total=7,
    corrupt_rows_total=1,
    batch_rows=5,
    batch_s=0.25,
    last_synced_ts=Ts(T + 90),
    sorter_deaths=2,
    set_epoch=SET_EPOCH_UNKNOWN,
)
KAFKA_GONE = "kafka takes no records"
FAILED = ChangefeedStatus(
    state="warning",
    checkpoint_ts=Ts(T + 100),
    resolved_ts=Ts(T + 150),
    error=ChangefeedError(code="sorter.kafka_unreachable", message=KAFKA_GONE, time=AT),
    failure=SorterFailure(epoch=3, code="sorter.kafka_unreachable", message=KAFKA_GONE, time=AT, may_heal=True),
    set_epoch=SET_EPOCH_UNKNOWN,
)
STOPPING = StoppingDdl(
    table="shop.orders", query="ALTER …", start_ts=Ts(T + 5), commit_ts=Ts(T + 6), reason="no", what_helps="this"
)
STOPPING_JSON = {
    "table": "shop.orders",
    "query": "ALTER …",
    "start_ts": T + 5,
    "commit_ts": T + 6,
    "reason": "no",
    "what_helps": "this",
}
assert FAILED.error is not None and FAILED.failure is not None
ERROR_DDL = replace(FAILED, error=replace(FAILED.error, ddl=STOPPING))
FAILURE_DDL = replace(FAILED, failure=replace(FAILED.failure, ddl=STOPPING))
BEGUN = BegunEpoch("tidebus.7012.frontier", Ts(T + 100), 17, 23)
CAPTURE = CaptureInfo(
    capture_id=CaptureId("a1b2"),
    address="127.0.0.1:8300",
    version="0.1.0",
    started_at_s=1795233600,
    peer_address="127.0.0.1:8301",
    is_stopping=True,
)
FRONTIER = FrontierRecord(
    owner_rev=4,
    resolved_ts=Ts(T + 100),
    high=(10, 20),
    low=(5, 6),
    ddl_high=3,
    repeat_high=(0, 7),
    held=(HeldTables(tables=(TableId(114),), ts=Ts(T + 40), low=(1, 2)),),
    held_ddl=(
        HeldDdl(ts=Ts(T + 30), start_ts=Ts(T + 29), low=(1, 1), schema="shop", table="orders", table_id=TableId(115)),
    ),
)
DDL = DdlRecord(kind="job", ts=Ts(T + 30), start_ts=Ts(T + 29), payload={"id": 77, "query": "CREATE TABLE t (a INT)"})
BATCH = RegionBatch(
    region_id=RegionId(9),
    may_repeat=True,
    rows=RowChanges(
        table_id=TableId(114),
        key=pa.array([b"k1", b"k2"], pa.binary()),
        value=pa.array([b"v1", b""], pa.binary()),
        old_value=pa.array([b"", b"v0"], pa.binary()),
        start_ts=np.array([T + 1, T + 3]),
        commit_ts=np.array([T + 2, T + 4]),
        op=np.array([1, 2], np.int8),
        txn_source=np.array([0, 0]),
    ),
)


STATUS_FIGURES = {"spark_rows_total", "windows_proven", "windows_unproven"}


@pytest.mark.parametrize(
    ("name", "decode", "value"),
    [
        ("info", decode_changefeed_info, INFO),
        ("status", decode_changefeed_status, STATUS),
        ("status-failed", decode_changefeed_status, FAILED),
        ("begun", decode_begun, BEGUN),
        ("capture", lambda node: decode_capture(node, "a1b2"), CAPTURE),
        ("frontier", decode_frontier, FRONTIER),
        ("ddl", decode_ddl_record, DDL),
    ],
)
def test_record_of_the_release_before_is_read(name: str, decode: Callable[[bytes], Any], value: object) -> None:
    assert decode(RECORDS[name].encode()) == value


@pytest.mark.parametrize(
    ("name", "encoded", "further"),
    [
        ("info", encode_changefeed_info(INFO), {"time_zone"}),
        ("info", encode_changefeed_info(replace(INFO, safe_until_ts=Ts(9))), {"time_zone", "safe_until_ts"}),
        ("info", encode_changefeed_info(replace(INFO, source_id=2)), {"time_zone", "source_id"}),
        (
            "info",
            encode_changefeed_info(replace(INFO, life_epoch=2, former_starts=(Ts(T),))),
            {"time_zone", "life_epoch", "former_starts"},
        ),
        ("status", encode_changefeed_status(replace(STATUS, set_epoch=2)), {*STATUS_FIGURES, "set_epoch"}),
        ("status", encode_changefeed_status(replace(STATUS, created_zxid=9)), {*STATUS_FIGURES, "created_zxid"}),
        ("status-failed", encode_changefeed_status(FAILED), STATUS_FIGURES),
        ("status-failed", encode_changefeed_status(ERROR_DDL), {*STATUS_FIGURES, "error_ddl"}),
        ("status-failed", encode_changefeed_status(FAILURE_DDL), {*STATUS_FIGURES, "failure_ddl"}),
        ("begun", encode_begun(BEGUN), set()),
        ("capture", encode_capture(replace(CAPTURE, service_id="s")), {"sorter-service"}),
        ("frontier", encode_frontier(replace(FRONTIER, topic_ids=TopicIds(events="a", ddl="b"))), {"topic_ids"}),
        ("ddl", encode_ddl_record(DDL), set()),
    ],
)
def test_record_that_is_written_now_says_to_the_release_before_what_its_own_said(
    name: str, encoded: bytes, further: set[str]
) -> None:
    ours, theirs = json.loads(encoded), json.loads(RECORDS[name])
    assert {key: ours[key] for key in theirs} == theirs, "nested objects without a further key, which it refuses"
    assert ours.keys() - theirs.keys() == further, "of a further key its page in docs/formats says who reads it"


@pytest.mark.parametrize(("key", "status"), [("error", ERROR_DDL), ("failure", FAILURE_DDL)])
def test_ddl_that_has_stopped_a_changefeed_stands_beside_its_error_and_is_read_within_it_too(
    key: str, status: ChangefeedStatus
) -> None:
    """Builds since the release before wrote it within the error, which that release refuses."""
    node = json.loads(encode_changefeed_status(status))
    assert node[f"{key}_ddl"] == STOPPING_JSON and "ddl" not in node[key]
    theirs = json.loads(RECORDS["status-failed"])
    theirs[key]["ddl"] = STOPPING_JSON
    for written in (node, theirs):
        assert decode_changefeed_status(json.dumps(written).encode()) == status


@pytest.mark.parametrize(
    ("error", "read"),
    [
        (None, None),
        (
            {"code": "sorter.died", "message": "killed", "time": AT},
            ChangefeedError(code="sorter.died", message="killed", time=AT),
        ),
    ],
)
def test_ddl_is_gone_once_its_error_is_whoever_writes_the_node(
    error: dict[str, str] | None, read: ChangefeedError | None
) -> None:
    """The release before writes the keys that it knows, with an error of its own; we write none without its error."""
    node = json.loads(encode_changefeed_status(ERROR_DDL))
    rewritten = {key: value for key, value in node.items() if key in json.loads(RECORDS["status-failed"])}
    assert decode_changefeed_status(json.dumps({**rewritten, "error": error}).encode()).error == read
    ours = json.loads(encode_changefeed_status(replace(ERROR_DDL, error=read)))
    assert "error_ddl" not in ours
    left = decode_changefeed_status(json.dumps({**node, "error": None}).encode())
    assert left.error is None, "a DDL alone is none"


def test_zone_of_a_changefeed_outlives_a_rewriting_by_the_release_before() -> None:
    info = replace(INFO, create_time=with_zone(AT, "Asia/Tokyo"), time_zone="Asia/Tokyo")
    rewritten = {key: value for key, value in json.loads(encode_changefeed_info(info)).items() if key != "time_zone"}
    assert decode_changefeed_info(json.dumps(rewritten).encode()) == info
    assert without_zone(info.create_time) == AT == with_zone(AT, "UTC")


def test_region_batch_is_byte_for_byte_that_of_the_release_before() -> None:
    theirs = bytes.fromhex(RECORDS["region-batch-hex"])
    assert encode_region_batch(BATCH, 1) == theirs
    read = decode_region_batch(theirs)
    assert (read.region_id, read.may_repeat, read.rows.key.to_pylist()) == (9, True, [b"k1", b"k2"])
    assert (read.rows.commit_ts.tolist(), read.rows.value.to_pylist()) == ([T + 2, T + 4], [b"v1", b""])


def test_status_that_the_release_before_has_written_outweighs_what_a_service_said_earlier() -> None:
    """It may have set the checkpoint back, which it notes nowhere."""
    entry = FeedEntry(
        namespace="shop",
        changefeed_id="orders",
        created_zxid=9,
        epoch=3,
        revision=1,
        checkpoint_ts=Ts(T + 800),
        resolved_ts=Ts(T + 800),
    )
    status = decode_changefeed_status(RECORDS["status"].encode())
    assert with_progress(status, entry) == status
    rewritten = decode_changefeed_status(encode_changefeed_status(replace(status, state="warning")))
    progress = with_progress(rewritten, entry)
    assert progress is not None
    assert progress.checkpoint_ts == T + 100, "also after an owner of this version has written the node"
