"""ZooKeeper nodes of a changefeed come back as they went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.failures import SorterFailure, StoppingDdl


@given(
    st.from_regex(r"[a-zA-Z0-9]{1,60}(-[a-zA-Z0-9]{1,60})?", fullmatch=True),
    st.text(st.characters(codec="utf-8")),
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(1, 2**63 - 1),
)
def test_changefeed_info_encoded_then_decoded_is_the_same(
    name: str, topic: str, start_ts: int, target_ts: int | None
) -> None:
    info = ChangefeedInfo(
        changefeed_id=name,
        upstream=UpstreamId("u"),
        sink_uri="kafka://127.0.0.1:9092/t?protocol=avro",
        config={"sink": {"dispatchers": [{"matcher": ["a.*"], "topic": topic}]}},
        start_ts=Ts(start_ts),
        target_ts=None if target_ts is None else Ts(target_ts),
        life_epoch=start_ts,
        former_starts=(Ts(start_ts), Ts(7)),
    )
    assert decode_changefeed_info(encode_changefeed_info(info)) == info


DDLS = st.none() | st.builds(
    StoppingDdl,
    table=st.text(),
    query=st.text(),
    start_ts=st.integers(0, 2**63 - 1).map(Ts),
    commit_ts=st.integers(0, 2**63 - 1).map(Ts),
    reason=st.text(),
    what_helps=st.text(),
)


@given(st.integers(0, 2**63 - 1), st.none() | st.text(), DDLS, st.integers(0, 2**63 - 1))
def test_changefeed_status_encoded_then_decoded_is_the_same(
    checkpoint_ts: int, message: str | None, ddl: StoppingDdl | None, created_zxid: int
) -> None:
    at = "2026-01-01T00:00:00Z"
    failure = SorterFailure(epoch=3, code="c", message="m", time=at, may_heal=False, ddl=ddl)
    status = ChangefeedStatus(
        state="warning",
        checkpoint_ts=Ts(checkpoint_ts),
        resolved_ts=Ts(checkpoint_ts),
        error=None if message is None else ChangefeedError(code="c", message=message, time=at, ddl=ddl),
        failure=failure,
        rows_total=5,
        corrupt_rows_total=3,
        batch_rows=2,
        batch_s=0.25,
        created_zxid=created_zxid,
    )
    node = encode_changefeed_status(status)
    decoded = decode_changefeed_status(node)
    assert (decoded, decoded.created_zxid) == (status, created_zxid)
    assert b'"ddl":' not in node, "versions before refuse an error with a further key"
    assert ddl is not None or b'_ddl":' not in node, "versions before find what they write"


@pytest.mark.parametrize("node", [b"", b"{}", b"[]", b"\xff"])
def test_changefeed_nodes_when_malformed_are_refused(node: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_changefeed_info(node)
    with pytest.raises(CorruptDataError):
        decode_changefeed_status(node)


def test_zookeeper_paths_are_those_of_the_design() -> None:
    paths = ZkPaths("c")
    assert paths.captures == "/tidebus/c/captures"
    assert paths.owner_rev == "/tidebus/c/owner-rev"
    assert paths.changefeed_status("default", "f") == "/tidebus/c/changefeeds/default/f/status"
