"""``/api/v2/changefeeds``, ``/processors`` and ``/verify_table``: changefeeds, and where their tables are pulled."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from consumers.control.api.access.errors import ApiError
from consumers.control.api.backend import Backend, Scheduling
from consumers.control.api.bodies import (
    StoredFeed,
    common_body,
    feed_body,
    list_body,
    status_body,
    synced_body,
    wanted_states,
)
from consumers.control.api.context import OWNER_WAIT_S, Bus, FeedId, Namespace, Owner, User, ask_owner
from consumers.control.api.errors import NoSuchCaptureError
from consumers.control.api.replica_config import given_up, kept_secrets
from consumers.control.api.requests import FeedBody, ResumeBody, VerifyTableBody, feed_request, ts_given
from consumers.control.api.toml_body import TOML, toml_text, wants_toml
from consumers.control.changefeeds.store import ChangefeedNotFoundError
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError, ConfigError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.sink.topic import has_processors

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v2", dependencies=[User])

_OF_THE_FILTER: Final = ("filter", "case-sensitive", "force-replicate")
_ANY_SINK: Final = "kafka://127.0.0.1:9092/tables?protocol=canal-json"
"""For who asks of a filter without a sink."""


@router.get("/changefeeds", tags=["changefeeds"], summary="List changefeeds")
def list_feeds(
    bus: Bus,
    namespace: Namespace,
    state: Annotated[str, Query(description="one state, or all; none: all but finished and removed")] = "",
) -> dict[str, object]:
    """Return those of a namespace in a state."""
    states = wanted_states(state)
    feeds = [feed for feed in bus.feeds(namespace) if feed.state in states]
    return list_body([common_body(feed, bus.upstream_id(feed.info.upstream)) for feed in feeds])


@router.post("/changefeeds", tags=["changefeeds"], summary="Create a changefeed")
def create_feed(request: Request, bus: Bus, namespace: Namespace, body: FeedBody | None = None) -> dict[str, object]:
    """Check a changefeed and store it; its sorter is started.

    Raises:
        ApiError: body and query name two namespaces; TiCDC's versions take one or the other.
    """
    wanted = feed_request(body or FeedBody())
    is_asked = any(request.query_params.get(name) for name in ("namespace", "keyspace"))
    if is_asked and wanted.namespace not in (None, namespace):
        raise ApiError("body and query name two namespaces; give one of them", key="keyspace", got=wanted.namespace)
    if wanted.sink_uri is None:
        raise ConfigError("sink_uri is empty; it says where to", key="sink-uri")
    info = bus.create(wanted, wanted.namespace or namespace)
    return _noted(bus, StoredFeed(info, None))


@router.get("/changefeeds/{changefeed_id}", tags=["changefeeds"], summary="Show a changefeed")
def get_feed(request: Request, bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return one with its captures and tables, which the owner knows; as TOML where that is asked for."""
    shown = _with_tasks(request, bus, namespace, feed_id)
    if not wants_toml(request.headers.get("Accept", "")):
        return shown
    if isinstance(shown, Response):
        if shown.status_code != HTTPStatus.OK:
            return shown
        shown = json.loads(bytes(shown.body))
    return Response(toml_text(shown), media_type=TOML)


def _with_tasks(request: Request, bus: Bus, namespace: str, feed_id: str) -> Any:
    """Return a changefeed's body, or the owner's answer; without an owner the rest is shown."""
    feed = bus.feed(feed_id, namespace)
    scheduling = bus.scheduling()
    if feed.state != "normal":  # nobody works for it
        return _whole(bus, feed)
    if scheduling is None:
        try:
            return ask_owner(request, bus, OWNER_WAIT_S)
        except BusError as error:
            log.info("owner is not asked for a changefeed's tables", extra={"changefeed": feed_id, "error": str(error)})
            return _whole(bus, feed)
    return _whole(bus, feed, tasks_of(bus, scheduling, feed))


@router.put("/changefeeds/{changefeed_id}", tags=["changefeeds"], summary="Update a changefeed")
def update_feed(bus: Bus, namespace: Namespace, feed_id: FeedId, body: FeedBody | None = None) -> dict[str, object]:
    """Replace the settings that are given; only where it is stopped or has failed. A key that TiCDC does not have stays
    where it is not sent, for its clients do not know it; null takes it away.
    """
    wanted = feed_request(body or FeedBody())
    bus.check_upstream(wanted.pd_addresses)
    change = wanted.change()
    if change.config is not None:
        stored = bus.feed(feed_id, namespace).info.config
        gone = given_up(body.replica_config or {}) if body else frozenset()
        config, kept = kept_secrets(change.config, stored, gone)
        change = replace(change, config=config, kept=kept)
    bus.configure(feed_id, namespace, change)
    return _noted(bus, bus.feed(feed_id, namespace))


@router.delete("/changefeeds/{changefeed_id}", tags=["changefeeds"], summary="Remove a changefeed")
def delete_feed(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Forget it; its topics stay. One that is not there is fine."""
    try:
        bus.remove(feed_id, namespace)
    except ChangefeedNotFoundError:
        log.info("changefeed to be removed is gone already", extra={"changefeed": feed_id})
    return {}


@router.get("/changefeeds/{changefeed_id}/meta_info", tags=["changefeeds"], summary="Show it, by an older name")
def meta_info(request: Request, bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return one with its captures and tables."""
    return _with_tasks(request, bus, namespace, feed_id)


@router.get("/changefeeds/{changefeed_id}/status", tags=["changefeeds"], summary="State, checkpoint and last error")
def feed_status(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return how far it is."""
    return status_body(bus.feed(feed_id, namespace))


@router.get("/changefeeds/{changefeed_id}/synced", tags=["changefeeds"], summary="Whether all data is downstream")
def feed_synced(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Tell whether nothing is under way any more, by the changefeed's ``synced-status``."""
    feed = bus.feed(feed_id, namespace)
    return synced_body(feed, _pulled_ts(bus, feed.info.upstream), bus.now_ts())


@router.post("/changefeeds/{changefeed_id}/pause", tags=["changefeeds"], summary="Pause a changefeed")
def pause_feed(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Stop it after its batch; its checkpoint stays."""
    bus.pause(feed_id, namespace)
    return {}


@router.post("/changefeeds/{changefeed_id}/resume", tags=["changefeeds"], summary="Resume a changefeed")
def resume_feed(bus: Bus, namespace: Namespace, feed_id: FeedId, body: ResumeBody | None = None) -> dict[str, object]:
    """Let it go on from its checkpoint, or another."""
    body = body or ResumeBody()
    bus.check_upstream(body.pd_addrs or ())
    bus.resume(feed_id, namespace, ts_given(body.overwrite_checkpoint_ts))
    return {}


@router.post("/verify_table", tags=["changefeeds"], summary="Which tables a changefeed would have")
def verify_table(bus: Bus, body: VerifyTableBody | None = None) -> dict[str, object]:
    """Return the tables that the settings let through, those without a key apart."""
    return bus.tables(feed_request(body or VerifyTableBody()))


@router.post("/get_all_tables", tags=["changefeeds"], summary="Which tables a filter lets through")
def get_all_tables(bus: Bus, body: FeedBody | None = None) -> dict[str, object]:
    """Return the tables as ``/verify_table`` does, by the filter alone: no sink is needed."""
    wanted = feed_request(body or FeedBody())
    filters = {key: value for key, value in (wanted.config or {}).items() if key in _OF_THE_FILTER}
    return bus.tables(replace(wanted, sink_uri=_ANY_SINK, config=filters))


@router.get("/processors", tags=["processors"], summary="Who works for which changefeed")
def processors(bus: Bus, owner: Owner) -> dict[str, object]:
    """Return each pair of a changefeed that runs and a capture that pulls some of its tables or applies of its rows."""
    running = [feed for feed in bus.all_feeds() if feed.state in ("normal", "warning")]
    return list_body(
        [
            {
                "namespace": feed.info.namespace,
                "keyspace": feed.info.namespace,
                "changefeed_id": feed.info.changefeed_id,
                "capture_id": capture,
            }
            for feed in running
            for capture in sorted({*tasks_of(bus, owner, feed), *_partitions_of(bus, feed)})
        ]
    )


@router.get("/processors/{changefeed_id}/{capture_id}", tags=["processors"], summary="What it works on")
def processor(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId, capture_id: str) -> dict[str, object]:
    """Return a changefeed's tables that a capture pulls, and the partitions of its topic that its processor applies."""
    feed = bus.feed(feed_id, namespace)
    if capture_id not in {capture.capture_id for capture in bus.captures()}:
        raise NoSuchCaptureError("there is no such capture", capture=capture_id[:50])
    capture = CaptureId(capture_id)
    shown: dict[str, object] = {"table_ids": tasks_of(bus, owner, feed).get(capture, [])}
    if has_processors(feed.info.sink_uri):
        shown["partitions"] = _partitions_of(bus, feed).get(capture, [])
    return shown


def tasks_of(bus: Backend, scheduling: Scheduling, feed: StoredFeed) -> dict[CaptureId, list[TableId]]:
    """Return which of a changefeed's tables each capture pulls, without captures that pull none of them."""
    wanted = set(bus.feed_tables(feed))
    shares = {capture: sorted(wanted & set(tables)) for capture, tables in sorted(scheduling.tables().items())}
    return {capture: tables for capture, tables in shares.items() if tables}


def _partitions_of(bus: Backend, feed: StoredFeed) -> dict[CaptureId, list[int]]:
    """Return which partitions of a changefeed's topic each capture's processor applies, without those of none."""
    if not has_processors(feed.info.sink_uri):
        return {}
    return {share.capture: list(share.partitions) for share in bus.processor_shares(feed) if share.partitions}


def _whole(bus: Backend, feed: StoredFeed, tasks: Mapping[CaptureId, list[TableId]] | None = None) -> dict[str, object]:
    return feed_body(feed, bus.upstream_id(feed.info.upstream), tasks or {})


def _noted(bus: Backend, feed: StoredFeed) -> dict[str, object]:
    """Return a changefeed with what to tell about its settings, which is logged too: `cdc cli` does not show it."""
    notes = load_changefeed(feed.info.sink_uri, feed.info.config).notes
    for note in notes:
        log.info("changefeed's settings", extra={"changefeed": feed.info.changefeed_id, "note": note})
    return {**_whole(bus, feed), "notes": list(notes)}


def _pulled_ts(bus: Backend, upstream: UpstreamId) -> Ts:
    """Return what the owner of an upstream published last, 0 if nobody has."""
    for view in bus.upstreams():
        if view.upstream == upstream:
            return Ts(int(view.status.get("resolved_ts", 0)))
    return Ts(0)
