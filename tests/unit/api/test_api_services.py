"""The HTTP API's routes of sorter services: who runs what, and moving a changefeed."""

from dataclasses import replace

import pytest

from consumers.control.changefeeds.pins import Pin, decode_pins, encode_pins, service_at, service_of
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.core.changefeeds.service_plan import dedicated_id
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedStatus
from schemas.nodes.feed_figures import FeedFigures
from schemas.nodes.prologue import Prologue, PrologueFailure
from schemas.nodes.sorter_service import Assigned, Assignment, FeedEntry, ServiceInfo
from tests.support.control.api import Api
from tests.support.control.memory_bus import ME, OTHER, URI, Memory

OWN = dedicated_id("s1", ("default", "poison"))


def service(name: str, dedicated: str = "") -> ServiceInfo:
    return ServiceInfo(
        service=name,
        host="h",
        pid=7,
        version="1",
        started_at_s=1,
        master="local[1]",
        dedicated=dedicated,
        spark_ui="http://127.0.0.1:4040",
    )


def assigned(name: str, revision: int = 3) -> Assigned:
    return Assigned(namespace="default", changefeed_id=name, created_zxid=1, epoch=2, revision=revision)


@pytest.fixture
def bus() -> Memory:
    bus = Memory()
    bus.live = [replace(ME, service_id="s1"), OTHER]
    entry = FeedEntry(
        namespace="default",
        changefeed_id="cf",
        created_zxid=1,
        epoch=2,
        revision=3,
        checkpoint_ts=Ts(9),
        resolved_ts=Ts(9),
        rows_total=10,
        spark_rows_total=4,
        cpu_s=0.5,
        figures=FeedFigures(reason="cluster"),
    )
    bus.stored = StoredServices(
        services={"s1": service("s1"), OWN: service(OWN, "default/poison"), "hand": service("hand")},
        assignments={
            "s1": (Assignment(feeds=(assigned("cf"),), dedicated=(("default", "poison"),)), 0),
            OWN: (Assignment(feeds=(assigned("poison"),)), 0),
        },
        progress={"s1": [entry]},
        pins={("default", "cf"): Pin(1, "s1")},
    )
    return bus


@pytest.fixture
def api(bus: Memory) -> Api:
    api = Api(bus)
    for name in ("cf", "poison", "new"):
        assert api.v2("POST", "/changefeeds", {"changefeed_id": name, "sink_uri": URI})[0] == 200
    return api


def test_api_services_are_listed_with_capture_and_changefeeds(api: Api) -> None:
    status, shown = api.ask("GET", "/api/tidebus/services")
    assert (status, shown["total"]) == (200, 3)
    by_id = {item["id"]: item for item in shown["items"]}
    assert {name: item["capture"] for name, item in by_id.items()} == {"s1": "me", OWN: "me", "hand": ""}
    (feed,) = by_id["s1"]["changefeeds"]
    assert (feed["id"], feed["revision"], feed["pinned"], feed["reason"]) == ("cf", 3, True, "cluster")
    assert (feed["rows_total"], feed["spark_rows_total"], feed["cpu_s"]) == (10, 4, 0.5)
    (alone,) = by_id[OWN]["changefeeds"]
    assert (alone["id"], "rows_total" in alone) == ("poison", False)
    assert (by_id["s1"]["spark_ui"], by_id[OWN]["dedicated"]) == ("http://127.0.0.1:4040", "default/poison")


def test_api_changefeeds_sorter_is_its_process_service_and_capture(api: Api) -> None:
    shown = api.ask("GET", "/api/tidebus/changefeeds/cf/sorter")[1]
    where = {"service": "s1", "capture": "me", "is_alone": False, "pinned": True}
    assert shown == {"host": "h", "pid": 11, "reason": "cluster", **where}
    shown = api.ask("GET", "/api/tidebus/changefeeds/poison/sorter")[1]
    assert (shown["service"], shown["capture"], shown["is_alone"]) == (OWN, "me", True)
    assert api.ask("GET", "/api/tidebus/changefeeds/new/sorter")[1] == {"host": "h", "pid": 11}
    assert api.ask("GET", "/api/tidebus/changefeeds/none-such/sorter")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"
    shown = api.ask("GET", "/api/tidebus/overview")[1]
    overview = shown["changefeeds"]
    ui = "http://127.0.0.1:4040"
    assert {service["id"]: (service["capture"], service["spark_ui"]) for service in shown["services"]} == {
        "s1": ("me", ui),
        OWN: ("me", ui),
        "hand": ("", ui),
    }
    assert {feed["id"]: feed["sorter"].get("capture") for feed in overview} == {"cf": "me", "poison": "me", "new": None}


def test_api_changefeeds_sorter_shows_the_prologue_while_there_is_one_to_run(bus: Memory, api: Api) -> None:
    prologue = Prologue(life="c.00f0e1d2c3b4a596", start_ts=Ts(10), end_ts=Ts(50), attempt=2)
    name, where = ("default", "new"), "/api/tidebus/changefeeds/new/sorter"
    bus.kept[name] = replace(bus.kept[name], prologue=prologue)
    shown = {"start_ts": 10, "end_ts": 50, "attempt": 2, "is_complete": False, "error": None}
    assert api.ask("GET", where)[1]["prologue"] == shown
    failed = replace(prologue, failure=PrologueFailure(epoch=1, code="producer.history_gone", message="gone"))
    bus.kept[name] = replace(bus.kept[name], prologue=failed)
    error = {"code": "producer.history_gone", "message": "gone"}
    assert api.ask("GET", where)[1]["prologue"] == {**shown, "error": error}
    applied = ChangefeedStatus(state="normal", checkpoint_ts=Ts(20), resolved_ts=Ts(20))
    bus.kept[name] = replace(bus.kept[name], status=applied)
    assert "prologue" in api.ask("GET", where)[1]
    bus.kept[name] = replace(bus.kept[name], sorter_status=replace(applied, checkpoint_ts=Ts(50)))
    assert "prologue" not in api.ask("GET", where)[1], "the sorter is past it, whatever is applied"


@pytest.mark.parametrize(
    ("wanted", "pinned"), [("me", f"@{ME.address}"), (ME.address, f"@{ME.address}"), ("hand", "hand"), ("", "")]
)
def test_api_move_pins_a_changefeed_to_a_captures_service(api: Api, bus: Memory, wanted: str, pinned: str) -> None:
    status, _ = api.ask("POST", "/api/tidebus/changefeeds/cf/move", {"capture_id": wanted})
    assert (status, bus.pinned) == (200, {("default", "cf"): pinned})


@pytest.mark.parametrize(
    ("name", "wanted", "code"),
    [
        ("cf", "nobody", "CDC:ErrCaptureNotExist"),
        ("cf", "other", "CDC:ErrSchedulerRequestFailed"),
        ("cf", OWN, "CDC:ErrSchedulerRequestFailed"),
        ("none-such", "me", "CDC:ErrChangeFeedNotExists"),
    ],
)
def test_api_move_to_where_it_cannot_go_is_refused(api: Api, bus: Memory, name: str, wanted: str, code: str) -> None:
    status, shown = api.ask("POST", f"/api/tidebus/changefeeds/{name}/move", {"capture_id": wanted})
    assert (status >= 400, shown["error_code"], bus.pinned) == (True, code, {})


def test_pin_by_a_captures_address_names_the_service_there_whatever_its_id() -> None:
    pin = Pin(1, service_at("a:1"))
    assert service_of(pin, {"a:1": "s1", "b:1": "s3"}) == "s1"
    assert service_of(pin, {"a:1": "s2"}) == "s2"
    assert service_of(pin, {"b:1": "s3"}) not in {"s3", ""}
    assert service_of(Pin(1, "hand"), {"a:1": "s1"}) == "hand"


def test_pins_node_is_read_as_it_was_written_and_what_is_none_is_refused() -> None:
    pins = {("default", "cf"): Pin(17, "s1"), ("other", "x"): Pin(18, "hand")}
    assert decode_pins(encode_pins(pins)) == pins
    assert decode_pins(b"") == {}
    for node in (b"[]", b'{"a": [1, "s"]}', b'{"a/b": 1}', b"{", b"\xff", b" " * (1 << 20)):
        with pytest.raises(CorruptDataError):
            decode_pins(node)
