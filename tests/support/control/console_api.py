"""The console's paths, and another state of the changefeed that it shows."""

from dataclasses import replace

from schemas.nodes.changefeed import ChangefeedError, ChangefeedState, ChangefeedStatus
from tests.support.control.memory_bus import CHECKPOINT, Memory

BASE = "/api/tidebus/console"
"""Of its routes."""


def put_in(bus: Memory, sink_uri: str, state: ChangefeedState = "normal", code: str = "") -> None:
    """Give the changefeed another sink and state."""
    error = ChangefeedError(code=code, message="", time="") if code else None
    status = ChangefeedStatus(state=state, checkpoint_ts=CHECKPOINT, resolved_ts=CHECKPOINT, error=error)
    kept = bus.kept["default", "cf"]
    bus.kept["default", "cf"] = replace(kept, info=replace(kept.info, sink_uri=sink_uri, config={}), status=status)
