"""A changefeed that is made over the API, and what becomes of it in a bus that is held in memory."""

from dataclasses import replace
from typing import Any

from schemas.nodes.changefeed import ChangefeedStatus
from tests.support.control.api import Api
from tests.support.control.memory_bus import CHECKPOINT, URI, Memory


def make(api: Api, changefeed_id: str = "cf", **more: Any) -> Any:
    status, made = api.v2("POST", "/changefeeds", {"changefeed_id": changefeed_id, "sink_uri": URI, **more})
    assert status == 200, made
    return made


def put(bus: Memory, **changes: Any) -> None:
    status = ChangefeedStatus(state="normal", checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT)
    bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=replace(status, **changes))
