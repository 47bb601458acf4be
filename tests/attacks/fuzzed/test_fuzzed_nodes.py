"""Nodes of ZooKeeper that anybody may have written: who reads them goes on with the others, and says so by a code."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    decode_capture,
    encode_capture,
)
from edges.secrets import Keyring, decode_info
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import (
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
)
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
from sorters.run.nodes.status import Edition, StatusBoard
from sorters.spark.backlog.query_folder import Folder, epoch_offsets
from tests.support.control.odd_nodes import BAD, GOOD, INFO, PATHS, STATUS, UPSTREAM, WRONG, odd, raw, session_with
from tests.support.sources.hostile import only_coded

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
IDS = ["..", "../../etc", "/etc/passwd", "-rf", "a b", "a\n", "", "x" * 500, "é", "${env:HOME}"]


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
    only_coded(lambda _: board.status(Edition(1, 0)), b"")


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
