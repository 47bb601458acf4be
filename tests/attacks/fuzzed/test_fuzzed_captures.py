"""Nodes of captures, owners and processors that anybody may have written, and who reads them."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.control.changefeeds.processor_nodes import (
    AppliedNode,
    decode_applied,
)
from consumers.control.cluster.capture_registry import (
    CaptureInfo,
    CaptureWatch,
    encode_capture,
    list_captures,
)
from consumers.control.cluster.election import Election, raise_revision
from consumers.control.cluster.schema_memory import SchemaMemoryNode
from consumers.control.cluster.upstream_node import FIRST_EPOCH, UpstreamNode
from consumers.processors.board import ProcessorBoard
from edges.zookeeper.connection import LeasedClient
from edges.zookeeper.lease import Lease
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, Ts
from schemas.nodes.changefeed import (
    encode_changefeed_info,
)
from sorters.run.nodes.feed_lock import HOLDER_CHARS_MAX, FeedLock
from tests.support.control.memory_zookeeper import MemoryZooKeeper
from tests.support.control.odd_nodes import BAD, PATHS, STATUS, UPSTREAM, WRONG, odd, raw, session_with


def capture(name: str) -> bytes:
    return encode_capture(CaptureInfo(capture_id=CaptureId(name), address="h:1", version="1", started_at_s=1))


@settings(max_examples=100)
@given(node=odd("capture", capture("bad")), name=st.sampled_from(["bad", "-rf", "a b", "é", "x" * 300]))
def test_node_among_captures_that_no_session_holds_is_no_capture(node: bytes, name: str) -> None:
    made, session = session_with()
    made.client.put(f"{PATHS.captures}/good", capture("good"), owner=1)
    made.client.put(f"{PATHS.captures}/{name}", node)
    watch = CaptureWatch(session, PATHS, lambda _: None)
    try:
        assert watch.captures.keys() == {"good"}
        assert [info.capture_id for info in list_captures(session, PATHS)] == ["good"]
    finally:
        watch.close()


def test_capture_whose_node_is_overwritten_stays_who_it_was_and_the_watch_goes_on() -> None:
    server = MemoryZooKeeper()
    names = [f"{PATHS.captures}/{name}" for name in "abcd"]
    server.sessions = dict.fromkeys(names, 1)
    server.write({path: capture(path[-1]) for path in names[:2]})
    watch = CaptureWatch(cast(Session, server), PATHS, lambda _: None)
    try:
        before = watch.captures[CaptureId("a")]
        for node in (*map(raw, WRONG), capture("b")):
            server.write({names[0]: node})
            assert watch.refresh()[CaptureId("a")] is before
        server.write({names[2]: capture("c")})
        assert watch.refresh().keys() == {"a", "b", "c"}
        server.write({names[3]: b"\xff"})
        for _ in range(2):
            with pytest.raises(CorruptDataError):  # it lives, and may be landing: nobody counts without it
                watch.refresh()
        assert watch.captures.keys() == {"a", "b", "c"}
    finally:
        watch.close()


def test_election_passes_over_nodes_that_are_no_candidates() -> None:
    made, session = session_with()
    forged = ("0", "a-0", "candidate-", "candidate-x", "candidate-0000000000", "..%2f", "candidate-00000000001")
    for name in forged:
        made.client.put(f"{PATHS.election}/{name}", b"\xff\xfe")
    election = Election(session, PATHS, CaptureId("me"))
    election._stand()
    assert election.owner() == "me"
    assert election._is_first(cast(Any, None))


@pytest.mark.parametrize("value", ["", "x", "-1", "9" * 19 + "0", "9" * 5_000, "1e5", "\udcff", "\x00"])
def test_owner_revision_that_no_owner_wrote_is_refused(value: str) -> None:
    made, session = session_with()
    made.client.put(PATHS.owner_rev, raw(value))
    with pytest.raises(CorruptDataError):
        Election(session, PATHS, CaptureId("me")).revision()


def test_owner_revision_that_no_owner_wrote_is_written_anew_where_a_raw_log_is_adopted() -> None:
    made, session = session_with()
    made.client.put(PATHS.owner_rev, b"garbage")
    assert raise_revision(session, PATHS, 41)
    assert Election(session, PATHS, CaptureId("me")).revision() == 41
    assert not raise_revision(session, PATHS, 41)


@settings(max_examples=150)
@given(node=odd("upstream", b'{"epoch": 5}') | odd("schema", b'{"id": 5}'))
def test_upstreams_and_schemas_nodes_of_any_kind_are_written_anew(node: bytes) -> None:
    made, session = session_with()
    made.client.put(PATHS.upstream(UPSTREAM), node)
    made.client.put(PATHS.raw_schema(UPSTREAM), node)
    epoch = UpstreamNode(session, PATHS, UPSTREAM).epoch()
    assert type(epoch) is int and FIRST_EPOCH <= epoch < 1 << 63
    memory = SchemaMemoryNode(session, PATHS, UPSTREAM, "http://h")
    assert memory.read() is None
    memory.write(7)
    assert memory.read() == 7


def test_processors_begin_where_nobody_can_read_what_is_applied_and_write_it_anew() -> None:
    made, session = session_with(bad=(encode_changefeed_info(replace(BAD, target_ts=Ts(200))), STATUS))
    path = PATHS.changefeed_applied("default", "bad")
    made.client.put(path, b"\xff garbage")
    board = ProcessorBoard(session, PATHS, "default", "bad")
    for wanted in (board.look(), board.read()):
        assert wanted is not None
        assert (wanted.applied, wanted.finished) == (None, False)
    said = AppliedNode(life="l", checkpoint_ts=Ts(150))
    board.report(said)
    assert decode_applied(made.client.get(path)[0]) == said


def test_holder_of_a_sorters_lock_is_shown_by_its_beginning() -> None:
    made, _ = session_with()
    path = PATHS.changefeed_sorter("default", "good")
    made.client.put(path, b"\xff\n" * 500_000, owner=1)
    assert (
        len(str(FeedLock(LeasedClient(cast(Any, made.client), cast(Lease, None)), path).holder()))
        < HOLDER_CHARS_MAX + 100
    )
