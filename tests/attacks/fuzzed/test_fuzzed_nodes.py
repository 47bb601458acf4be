"""Nodes of ZooKeeper that anybody may have written: who reads them goes on with the others, and says so by a code."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.control.changefeeds.asked_images import AskedImages, decode_asked, encode_asked
from consumers.control.changefeeds.feed_nodes import FeedNodes
from consumers.control.changefeeds.pins import Pin, decode_pins, encode_pins, pin_changefeed
from consumers.control.changefeeds.processor_nodes import (
    AppliedNode,
    ProcessorInfo,
    Share,
    decode_applied,
    decode_processor,
    decode_shares,
    encode_applied,
    encode_processor,
    encode_shares,
)
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedNotFoundError, ChangefeedStore
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.cluster.capture_registry import (
    CaptureInfo,
    CaptureWatch,
    decode_capture,
    encode_capture,
    list_captures,
)
from consumers.control.cluster.election import Election, raise_revision
from consumers.control.cluster.schema_memory import SchemaMemoryNode
from consumers.control.cluster.upstream_node import FIRST_EPOCH, UpstreamNode
from consumers.processors.board import ProcessorBoard
from edges.secrets import Keyring, decode_info
from edges.zookeeper.connection import LeasedClient
from edges.zookeeper.lease import Lease
from edges.zookeeper.session import Session
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.failures import StoppingDdl
from schemas.nodes.prologue import Prologue, PrologueFailure, decode_prologue, encode_prologue
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assigned,
    Assignment,
    FeedEntry,
    ServiceInfo,
    decode_assignment,
    decode_entries,
    decode_service,
    encode_assignment,
    encode_entries,
    encode_service,
)
from schemas.rawlog.images import ImageMode, KeyRange
from sorters.core.cut.beginning import BegunEpoch, decode_begun, encode_begun
from sorters.core.cut.topic_counts import TopicCount, decode_counts, encode_counts
from sorters.core.lake.resync import LakeResync
from sorters.run.nodes.feed_lock import HOLDER_CHARS_MAX, FeedLock
from sorters.run.nodes.status import StatusBoard
from sorters.spark.backlog.query_folder import Folder, epoch_offsets
from tests.support.control.stored_zookeeper import MemorySession
from tests.support.sources.hostile import NOT_JSON, VALUES, bent, only_coded

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
CAPTURE = CaptureInfo(
    capture_id=CaptureId("bad"), address="h:1", version="0.1.0", started_at_s=1, peer_address="h:2", is_stopping=True
)
BEGUN = encode_begun(BegunEpoch("tidebus.u.frontier", Ts(100), 3, 5))
PROCESSOR = ProcessorInfo(
    processor=CaptureId("p"), capture=CaptureId("c"), version="1", peer_address="h:1", is_stopping=False
)
SHARE = Share(processor=CaptureId("p"), capture=CaptureId("c"), partitions=(1, 2))
ENTRY = FeedEntry(
    namespace="default", changefeed_id="f", created_zxid=5, epoch=0, revision=1, checkpoint_ts=Ts(5), resolved_ts=Ts(6)
)
ASSIGNED = Assigned(namespace="default", changefeed_id="f", created_zxid=5, epoch=0, revision=1)
SERVICE = ServiceInfo(service="s", host="h", pid=1, version="1", started_at_s=1, master="local[1]", dedicated="d/f")
START = KeyRange.of_table(TableId(8)).start
ASKED = AskedImages(
    requested={ImageMode.BACKFILL: frozenset([TableId(7)])},
    ranged={(ImageMode.RESYNC, TableId(8)): (KeyRange(START + b"a", START + b"b"),)},
    paused=frozenset([TableId(9)]),
)
PROLOGUE = Prologue(
    life=f"c.{'0' * 16}",
    start_ts=Ts(5),
    end_ts=Ts(6),
    attempt=1,
    failure=PrologueFailure(epoch=0, code="c", message="m"),
)
RESYNC = LakeResync(TableId(7), 4, frozenset([TableId(8)]), (KeyRange(b"a", b"b"),), frozenset([TableId(9)]), Ts(5))
DECODERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "info": (INFO, decode_info),
    "status": (STATUS, decode_changefeed_status),
    "capture": (encode_capture(CAPTURE), lambda node: decode_capture(node, "bad")),
    "begun": (BEGUN, decode_begun),
    "processor": (encode_processor(PROCESSOR), decode_processor),
    "shares": (encode_shares([SHARE]), decode_shares),
    "pins": (encode_pins({("default", "f"): Pin(5, "@h:1")}), decode_pins),
    "asked": (encode_asked(ASKED), decode_asked),
    "prologue": (encode_prologue(PROLOGUE), decode_prologue),
    "service": (encode_service(SERVICE), decode_service),
    "assignment": (
        encode_assignment(Assignment(owner_rev=1, feeds=(ASSIGNED,), dedicated=(("d", "f"),))),
        decode_assignment,
    ),
    "entries": (encode_entries([ENTRY]), decode_entries),
    "counts": (encode_counts({"t": TopicCount(3, 2, Ts(5))}), decode_counts),
    "resync": (RESYNC.encode().encode(), lambda node: LakeResync.decode(node.decode(errors="replace"))),
    "applied": (encode_applied(AppliedNode(life="l", checkpoint_ts=Ts(5))), decode_applied),
}
WRONG = ["null", "[]", "{}", '""', "0", "\udcff", *NOT_JSON]
IDS = ["..", "../../etc", "/etc/passwd", "-rf", "a b", "a\n", "", "x" * 500, "é", "${env:HOME}"]


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


@pytest.mark.parametrize("name", DECODERS)
def test_right_node_decodes(name: str) -> None:
    valid, decode = DECODERS[name]
    assert decode(valid)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=150)
@given(data=st.data())
def test_node_of_any_kind_is_refused_by_a_code(name: str, data: st.DataObject) -> None:
    valid, decode = DECODERS[name]
    only_coded(decode, data.draw(odd(name, valid)))


@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"begun", "shares", "pins", "counts", "entries"}))
@pytest.mark.parametrize("node", WRONG)
def test_node_that_is_none_is_refused(name: str, node: str) -> None:
    with pytest.raises(CorruptDataError):
        DECODERS[name][1](raw(node))


@pytest.mark.parametrize("node", [*WRONG, BEGUN.decode().replace("5", "-1"), BEGUN.decode().replace("5", "9" * 30)])
def test_begun_epoch_that_is_none_is_as_if_nothing_was_begun(node: str) -> None:
    assert decode_begun(raw(node)) is None


@pytest.mark.parametrize(
    ("decode", "node"),
    [
        (decode_assignment, '{"owner_rev": 1, "feeds": [["default", "f", %s, 0, 0]], "dedicated": []}'),
        (decode_pins, '{"default/f": [%s, "@h:1"]}'),
        (decode_pins, '{"default/f": [5, %s]}'),
        (decode_entries, encode_entries([ENTRY]).decode().replace('"cpu_s":0.0', '"cpu_s":%s')),
    ],
)
@pytest.mark.parametrize("value", ["1e999", "-1", "NaN", "null", '"\\ud800"', "[" * 100_000])
def test_node_with_a_value_that_is_none_is_refused(decode: Callable[[bytes], Any], node: str, value: str) -> None:
    with pytest.raises(CorruptDataError):
        decode((node % value).encode())


@pytest.mark.parametrize("value", ["1e999", "-1", "NaN", "null", "[" * 100_000])
def test_counts_of_partitions_that_are_none_are_as_if_none_were_noted(value: str) -> None:
    assert decode_counts(f'{{"t": [{value}, 0, 0]}}'.encode()) == {}


def test_note_of_a_lakes_resync_with_ranges_that_end_before_they_begin_is_refused() -> None:
    raw = {**json.loads(RESYNC.encode()), "whole": [[2**62, 0], [0, 2**62]]}
    with pytest.raises(CorruptDataError):
        LakeResync.decode(json.dumps(raw))


def test_pins_that_cannot_be_read_are_written_anew_by_whoever_asks_for_one(caplog: pytest.LogCaptureFixture) -> None:
    made, session = session_with()
    made.client.put(f"{PATHS.root}/pins", b'{"default/good": [1e999, "x"]}')
    pin_changefeed(session, PATHS, ("default", "good"), "@h:1")
    node, _ = made.client.get(f"{PATHS.root}/pins")
    assert {name: pin.service for name, pin in decode_pins(node).items()} == {("default", "good"): "@h:1"}
    assert [vars(record)["code"] for record in caplog.records if record.levelno == logging.ERROR] == [
        "bus.corrupt_data"
    ]


@pytest.mark.parametrize("field", ["changefeed_id", "namespace"])
@pytest.mark.parametrize("name", IDS)
def test_id_that_would_leave_its_folder_or_be_an_option_is_refused(field: str, name: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode_changefeed_info(json.dumps({**json.loads(INFO), field: name}).encode())
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("state", ["", "running", "__class__", 1, None, ["normal"], {"normal": 1}])
def test_state_that_there_is_not_is_refused(state: Any) -> None:
    for valid, decode, field in (
        (INFO, decode_changefeed_info, "desired_state"),
        (STATUS, decode_changefeed_status, "state"),
    ):
        with pytest.raises(CorruptDataError):
            decode(json.dumps({**json.loads(valid), field: state}).encode())


def session_with(**feeds: tuple[bytes, bytes | None]) -> tuple[MemorySession, Session]:
    """Return a ZooKeeper with the good changefeed and others by name: info, status."""
    made = MemorySession()
    made.client.put(PATHS.changefeed_info("default", "good"), encode_changefeed_info(GOOD))
    for name, (info, status) in feeds.items():
        made.client.put(PATHS.changefeed_info("default", name), info)
        if status is not None:
            made.client.put(PATHS.changefeed_status("default", name), status)
    return made, cast(Session, made)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(info=st.just(INFO) | odd("info", INFO), status=st.none() | odd("status", STATUS))
def test_owner_and_api_go_on_with_the_other_changefeeds_whatever_one_holds(info: bytes, status: bytes | None) -> None:
    _, session = session_with(bad=(info, status))
    states = FeedStates(session, PATHS, UPSTREAM)
    for _ in range(2):
        states.look()
        assert states.feeds[("default", "good")].runs
    assert "good" in [read.changefeed_id for read in ChangefeedStore(session, PATHS).list()]
    board = StatusBoard(session.client, PATHS, "default", "bad")
    only_coded(lambda _: board.info(), b"")
    only_coded(lambda _: board.status(), b"")


@pytest.mark.parametrize("part", ["info", "status", "applied", "prologue"])
def test_whoever_shows_all_changefeeds_leaves_out_the_one_that_nobody_can_read(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, session = session_with(bad=(encode_changefeed_info(replace(BAD, sink_uri="mysql://h/")), STATUS))
    feeds = FeedNodes(session, PATHS, ("info", "status", "applied", "prologue"))
    path = feeds.path(("default", "bad"), part)
    made.client.put(path, b"\xff garbage")
    for _ in range(3):
        assert [feed.info.changefeed_id for feed in feeds.readable()] == ["good"]
    said = [vars(record) for record in caplog.records if record.levelno == logging.ERROR]
    assert [(line["changefeed"], line["code"]) for line in said] == [("bad", "bus.corrupt_data")]
    assert path in said[0]["error"]


def test_progress_of_a_service_that_nobody_can_read_is_named_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    made, session = session_with()
    nodes = ServicePaths(PATHS)
    paths = [f"{nodes.progress}/service/0", f"{nodes.figures}/service/0"]
    for path in paths:
        made.client.put(path, b"\xff garbage")
    FeedNodes(session, PATHS).readable()
    said = [vars(record)["path"] for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted(said) == sorted(paths)


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (encode_changefeed_info(GOOD), "bus.corrupt_data"),
        (b"[" * 100_000, "bus.corrupt_data"),
        (Keyring(Keyring().keys).encode(BAD)[:-1] + b', "sealed": "v1:' + b"A" * 40 + b'"}', "secrets.no_key"),
    ],
    ids=["another's", "deep", "sealed by another key"],
)
def test_changefeed_that_cannot_be_read_is_said_once_with_its_code(
    node: bytes, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, session = session_with(bad=(node, None))
    states = FeedStates(session, PATHS, UPSTREAM)
    for _ in range(3):
        states.look()
    said = [vars(record) for record in caplog.records if record.levelno == logging.ERROR]
    assert [(line["changefeed"], line["code"]) for line in said] == [("bad", code)]
    assert len(said[0]["error"]) < 1_000
    assert states.wanted().keys() == {("default", "good")}
    with pytest.raises(BusError) as caught:
        ChangefeedStore(session, PATHS).get("bad")
    assert caught.value.code == code


SEALED = Keyring(Keyring().keys).encode(BAD)[:-1] + b', "sealed": "v1:' + b"A" * 40 + b'"}'


@pytest.mark.parametrize(
    ("info", "status"),
    [(b"{", None), (b"[" * 100_000, b"x"), (INFO, b"{}"), (SEALED, None)],
    ids=lambda node: str(node)[:9],
)
def test_changefeed_that_cannot_be_read_is_removed_all_the_same(info: bytes, status: bytes | None) -> None:
    made, session = session_with(bad=(info, status))
    ChangefeedControl(session, PATHS).remove("bad")
    assert [path for path in made.client.nodes if "/bad" in path] == []
    assert made.client.exists(PATHS.changefeed_info("default", "good"))
    with pytest.raises(ChangefeedNotFoundError):
        ChangefeedControl(session, PATHS).remove("bad")


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
    made, session = session_with()
    for name in ("a", "b"):
        made.client.put(f"{PATHS.captures}/{name}", capture(name), owner=1)
    watch = CaptureWatch(session, PATHS, lambda _: None)
    try:
        before = watch.captures[CaptureId("a")]
        for node in (*map(raw, WRONG), capture("b")):
            made.client.put(f"{PATHS.captures}/a", node)
            watch._stale.add("a")
            assert watch.refresh()[CaptureId("a")] is before
        made.client.put(f"{PATHS.captures}/c", capture("c"), owner=1)
        assert watch.refresh().keys() == {"a", "b", "c"}
        made.client.put(f"{PATHS.captures}/d", b"\xff", owner=1)
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


class OneFile(Folder):
    """Every file of the folder holds the same."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, name: str) -> bytes | None:
        return self._content

    def location(self, name: str) -> str:
        raise AssertionError

    def remove(self, name: str) -> None:
        raise AssertionError


@settings(max_examples=100)
@given(odd("offsets", b'{"t": {"0": 5}}') | st.sampled_from(['{"t": []}', '{"t": {"0": -1}}']).map(raw))
def test_offset_log_of_any_kind_is_refused_by_a_code(content: bytes) -> None:
    only_coded(lambda _: epoch_offsets(OneFile(b"v1\n" + content), "t", 1), b"")
