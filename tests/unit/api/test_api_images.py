"""The HTTP API's routes of table images: how far they are, and asking for more."""

import json
from contextlib import closing
from dataclasses import asdict
from typing import cast

import pytest

from compose.cli import run_cli
from consumers.control.api.serving.server import ApiServer
from consumers.control.changefeeds.asked_images import TABLES_MAX, AskedImages, AskedTable, decode_asked, encode_asked
from consumers.control.changefeeds.image_requests import (
    ImageRefusedError,
    check_mode,
    pause_images,
    request_images,
    request_range,
    resume_images,
    withdraw_images,
)
from consumers.control.changefeeds.store import ChangefeedNotFoundError
from consumers.control.owner.images.image_progress import FeedProgress
from edges.zookeeper.session import Session
from schemas.config.parse.origin import NotSupportedYetError
from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.images import ImageMode, KeyRange
from schemas.tidb.keys import row_key, table_span
from tests.support.control.api import Api
from tests.support.control.memory_bus import URI, Memory
from tests.support.control.memory_zookeeper import MemoryZooKeeper

PATHS, NAME = ZkPaths("c"), ("default", "cf")
BACKFILL, RESYNC = ImageMode.BACKFILL, ImageMode.RESYNC


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def api(bus: Memory) -> Api:
    api = Api(bus)
    for name in ("cf", "still"):
        assert api.v2("POST", "/changefeeds", {"changefeed_id": name, "sink_uri": URI})[0] == 200
    return api


def test_api_images_are_what_the_owner_has_said_of_the_changefeed(api: Api, bus: Memory) -> None:
    assert api.ask("GET", "/api/tidebus/changefeeds/cf/images") == (200, {}), "an owner of a former version"
    shown = [FeedProgress(namespace=space, id="cf", state="running", tables_left=3) for space in ("other", "default")]
    bus.images = [asdict(feed) for feed in shown]
    said = api.ask("GET", "/api/tidebus/changefeeds/cf/images")[1]
    assert (said["namespace"], said["tables_left"], said["tables"]) == ("default", 3, [])
    assert api.ask("GET", "/api/tidebus/changefeeds/still/images") == (200, {})
    assert api.ask("GET", "/api/tidebus/changefeeds/gone/images")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"
    proofs = {"proofs": [{"changefeed": "cf", "of": 1_000}]}
    assert api.ask("GET", "/api/tidebus/changefeeds/cf/proofs") == (200, proofs)
    assert api.ask("GET", "/api/tidebus/changefeeds/gone/proofs")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"


@pytest.mark.parametrize("mode", [BACKFILL, RESYNC])
def test_api_asks_for_images_of_tables(api: Api, bus: Memory, mode: ImageMode) -> None:
    bus.table_ids = [TableId(4), TableId(5)]
    said = api.ask("POST", f"/api/tidebus/changefeeds/cf/tables/{mode}", {"tables": ["a.b"]})
    assert said == (200, {"table_ids": [4, 5]})
    assert bus.imaged == [("default", "cf", mode, ["a.b"])]
    assert api.ask("POST", f"/api/tidebus/changefeeds/cf/tables/{mode}", {"tables": []})[0] == 400


@pytest.mark.parametrize("sink_uri", ["s3://bucket/f?protocol=csv", "file:///f"])
def test_images_that_no_sink_writes_are_refused_by_name(sink_uri: str) -> None:
    for taken in (URI, "mysql://root@h:3306/", "iceberg://?warehouse=file:///w", "s3://bucket/f?protocol=csv"):
        check_mode(BACKFILL, taken)
    for taken in (URI, "mysql://root@h:3306/", "tidb://root@h:4000/", "iceberg://?warehouse=file:///w"):
        check_mode(RESYNC, taken)
    with pytest.raises(NotSupportedYetError, match="`resync` is not supported yet"):
        check_mode(RESYNC, sink_uri)


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    server = MemoryZooKeeper()
    server.write({PATHS.changefeed_info(*NAME): b"{}"})
    return server


def requested(server: MemoryZooKeeper) -> dict[str, list[int]]:
    return {mode.value: sorted(tables) for mode, tables in asked(server).requested.items()}


def asked(server: MemoryZooKeeper) -> AskedImages:
    return decode_asked(server.nodes[PATHS.changefeed_images(*NAME)].value)


def test_requests_add_up_and_the_later_mode_of_a_table_counts(zookeeper: MemoryZooKeeper) -> None:
    session = zookeeper
    request_images(session, PATHS, NAME, BACKFILL, [TableId(4), TableId(5)])  # type: ignore[arg-type]
    request_images(session, PATHS, NAME, RESYNC, [TableId(5), TableId(6)])  # type: ignore[arg-type]
    assert requested(zookeeper) == {"backfill": [4], "resync": [5, 6]}
    withdrawn = [
        AskedTable(RESYNC, TableId(5)),
        AskedTable(BACKFILL, TableId(4)),
        AskedTable(BACKFILL, TableId(6)),
        AskedTable(RESYNC, TableId(9)),
    ]
    withdraw_images(session, PATHS, NAME, withdrawn)  # type: ignore[arg-type]
    assert requested(zookeeper) == {"backfill": [], "resync": [6]}, "asked for in another mode since"


def test_a_request_and_a_withdrawal_at_one_time_both_count(zookeeper: MemoryZooKeeper) -> None:
    session, path = zookeeper, PATHS.changefeed_images(*NAME)
    request_images(session, PATHS, NAME, BACKFILL, [TableId(4)])  # type: ignore[arg-type]

    def meanwhile(what: str, where: str) -> None:
        if (what, where) == ("set", path):
            zookeeper.on_request = lambda *_: None
            request_images(session, PATHS, NAME, BACKFILL, [TableId(7)])  # type: ignore[arg-type]

    zookeeper.on_request = meanwhile
    withdraw_images(session, PATHS, NAME, [AskedTable(BACKFILL, TableId(4))])  # type: ignore[arg-type]
    assert requested(zookeeper)["backfill"] == [7]


def test_a_request_of_a_changefeed_that_is_gone_is_refused_and_its_withdrawal_is_nothing() -> None:
    server = MemoryZooKeeper()
    with pytest.raises(ChangefeedNotFoundError):
        request_images(server, PATHS, NAME, BACKFILL, [TableId(4)])  # type: ignore[arg-type]
    withdraw_images(server, PATHS, NAME, [AskedTable(BACKFILL, TableId(4))])  # type: ignore[arg-type]
    assert server.nodes == {}


def test_more_tables_than_a_node_holds_are_refused(zookeeper: MemoryZooKeeper) -> None:
    tables = [TableId(number) for number in range(1, TABLES_MAX + 2)]
    request_images(zookeeper, PATHS, NAME, BACKFILL, tables[:-1])  # type: ignore[arg-type]
    with pytest.raises(ImageRefusedError, match="too many"):
        request_images(zookeeper, PATHS, NAME, RESYNC, tables[-1:])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "node",
    [
        *(b"", b"[]", b'{"backfill": [1]}', b'{"backfill": ["1"], "resync": []}', b"\xff"),
        *(b'{"backfill": [], "resync": [], "paused": 1}', b'{"backfill": [], "resync": [], "is_paused": 1}'),
    ],
)
def test_a_node_that_is_none_of_requests_does_not_decode(node: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_asked(node)


def test_a_node_that_does_not_decode_is_made_anew_by_resuming_all_and_by_nothing_else(
    zookeeper: MemoryZooKeeper,
) -> None:
    session, path = cast(Session, zookeeper), PATHS.changefeed_images(*NAME)
    zookeeper.write({path: b"no json"})
    for refused in (
        lambda: request_images(session, PATHS, NAME, BACKFILL, [TableId(4)]),
        lambda: pause_images(session, PATHS, NAME, []),
        lambda: resume_images(session, PATHS, NAME, [TableId(4)]),
    ):
        with pytest.raises(CorruptDataError, match="without --table makes it anew") as caught:
            refused()
        assert caught.value.fields["path"] == path
    assert zookeeper.nodes[path].value == b"no json"
    assert resume_images(session, PATHS, NAME, []) == AskedImages() == asked(zookeeper)


def keys_of(table: int, start: int, end: int) -> tuple[KeyRange, ...]:
    return (KeyRange(row_key(TableId(table), start), row_key(TableId(table), end)),)


def ranged_node(table: int, keys: list[list[str]], mode: str = "backfill") -> bytes:
    return json.dumps(
        {"backfill": [], "resync": [], "ranged": [{"mode": mode, "table_id": table, "keys": keys}]}
    ).encode()


START, MIDDLE, END = table_span(TableId(8))[0].hex(), row_key(TableId(8), 5).hex(), table_span(TableId(8))[1].hex()


@pytest.mark.parametrize(
    "node",
    [
        ranged_node(8, []),
        ranged_node(8, [[MIDDLE, START]]),
        ranged_node(8, [[START, END]]),
        ranged_node(7, [[START, MIDDLE]]),
        ranged_node(8, [["00", MIDDLE]]),
        ranged_node(8, [[START, MIDDLE], [START, MIDDLE]]),
        ranged_node(8, [[START, MIDDLE, END]]),
        ranged_node(8, [[START, "xx"]]),
        ranged_node(8, [[START, MIDDLE]], "initial"),
    ],
)
def test_a_part_that_is_none_of_its_table_does_not_decode(node: bytes) -> None:
    assert decode_asked(ranged_node(8, [[START, MIDDLE]])).ranged
    with pytest.raises(CorruptDataError):
        decode_asked(node)


def test_a_part_of_a_table_is_asked_for_beside_no_other_and_withdrawn_by_itself(zookeeper: MemoryZooKeeper) -> None:
    session, four = cast(Session, zookeeper), TableId(4)
    part = keys_of(4, 0, 100)
    pause_images(session, PATHS, NAME, [four])
    for _ in range(2):
        request_range(session, PATHS, NAME, BACKFILL, four, part)
    assert asked(zookeeper) == AskedImages(ranged={(BACKFILL, four): part})
    with pytest.raises(ImageRefusedError, match="another part of it, is asked for already"):
        request_range(session, PATHS, NAME, BACKFILL, four, keys_of(4, 0, 101))
    with pytest.raises(ImageRefusedError, match="asked for already"):
        request_range(session, PATHS, NAME, RESYNC, four, part)
    withdraw_images(session, PATHS, NAME, [AskedTable(BACKFILL, four)])
    assert asked(zookeeper).ranged, "all of the table was another request"
    request_images(session, PATHS, NAME, BACKFILL, [four])
    assert asked(zookeeper).tables == {AskedTable(BACKFILL, four)}, "all of a table has what was asked of it"
    with pytest.raises(ImageRefusedError, match="asked for already"):
        request_range(session, PATHS, NAME, BACKFILL, four, part)
    withdraw_images(session, PATHS, NAME, [AskedTable(BACKFILL, four)])
    request_range(session, PATHS, NAME, BACKFILL, four, part)
    withdraw_images(session, PATHS, NAME, [AskedTable(BACKFILL, four, part)])
    assert asked(zookeeper) == AskedImages()


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_node_says_what_was_written(is_paused: bool) -> None:
    wanted = AskedImages(
        requested={BACKFILL: frozenset(), RESYNC: frozenset({TableId(3)})},
        ranged={(BACKFILL, TableId(8)): keys_of(8, 5, 9), (RESYNC, TableId(7)): keys_of(7, -9, 0)},
        paused=frozenset({TableId(3), TableId(8)}),
        is_paused=is_paused,
    )
    assert decode_asked(encode_asked(wanted)) == wanted
    older = decode_asked(b'{"backfill": [7], "resync": []}')
    assert sorted(older.requested[BACKFILL]) == [7]
    assert not older.paused and not older.is_paused


def test_tables_are_paused_until_they_are_resumed_or_asked_for_anew(zookeeper: MemoryZooKeeper) -> None:
    session = cast(Session, zookeeper)
    tables = [TableId(4), TableId(5), TableId(6)]
    said = pause_images(session, PATHS, NAME, tables)
    assert (said, sorted(said.paused), said.is_paused) == (asked(zookeeper), tables, False)
    assert resume_images(session, PATHS, NAME, tables[:1]).paused == {5, 6}
    request_images(session, PATHS, NAME, BACKFILL, tables[1:2])
    withdraw_images(session, PATHS, NAME, [AskedTable(BACKFILL, tables[1])])
    assert (sorted(asked(zookeeper).paused), requested(zookeeper)["backfill"]) == ([6], [])


def test_all_images_of_a_changefeed_are_paused_and_resumed_by_naming_none(zookeeper: MemoryZooKeeper) -> None:
    session = cast(Session, zookeeper)
    pause_images(session, PATHS, NAME, [TableId(4)])
    assert pause_images(session, PATHS, NAME, []).is_paused
    with pytest.raises(ImageRefusedError, match="all images of the changefeed are paused"):
        resume_images(session, PATHS, NAME, [TableId(4)])
    said = resume_images(session, PATHS, NAME, [])
    assert (said.is_paused, said.paused) == (False, frozenset())
    with pytest.raises(ImageRefusedError, match="one by one"):
        pause_images(session, PATHS, NAME, [TableId(number) for number in range(1, TABLES_MAX + 2)])
    with pytest.raises(ChangefeedNotFoundError):
        pause_images(session, PATHS, ("default", "gone"), [])


def test_command_line_asks_for_images_pauses_and_resumes_them(bus: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    bus.table_ids = [TableId(4)]
    Api(bus).v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI})
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        asked = [
            (["backfill", "--table", "a.b", "-t", "a.c"], {"table_ids": [4]}),
            (["resync", "--table", "a.b", "--where-key-range", ":7"], {"table_ids": [4]}),
            (["pause", "--table", "a.b"], {"is_paused": False, "table_ids": [4]}),
            (["pause"], {"is_paused": True, "table_ids": []}),
            (["resume", "--table", "a.b"], {"is_paused": False, "table_ids": [71]}),
            (["resume"], {"is_paused": False, "table_ids": [70]}),
        ]
        for words, said in asked:
            assert run_cli(["table", *words, "--changefeed", "cf", "--server", server.address]) == 0
            assert json.loads(capsys.readouterr().out) == said
        assert run_cli(["table", "backfill", "--changefeed", "cf", "--server", server.address]) == 2
    asked_of = [(BACKFILL, ["a.b", "a.c"]), (RESYNC, ["a.b"])]
    assert bus.imaged == [("default", "cf", mode, tables) for mode, tables in asked_of]
    assert bus.key_ranges == [None, ":7"]


def test_api_pauses_and_resumes_images(api: Api, bus: Memory) -> None:
    bus.table_ids = [TableId(5), TableId(4)]
    path = "/api/tidebus/changefeeds/cf/tables"
    assert api.ask("POST", f"{path}/pause", {"tables": ["a.b"]}) == (200, {"is_paused": False, "table_ids": [4, 5]})
    assert api.ask("POST", f"{path}/pause", {}) == (200, {"is_paused": True, "table_ids": []})
    assert api.ask("POST", f"{path}/resume", {"tables": ["a.b"]})[1]["table_ids"] == [71]
    assert api.ask("POST", f"{path}/resume", {})[1]["table_ids"] == [70]
    gone = api.ask("POST", "/api/tidebus/changefeeds/gone/tables/pause", {})
    assert gone[1]["error_code"] == "CDC:ErrChangeFeedNotExists"
