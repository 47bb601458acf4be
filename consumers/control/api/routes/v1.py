"""``/api/v1``: what TiUP, TiDB Operator, dashboards and old scripts still call; lists come without a wrapper there."""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from consumers.control.api.bodies import FeedRequest, StoredFeed, capture_body, common_body, feed_body, wanted_states
from consumers.control.api.context import Bus, FeedId, Namespace, Owner, User
from consumers.control.api.replica_config import from_api, kept_secrets
from consumers.control.api.requests import Body, Tso, ts_given
from consumers.control.api.routes.changefeeds import (
    delete_feed,
    pause_feed,
    processor,
    processors,
    resume_feed,
    tasks_of,
)
from consumers.control.core.changefeeds.kept_secrets import secret_paths
from schemas.config.parse.origin import Path
from schemas.errors import ConfigError

router = APIRouter(prefix="/api/v1", dependencies=[User], tags=["v1"])


class FeedBodyV1(Body):
    """Version 1's ChangefeedConfig: the settings beside each other, by names of its own."""

    namespace: str | None = None
    changefeed_id: str | None = None
    start_ts: Tso | None = None
    target_ts: Tso | None = None
    sink_uri: str | None = None
    timezone: str | None = Field(default=None, description="nobody reads it")
    force_replicate: bool | None = None
    ignore_ineligible_table: bool | None = None
    filter_rules: list[str] | None = None
    ignore_txn_start_ts: list[int] | None = None
    mounter_worker_num: int | None = None
    sink_config: dict[str, object] | None = None

    def table(self) -> dict[str, object]:
        """Return the changefeed file's table of it: what is given."""
        filters = {"rules": self.filter_rules, "ignore-txn-start-ts": self.ignore_txn_start_ts}
        table: dict[str, object] = {
            "force-replicate": self.force_replicate,
            "ignore-ineligible-table": self.ignore_ineligible_table,
            "filter": {key: value for key, value in filters.items() if value is not None} or None,
            "mounter": {"worker-num": self.mounter_worker_num} if self.mounter_worker_num else None,
            "sink": None if self.sink_config is None else from_api(self.sink_config),
        }
        return {key: value for key, value in table.items() if value is not None}


def _request(body: FeedBodyV1, config: dict[str, object] | None) -> FeedRequest:
    return FeedRequest(
        namespace=body.namespace or None,
        changefeed_id=body.changefeed_id or None,
        start_ts=ts_given(body.start_ts),
        target_ts=ts_given(body.target_ts),
        sink_uri=body.sink_uri or None,
        config=config,
        pd_addresses=(),
    )


@router.get("/captures", summary="List captures")
def captures(bus: Bus) -> list[dict[str, object]]:
    """Return the captures that live and which of them is the owner."""
    owner = bus.owner()
    return [capture_body(capture, owner, bus.cluster) for capture in bus.captures()]


@router.get("/changefeeds", summary="List changefeeds")
def list_feeds(
    bus: Bus, namespace: Namespace, state: Annotated[str, Query(description="one state, or all")] = ""
) -> list[dict[str, object]]:
    """Return those of a namespace in a state."""
    states = wanted_states(state)
    feeds = [feed for feed in bus.feeds(namespace) if feed.state in states]
    return [common_body(feed, bus.upstream_id(feed.info.upstream)) for feed in feeds]


@router.get("/changefeeds/{changefeed_id}", summary="Show a changefeed")
def get_feed(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return version 1's ChangefeedDetail, and beside it what version 2 calls by other names."""
    feed = bus.feed(feed_id, namespace)
    tasks = tasks_of(bus, owner, feed) if feed.state == "normal" else {}
    shown = feed_body(feed, bus.upstream_id(feed.info.upstream), tasks)
    old = {"checkpoint_tso": feed.checkpoint_ts, "sort_engine": "unified", "error_history": None}
    return {**shown, **old}


@router.post("/changefeeds", summary="Create a changefeed", status_code=HTTPStatus.ACCEPTED)
def create_feed(bus: Bus, namespace: Namespace, body: FeedBodyV1) -> dict[str, object]:
    """Check a changefeed and store it; its sorter is started."""
    if not body.sink_uri:
        raise ConfigError("sink_uri is empty; it says where to", key="sink-uri")
    bus.create(_request(body, body.table()), body.namespace or namespace)
    return {}


@router.put("/changefeeds/{changefeed_id}", summary="Update a changefeed", status_code=HTTPStatus.ACCEPTED)
def update_feed(bus: Bus, namespace: Namespace, feed_id: FeedId, body: FeedBodyV1) -> dict[str, object]:
    """Change the settings that are given; only where it is stopped or has failed."""
    config, kept = _over_stored(bus.feed(feed_id, namespace), body)
    bus.configure(feed_id, namespace, replace(_request(body, config).change(), kept=kept))
    return {}


def _over_stored(feed: StoredFeed, body: FeedBodyV1) -> tuple[dict[str, object] | None, frozenset[Path]]:
    """Return the stored settings with those given, and those with secrets that stay; None: none is given."""
    given, stored = body.table(), dict(feed.info.config)
    if not given:
        return None, frozenset()
    for key, value in given.items():
        under = stored.get(key)
        stored[key] = {**under, **value} if isinstance(under, dict) and isinstance(value, dict) else value
    config, masked = kept_secrets(stored, feed.info.config)
    return config, masked | (frozenset(secret_paths(config)) - frozenset(secret_paths(given)))


@router.delete("/changefeeds/{changefeed_id}", summary="Remove a changefeed", status_code=HTTPStatus.ACCEPTED)
def remove_feed(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Forget it; its topics stay."""
    bus.feed(feed_id, namespace)
    return delete_feed(bus, namespace, feed_id)


@router.post("/changefeeds/{changefeed_id}/pause", summary="Pause a changefeed", status_code=HTTPStatus.ACCEPTED)
def pause(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Stop it after its batch; its checkpoint stays."""
    return pause_feed(bus, namespace, feed_id)


@router.post("/changefeeds/{changefeed_id}/resume", summary="Resume a changefeed", status_code=HTTPStatus.ACCEPTED)
def resume(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Let it go on from its checkpoint."""
    return resume_feed(bus, namespace, feed_id)


@router.get("/processors", summary="Who works for which changefeed")
def list_processors(bus: Bus, owner: Owner) -> object:
    """Return each pair of a changefeed that runs and a capture."""
    return processors(bus, owner)["items"]


@router.get("/processors/{changefeed_id}/{capture_id}", summary="What it works on")
def get_processor(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId, capture_id: str) -> dict[str, object]:
    """Return a changefeed's tables that a capture pulls."""
    return processor(bus, owner, namespace, feed_id, capture_id)
