"""What the official `cdc cli` and a real TiCDC said to each other, asked of our API once more.

``tests/data/ticdc-api`` has every exchange. The CLI decodes answers into Go structs: a field that is missing is zero to
it, one of another type an error. So each field of a recorded answer must be in ours, of its type.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from consumers.control.api.bodies import FeedRequest
from consumers.control.changefeeds.store import check_id
from schemas.errors import ConfigError
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.api import Api
from tests.support.memory_bus import ME, Memory, Shares
from tests.support.recorded_ticdc import exchanges

ANOTHER_ANSWER = {
    ("POST", "/api/v2/changefeeds", "bad2"): "the changefeed's sorter connects to the brokers, and says so",
    ("POST", "/api/v2/verify_table", "past"): "the raw log bounds start_ts, not TiKV's GC; creation refuses it",
    ("POST", "/api/v2/verify_table", "curl"): "as before: start_ts 0 is none",
    ("DELETE", "/api/v2/changefeeds/full", "curl"): "classic had no owner just after it resigned",
    ("PUT", "/api/v1/captures/drain", "curl"): "the body names no capture",
    ("GET", "/api/v2/processors/full/", "curl"): "TiCDC redirects; we answer",
}
"""Method, path and part of the verb of what is answered otherwise on purpose, and why."""
OF_ONE_ARCHITECTURE = ("/tables", "/get_dispatcher_count", "/meta_info")
"""Ends of paths that one of both architectures does not have; ours has them all."""
OF_MAINTAINERS = frozenset({"gid", "maintainer_addr"})
"""Fields of parts that only TiCDC's new architecture has. The CLI reads neither."""


class RecordedBus(Memory):
    """A bus whose one capture has the id and the tables of the recorded server."""

    def __init__(self, capture: str) -> None:
        super().__init__()
        self.capture = replace(ME, capture_id=CaptureId(capture))
        self.live, self.leader = [self.capture], self.capture.capture_id
        self.shares, self.table_ids = Shares({self.capture.capture_id: [TableId(114)]}), [TableId(114)]

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        check_id("changefeed-id", request.changefeed_id or "a")
        if request.start_ts is not None and request.start_ts > self.now:
            raise ConfigError("start-ts is ahead of PD's clock", key="start-ts")
        return super().create(request, namespace)


def expectation(name: str, exchange: dict[str, Any]) -> str:
    """Return why an answer is another on purpose, '' if it is to be the recorded one."""
    path = exchange["path"].partition("?")[0]
    if exchange["status"] == 404 and path.endswith(OF_ONE_ARCHITECTURE):
        return "of one architecture"
    for (method, wanted, part), reason in ANOTHER_ANSWER.items():
        if method == "DELETE" and name != "classic":
            continue
        if (method, wanted) == (exchange["method"], path) and part in exchange["verb"]:
            return reason
    return ""


def missing(recorded: Any, ours: Any, path: str = "") -> list[str]:
    """Return the paths of what a recorded answer holds and ours does not, or not of its type."""
    if recorded is None or path.rpartition(".")[2] in OF_MAINTAINERS:
        return []
    if isinstance(recorded, dict) and isinstance(ours, dict):
        return [
            fault
            for key, value in recorded.items()
            if value is not None
            for fault in ([f"{path}.{key}"] if key not in ours else missing(value, ours[key], f"{path}.{key}"))
            if fault.rpartition(".")[2] not in OF_MAINTAINERS
        ]
    if isinstance(recorded, list) and isinstance(ours, list):
        return missing(recorded[0], ours[0], f"{path}[]") if recorded and ours else []
    same = type(recorded) is type(ours) or {type(recorded), type(ours)} == {int, float}
    return [] if same else [f"{path} is {type(ours).__name__}, was {type(recorded).__name__}"]


def code_of(text: str) -> str:
    body = read(text)
    return body.get("error_code", "") if isinstance(body, dict) else ""


def read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize(("name", "count"), [("classic", 123), ("new", 121)])
def test_api_answers_each_recorded_request_of_cdc_cli_as_ticdc_did(name: str, count: int) -> None:
    recorded = list(exchanges(name))
    assert len(recorded) == count
    bus = RecordedBus(json.loads(recorded[0]["response"])["id"])
    bus.now = Ts(470642030000000000)
    api, faults = Api(bus), []
    for number, exchange in enumerate(recorded):
        answer = api.http.request(
            exchange["method"],
            exchange["path"],
            content=exchange["request"] or None,
            headers=exchange["request_headers"],
        )
        where = f"{number} {exchange['method']} {exchange['path']} ({exchange['verb'][:60]})"
        if expectation(name, exchange):
            if (answer.status_code, code_of(answer.text)) == (exchange["status"], code_of(exchange["response"])):
                faults.append(f"{where}: it is no other answer any more")
            continue
        body, wanted = read(answer.text), read(exchange["response"])
        if answer.status_code != exchange["status"]:
            faults.append(f"{where}: {answer.status_code}, was {exchange['status']}: {body}")
        elif exchange["status"] >= 400 and wanted is not None:
            if body["error_code"] != wanted["error_code"]:
                faults.append(f"{where}: {body}, was {wanted}")
        elif wanted is not None:
            faults += [f"{where}: {fault}" for fault in missing(wanted, body)]
    assert not faults, "\n".join(faults)


def test_comparison_of_answers_sees_missing_fields_and_other_types() -> None:
    assert missing({"a": 1, "b": [{"c": "x"}]}, {"a": "1", "b": [{}]}) == [".a is str, was int", ".b[].c"]
    assert missing({"a": None}, {"a": 7}) == missing({"a": 1.0}, {"a": 7}) == []
