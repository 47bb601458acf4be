"""Bodies of the API: what is known of changefeeds and captures as TiCDC's JSON, and requests read and checked."""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumers.api.errors import ApiError
from consumers.api.replica_config import from_api, to_api
from consumers.capture_registry import CaptureInfo
from consumers.changefeed_control import ConfigChange, state_of
from consumers.core.changefeed_state import ADMIN_JOBS
from schemas.changefeed import ChangefeedInfo, ChangefeedState, ChangefeedStatus
from schemas.config.secret import mask_uri
from schemas.ids import CaptureId, Ts, physical_ms

TS_MAX: Final = (1 << 64) - 1
SHOWN_BY_DEFAULT: Final[frozenset[ChangefeedState]] = frozenset({"normal", "stopped", "failed", "warning", "pending"})
STATES: Final = frozenset({*SHOWN_BY_DEFAULT, "finished", "removed"})


@dataclass(frozen=True, slots=True)
class StoredFeed:
    """A changefeed with how far it is; None: no sorter has said yet."""

    info: ChangefeedInfo
    status: ChangefeedStatus | None

    @property
    def state(self) -> ChangefeedState:
        return state_of(self.info, self.status)

    @property
    def checkpoint_ts(self) -> Ts:
        return max(self.status.checkpoint_ts, self.info.start_ts) if self.status else self.info.start_ts

    @property
    def resolved_ts(self) -> Ts:
        return max(self.status.resolved_ts, self.info.start_ts) if self.status else self.info.start_ts


def shown_state(state: ChangefeedState) -> str:
    """Return a state as the API shows it: what waits to be tried again is a warning."""
    return "warning" if state == "pending" else state


def feed_body(feed: StoredFeed, upstream_id: int, captures: Sequence[CaptureId] = ()) -> dict[str, Any]:
    """Return a ChangeFeedInfo. ``captures`` are those that replicate its tables; their tables are not known here."""
    info, state = feed.info, feed.state
    return {
        "upstream_id": upstream_id,
        "namespace": info.namespace,
        "id": info.changefeed_id,
        "sink_uri": mask_uri(info.sink_uri),
        "create_time": info.create_time,
        "start_ts": info.start_ts,
        "target_ts": info.target_ts or 0,
        "admin_job_type": ADMIN_JOBS[state],
        "config": to_api(info.config),
        "state": shown_state(state),
        "error": error_body_of(feed),
        "creator_version": info.creator_version,
        "resolved_ts": feed.resolved_ts,
        "checkpoint_ts": feed.checkpoint_ts,
        "checkpoint_time": local_time(feed.checkpoint_ts),
        "task_status": [{"capture_id": capture, "table_ids": [], "table_operations": None} for capture in captures],
    }


def common_body(feed: StoredFeed, upstream_id: int) -> dict[str, Any]:
    """Return one item of the list of changefeeds."""
    return {
        "upstream_id": upstream_id,
        "namespace": feed.info.namespace,
        "id": feed.info.changefeed_id,
        "state": shown_state(feed.state),
        "checkpoint_tso": feed.checkpoint_ts,
        "checkpoint_time": local_time(feed.checkpoint_ts),
        "error": error_body_of(feed),
    }


def status_body(feed: StoredFeed) -> dict[str, Any]:
    """Return a changefeed's short status. An error that it tries to get over is a warning, as TiCDC shows it."""
    error, retrying = error_body_of(feed), feed.state in ("warning", "pending")
    return {
        "state": shown_state(feed.state),
        "resolved_ts": feed.resolved_ts,
        "checkpoint_ts": feed.checkpoint_ts,
        "last_error": None if retrying else error,
        "last_warning": error if retrying else None,
    }


def error_body_of(feed: StoredFeed) -> dict[str, str] | None:
    """Return the changefeed's last error as a RunningError, or None."""
    error = feed.status.error if feed.status else None
    if error is None:
        return None
    return {"time": error.time, "addr": "", "code": error.code, "message": error.message}


def capture_body(capture: CaptureInfo, owner: CaptureId | None, cluster: str) -> dict[str, Any]:
    """Return one item of the list of captures."""
    return {
        "id": capture.capture_id,
        "is_owner": capture.capture_id == owner,
        "address": capture.address,
        "cluster_id": cluster,
    }


def list_body(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def read_object(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object; an empty body is an empty object.

    Raises:
        ApiError: no JSON object.
    """
    try:
        read = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ApiError("the body is no JSON", reason=error) from error
    if not isinstance(read, dict):
        raise ApiError("the body must be a JSON object", got=type(read).__name__)
    return read


def read_feed_request(raw: Mapping[str, Any]) -> FeedRequest:
    """Read a ChangefeedConfig; zeros and empty texts mean that nothing is given, as in Go.

    Raises:
        ApiError: a value of another type than TiCDC takes.
    """
    config = raw.get("replica_config")
    if config is not None and not isinstance(config, dict):
        raise ApiError("replica_config must be an object", key="replica_config", got=type(config).__name__)
    addresses = raw.get("pd_addrs") or []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise ApiError("pd_addrs must be a list of texts", key="pd_addrs")
    return FeedRequest(
        namespace=text_of(raw, "namespace"),
        changefeed_id=text_of(raw, "changefeed_id"),
        start_ts=ts_of(raw, "start_ts"),
        target_ts=ts_of(raw, "target_ts"),
        sink_uri=text_of(raw, "sink_uri"),
        config=None if config is None else from_api(config),
        pd_addresses=tuple(addresses),
    )


def text_of(raw: Mapping[str, Any], key: str) -> str | None:
    """Return a text, None where it is absent or empty.

    Raises:
        ApiError: no text.
    """
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise ApiError(f"{key} must be a text", key=key, got=type(value).__name__)
    return value or None


def ts_of(raw: Mapping[str, Any], key: str) -> Ts | None:
    """Return a TSO, None where it is absent or 0.

    Raises:
        ApiError: no whole number from 0 to 2^64 - 1.
    """
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TS_MAX:
        raise ApiError(f"{key} must be a TSO", key=key, got=repr(value)[:50])
    return Ts(value) or None


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
