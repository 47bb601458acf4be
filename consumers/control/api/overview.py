"""The whole bus in one answer, for a live picture: small whatever the number of tables."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from consumers.control.api.backend import Backend
from consumers.control.api.bodies import StoredFeed, error_body_of, shown_state
from consumers.control.api.sink_pace import pause_s
from consumers.control.api.sorter_bodies import feed_places, prologue_body, sorter_body
from consumers.control.owner.figures.service_figures import capture_of
from schemas.config.sink.schemes import sink_scheme
from schemas.ids import CaptureId, TableId, Ts, physical_ms
from schemas.nodes.sorter_service import FeedName

FEEDS_MAX: Final = 1000
"""Changefeeds in one answer, of all namespaces."""


def overview_body(bus: Backend, tables: Mapping[CaptureId, Collection[TableId]] | None) -> dict[str, Any]:
    """Return upstreams, captures and changefeeds as they are now; lags by this machine's clock.

    ``tables`` are each capture's; None: nobody says.
    """
    now_s, owner, captures = time.time(), bus.owner(), bus.captures()
    stored = bus.services()
    places = feed_places(stored, captures)
    return {
        "cluster_id": bus.cluster,
        "at_s": round(now_s, 3),
        "upstreams": [
            {"upstream": view.upstream, "upstream_id": bus.upstream_id(view.upstream), **_as_of_now(view.status, now_s)}
            for view in bus.upstreams()
        ],
        "captures": [
            {
                "id": capture.capture_id,
                "is_owner": capture.capture_id == owner,
                "address": capture.address,
                "version": capture.version,
                "tables": None if tables is None else len(tables.get(capture.capture_id, ())),
            }
            for capture in captures
        ],
        "services": [
            {"id": service, "capture": capture_of(service, stored, captures), "spark_ui": info.spark_ui}
            for service, info in sorted(stored.services.items())
        ],
        "changefeeds": [_feed(bus, feed, now_s, places) for feed in bus.all_feeds()[:FEEDS_MAX]],
    }


def _as_of_now(status: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """Return what the owner wrote last, which stays when it is gone, with the lag of now and how long it is silent."""
    resolved_ts, at_s = status.get("resolved_ts"), status.get("at_s")
    lag = {}
    if type(resolved_ts) is int and 0 <= resolved_ts < 1 << 64:
        lag["lag_s"] = _lag_s(Ts(resolved_ts), now_s)
    silent_s = max(0.0, round(now_s - at_s, 3)) if isinstance(at_s, float) else None
    return {**status, **lag, "silent_s": silent_s}


def _feed(
    bus: Backend, feed: StoredFeed, now_s: float, places: Mapping[FeedName, Mapping[str, object]]
) -> dict[str, object]:
    info, status, sorted_status = feed.info, feed.status, feed.sorter_status
    sorted_by = sorted_status or status
    name = (info.namespace, info.changefeed_id)
    return {
        "namespace": info.namespace,
        "id": info.changefeed_id,
        "upstream": info.upstream,
        "sink": sink_scheme(info.sink_uri),
        "pause_s": pause_s(info),
        "state": shown_state(feed.state),
        "checkpoint_ts": feed.checkpoint_ts,
        "checkpoint_lag_s": _lag_s(feed.checkpoint_ts, now_s),
        "sorter_lag_s": _lag_s(sorted_status.checkpoint_ts, now_s) if sorted_status else None,
        "resolved_lag_s": _lag_s(feed.resolved_ts, now_s),
        "rows_total": status.rows_total if status else 0,
        "sorter_rows_total": sorted_by.rows_total if sorted_by else 0,
        "spark_rows_total": sorted_by.spark_rows_total if sorted_by else 0,
        "batch_rows": status.batch_rows if status else 0,
        "batch_s": status.batch_s if status else 0.0,
        "error": error_body_of(feed),
        "sorter_deaths": status.sorter_deaths if status else 0,
        "sorter": sorter_body(bus, name, places.get(name)),
        **prologue_body(feed),
    }


def _lag_s(ts: Ts, now_s: float) -> float:
    return max(0.0, round(now_s - physical_ms(ts) / 1000, 3))
