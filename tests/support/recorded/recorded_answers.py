"""Our answers to the recorded requests of `cdc cli`, held against those that a real TiCDC gave."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from compose.sink_check import SinkRefusedError
from consumers.control.api.bodies import FeedRequest
from consumers.control.changefeeds.store import StartTsError, check_id
from schemas.errors import ConfigError
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.control.memory_bus import ME, Memory, Shares

NOW_TS: Final = Ts(470642030000000000)
"""Just after both recordings."""
GC_TS: Final = Ts(470000000000000000)
"""Before them: what is older is gone."""
NO_BROKER: Final = "kafka://127.0.0.1:1/"
"""Where the recording has no broker; `tests/integration/api/test_sink_check.py` connects in earnest."""
TABLES: Final = (114, 116, 118, 120, 122, 125, 126, 127, 129, 131, 133, 135, 138, 148, 159, 177)
"""Ids of the tables that the recorded changefeed `full` had."""
OF_MAINTAINERS: Final = frozenset({"gid", "maintainer_addr"})
"""Fields of parts that only TiCDC's new architecture has. The CLI reads neither."""
NAMES: Final = ("id", "changefeed_id")
"""Fields that name an item of a list: items are compared by them, else by their place."""
SAME_VALUE: Final = frozenset(
    {
        *("id", "changefeed_id", "capture_id", "namespace", "keyspace", "sink_uri", "state", "feed_state", "target_ts"),
        *("is_owner", "is-owner", "cluster_id", "cluster-id", "liveness", "total", "admin_job_type"),
    }
)
"""Fields whose values must be TiCDC's too, beside all settings."""


class RecordedBus(Memory):
    """A bus whose one capture has the id and the tables of the recorded server, by the status that it gave."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        super().__init__()
        self.capture, self.cluster = replace(ME, capture_id=CaptureId(status["id"])), status["cluster_id"]
        self.live, self.leader = [self.capture], self.capture.capture_id
        self.table_ids = [TableId(table) for table in TABLES]
        self.shares = Shares({self.capture.capture_id: self.table_ids})
        self.now = NOW_TS

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        check_id("changefeed-id", request.changefeed_id or "a")
        if request.start_ts is not None and request.start_ts > self.now:
            raise ConfigError("start-ts is ahead of PD's clock", key="start-ts")
        if request.start_ts is not None and request.start_ts < GC_TS:
            raise StartTsError("start-ts is older than the raw log", oldest_ts=GC_TS)
        if NO_BROKER in (request.sink_uri or ""):
            raise SinkRefusedError("sink cannot be used", sink=NO_BROKER)
        return super().create(request, namespace)


def missing(recorded: Any, ours: Any, path: str = "", is_setting: bool = False) -> list[str]:
    """Return the paths of what a recorded answer holds and ours does not, not of its type, or not of its value where
    that is to be the same."""
    name = path.rpartition(".")[2]
    if recorded is None or name in OF_MAINTAINERS:
        return []
    if isinstance(recorded, dict) and isinstance(ours, dict):
        return [
            fault
            for key, value in recorded.items()
            if value is not None and key not in OF_MAINTAINERS
            for fault in (
                [f"{path}.{key}"]
                if key not in ours
                else missing(value, ours[key], f"{path}.{key}", is_setting or key == "config")
            )
        ]
    if isinstance(recorded, list) and isinstance(ours, list):
        if recorded and not ours:
            return [f"{path} is empty"]
        return [fault for at, was, now in _pairs(recorded, ours) for fault in missing(was, now, path + at, is_setting)]
    if not (type(recorded) is type(ours) or {type(recorded), type(ours)} == {int, float}):
        return [f"{path} is {type(ours).__name__}, was {type(recorded).__name__}"]
    if name == "sink_uri":
        recorded = recorded.replace("mysql://root@", "mysql://xxxxx@")  # we mask a user without a password too
    if name == "total" and recorded == 0:
        return []  # TiCDC's new architecture has no processors to list
    if (is_setting or name in SAME_VALUE) and recorded != ours:
        return [f"{path} is {ours!r}, was {recorded!r}"]
    return []


def _pairs(recorded: list[Any], ours: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each item of a recorded list with ours: of its name, else of its number; where ours ends, our last."""
    for number, item in enumerate(recorded):
        name = next((name for name in NAMES if isinstance(item, dict) and name in item), None)
        if name is None:
            yield "[]", item, ours[min(number, len(ours) - 1)]
            continue
        named = [known for known in ours if isinstance(known, dict) and known.get(name) == item[name]]
        yield f"[{item[name]}]", item, named[0] if named else None
