"""Bodies of the API: what is known of changefeeds and captures as TiCDC's JSON, and requests read and checked."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl

from consumers.control.api.access.errors import ApiError
from consumers.control.api.replica_config import laid_over, shown_config
from consumers.control.changefeeds.stored_feed import StoredFeed as StoredFeed
from consumers.control.changefeeds.verbs import ConfigChange
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.core.changefeeds.state import ADMIN_JOBS
from schemas.ids import CaptureId, TableId, Ts, physical_ms
from schemas.masking import MASK, mask_uri
from schemas.nodes.changefeed import ChangefeedState
from schemas.nodes.creation_zone import without_zone

TS_MAX: Final = (1 << 64) - 1
SHOWN_BY_DEFAULT: Final[frozenset[ChangefeedState]] = frozenset({"normal", "stopped", "failed", "warning", "pending"})
STATES: Final = frozenset({*SHOWN_BY_DEFAULT, "finished", "removed"})


def shown_state(state: ChangefeedState) -> str:
    """Return a state as the API shows it: what waits to be tried again is a warning."""
    return "warning" if state == "pending" else state


def shown_uri(uri: str) -> str:
    """Return a sink URI without its secrets, by TiCDC's mask."""
    return mask_uri(uri).replace(MASK, "xxxxx")


def feed_body(
    feed: StoredFeed, upstream_id: int, tasks: Mapping[CaptureId, Sequence[TableId]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a ChangeFeedInfo. ``tasks``: which of its tables each capture replicates."""
    info, state = feed.info, feed.state
    config = laid_over(shown_config(info.config), {"sink": _protocol_of(info.sink_uri)})
    return {
        "upstream_id": upstream_id,
        "namespace": info.namespace,
        "keyspace": info.namespace,
        "id": info.changefeed_id,
        "sink_uri": shown_uri(info.sink_uri),
        "create_time": without_zone(info.create_time),
        "start_ts": info.start_ts,
        "target_ts": info.target_ts or 0,
        "admin_job_type": ADMIN_JOBS[state],
        "config": config,
        "state": shown_state(state),
        "error": error_body_of(feed),
        "creator_version": info.creator_version,
        "time_zone": info.time_zone,
        "resolved_ts": feed.resolved_ts,
        "checkpoint_ts": feed.checkpoint_ts,
        "checkpoint_time": local_time(feed.checkpoint_ts),
        "task_status": [
            {"capture_id": capture, "table_ids": list(tables), "table_operations": None}
            for capture, tables in tasks.items()
        ],
    }


def _protocol_of(uri: str) -> dict[str, str]:
    """Return the sink's protocol where the URI gives it, as TiCDC shows it."""
    given = dict(parse_qsl(uri.partition("?")[2])).get("protocol")
    return {"protocol": given} if given else {}


def common_body(feed: StoredFeed, upstream_id: int) -> dict[str, object]:
    """Return one item of the list of changefeeds."""
    return {
        "upstream_id": upstream_id,
        "namespace": feed.info.namespace,
        "keyspace": feed.info.namespace,
        "id": feed.info.changefeed_id,
        "state": shown_state(feed.state),
        "checkpoint_tso": feed.checkpoint_ts,
        "checkpoint_time": local_time(feed.checkpoint_ts),
        "error": error_body_of(feed),
    }


def status_body(feed: StoredFeed) -> dict[str, object]:
    """Return a changefeed's short status. An error that it tries to get over is a warning, as TiCDC shows it."""
    error, retrying = error_body_of(feed), feed.state in ("warning", "pending")
    return {
        "state": shown_state(feed.state),
        "resolved_ts": feed.resolved_ts,
        "checkpoint_ts": feed.checkpoint_ts,
        "last_error": None if retrying else error,
        "last_warning": error if retrying else None,
    }


SYNCED_CHECK_INTERVAL_S: Final = 300
CHECKPOINT_INTERVAL_S: Final = 15


def synced_body(feed: StoredFeed, pulled_ts: Ts, now_ts: Ts) -> dict[str, object]:
    """Return a SyncedStatus: whether all written upstream until now is downstream (docs/formats/cluster.md §9).

    ``pulled_ts`` is the upstream's published resolved ts, ``now_ts`` PD's time. A changefeed that has not written any
    row counts from its start_ts.
    """
    settings = feed.info.config.get("synced-status") or {}
    quiet_s = settings.get("synced-check-interval", SYNCED_CHECK_INTERVAL_S)
    near_s = settings.get("checkpoint-interval", CHECKPOINT_INTERVAL_S)
    last_synced_ts = max(feed.status.last_synced_ts if feed.status else Ts(0), feed.info.start_ts)
    is_quiet = _apart_s(now_ts, last_synced_ts) > quiet_s
    is_near = _apart_s(now_ts, feed.checkpoint_ts) < near_s
    if is_quiet and is_near:
        info = "all data is downstream"
    elif is_quiet and _apart_s(pulled_ts, feed.checkpoint_ts) < near_s:
        info = "if PD is offline or a TiKV region is not available, all data is downstream; else some is on its way"
    else:
        info = "some data is on its way; wait"
    return {
        "synced": is_quiet and is_near,
        "sink_checkpoint_ts": local_time(feed.checkpoint_ts),
        "puller_resolved_ts": local_time(pulled_ts),
        "last_synced_ts": local_time(last_synced_ts),
        "now_ts": local_time(now_ts),
        "info": info,
    }


def _apart_s(later: Ts, earlier: Ts) -> float:
    return (physical_ms(later) - physical_ms(earlier)) / 1000


def error_body_of(feed: StoredFeed) -> dict[str, str] | None:
    """Return the changefeed's last error as a RunningError, or None."""
    error = feed.status.error if feed.status else None
    if error is None:
        return None
    return {"time": error.time, "addr": "", "code": error.code, "message": error.message}


def capture_body(capture: CaptureInfo, owner: CaptureId | None, cluster: str) -> dict[str, object]:
    """Return one item of the list of captures."""
    return {
        "id": capture.capture_id,
        "is_owner": capture.capture_id == owner,
        "address": capture.address,
        "cluster_id": cluster,
    }


def list_body(items: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return a list as TiCDC wraps it."""
    return {"total": len(items), "items": list(items)}


def local_time(ts: Ts) -> str:
    """Return a ts's clock half as TiCDC writes it, in this machine's time zone."""
    at = datetime.datetime.fromtimestamp(physical_ms(ts) / 1000, datetime.UTC).astimezone()
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """A ChangefeedConfig: the body of create, update and verify_table."""

    namespace: str | None
    changefeed_id: str | None
    start_ts: Ts | None
    target_ts: Ts | None
    sink_uri: str | None
    config: dict[str, Any] | None
    pd_addresses: tuple[str, ...]

    def change(self) -> ConfigChange:
        """Return the parts that an update replaces.

        Raises:
            ApiError: the start ts of a changefeed stays.
        """
        if self.start_ts is not None:
            raise ApiError("start_ts cannot be updated; resume with overwrite_checkpoint_ts", key="start_ts")
        return ConfigChange(sink_uri=self.sink_uri, config=self.config, target_ts=self.target_ts)


def wanted_states(query: str) -> frozenset[str]:
    """Return the states that a list is asked for.

    Raises:
        ApiError: no such state.
    """
    if not query:
        return SHOWN_BY_DEFAULT
    if query == "all":
        return STATES
    if query not in STATES:
        raise ApiError(f"no such state; known are all, {', '.join(sorted(STATES))}", key="state", got=query)
    # A pending one is shown as a warning.
    return frozenset({"warning", "pending"}) if query == "warning" else frozenset({query})
