"""Nodes of ZooKeeper that anybody may have written, and one that holds them."""

import json
from typing import Any, cast

from hypothesis import strategies as st

from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.failures import StoppingDdl
from tests.support.control.stored_zookeeper import MemorySession
from tests.support.sources.hostile import NOT_JSON, VALUES, bent

PATHS, UPSTREAM = ZkPaths("c"), UpstreamId("u")
GOOD = ChangefeedInfo(
    changefeed_id="good", upstream=UPSTREAM, sink_uri="kafka://h:9092/t?protocol=canal-json", start_ts=Ts(100)
)
BAD = ChangefeedInfo(
    changefeed_id="bad", upstream=UPSTREAM, sink_uri="kafka://h:9092/t?protocol=canal-json", config={}, start_ts=Ts(100)
)
INFO = encode_changefeed_info(BAD)
DDL = StoppingDdl(table="a.b", query="q", start_ts=Ts(5), commit_ts=Ts(6), reason="r", what_helps="h")
STATUS = encode_changefeed_status(
    ChangefeedStatus(
        state="normal",
        checkpoint_ts=Ts(100),
        resolved_ts=Ts(100),
        error=ChangefeedError(code="c", message="m", time="t", ddl=DDL),
        failure=SorterFailure(epoch=0, code="c", message="m", time="t", may_heal=True, ddl=DDL),
    )
)
WRONG = ["null", "[]", "{}", '""', "0", "\udcff", *NOT_JSON]


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def odd(name: str, valid: bytes) -> st.SearchStrategy[bytes]:
    """Return what may stand in a node: bent bytes, noise, JSON of any shape, or a right one with wrong fields."""
    whole = json.loads(valid)
    fields = whole[0] if isinstance(whole, list) else whole

    def changed(values: dict[str, Any]) -> bytes:
        other = {**fields, **values}
        return json.dumps([other] if isinstance(whole, list) else other).encode()

    some = st.dictionaries(st.sampled_from(sorted(fields)), VALUES, min_size=1, max_size=2)
    return (
        bent(valid)
        | st.binary(max_size=50)
        | VALUES.map(lambda value: json.dumps(value).encode())
        | some.map(changed)
        | st.sampled_from(WRONG).map(raw)
    )


def session_with(**feeds: tuple[bytes, bytes | None]) -> tuple[MemorySession, Session]:
    """Return a ZooKeeper with the good changefeed and others by name: info, status."""
    made = MemorySession()
    made.client.put(PATHS.changefeed_info("default", "good"), encode_changefeed_info(GOOD))
    for name, (info, status) in feeds.items():
        made.client.put(PATHS.changefeed_info("default", name), info)
        if status is not None:
            made.client.put(PATHS.changefeed_status("default", name), status)
    return made, cast(Session, made)
