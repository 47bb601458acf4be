"""What the official `cdc cli` and a real TiCDC said to each other, asked of our API once more.

``tests/data/ticdc-api`` has every exchange. The CLI decodes answers into Go structs: a field that is missing is zero to
it, one of another type an error. So each field of a recorded answer must be in ours, of its type.
"""

import json
from typing import Any

import pytest

from tests.support.control.api import Api
from tests.support.recorded.recorded_answers import RecordedBus, missing
from tests.support.recorded.recorded_ticdc import exchanges

ANOTHER_ANSWER = {
    ("POST", "/api/v2/changefeeds", "bad2"): "ErrSinkURIInvalid for both, as the new architecture says it",
    ("POST", "/api/v2/verify_table", "past"): "the raw log bounds start_ts, not TiKV's GC; creation refuses it",
    ("POST", "/api/v2/verify_table", "curl"): "as before: start_ts 0 is none",
    ("DELETE", "/api/v2/changefeeds/full", "curl"): "classic had no owner just after it resigned",
    ("PUT", "/api/v1/captures/drain", "curl"): "the body names no capture",
    ("GET", "/api/v2/processors/full/", "curl"): "TiCDC redirects; we answer",
}
"""Method, path and part of the verb of what is answered otherwise on purpose, and why."""
OF_ONE_ARCHITECTURE = ("/tables", "/get_dispatcher_count", "/meta_info")
"""Ends of paths that one of both architectures does not have; ours has them all."""


def expectation(name: str, exchange: dict[str, Any]) -> str:
    """Return why an answer is another on purpose, '' if it is to be the recorded one."""
    path = exchange["path"].partition("?")[0]
    if exchange["status"] == 404 and path.endswith(OF_ONE_ARCHITECTURE):
        return "of one architecture"
    for (method, wanted, part), reason in ANOTHER_ANSWER.items():
        if (method == "DELETE" or part == "bad2") and name != "classic":
            continue
        if (method, wanted) == (exchange["method"], path) and part in exchange["verb"]:
            return reason
    return ""


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
    bus = RecordedBus(json.loads(recorded[0]["response"]))
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


@pytest.mark.parametrize(
    ("recorded", "ours", "faults"),
    [
        ({"a": 1, "b": [{"c": "x"}]}, {"a": "1", "b": [{}]}, [".a is str, was int", ".b[].c"]),
        ({"a": None}, {"a": 7}, []),
        ({"a": 1.0}, {"a": 7}, []),
        ({"tables": [1, 2]}, {"tables": []}, [".tables is empty"]),
        ({"tables": [1, 2]}, {"tables": [7]}, []),
        ([{"id": "a"}, {"id": "b"}], [{"id": "b"}], ["[a] is NoneType, was dict"]),
        ([{"id": "a"}, {"id": "b"}], [{"id": "b"}, {"id": "a"}], []),
        ([{"n": 1}, {"n": 2, "m": 3}], [{"n": 1}, {"n": 2}], ["[].m"]),
        ({"state": "stopped"}, {"state": "normal"}, [".state is 'normal', was 'stopped'"]),
        ({"config": {"mounter": {"n": 8}}}, {"config": {"mounter": {"n": 16}}}, [".config.mounter.n is 16, was 8"]),
        ({"checkpoint_ts": 8}, {"checkpoint_ts": 9}, []),
    ],
)
def test_comparison_of_answers_sees_each_kind_of_difference(recorded: Any, ours: Any, faults: list[str]) -> None:
    assert missing(recorded, ours) == faults
