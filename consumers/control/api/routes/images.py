"""What a changefeed does by table: images, proofs, what its sink refuses. TiCDC has none of it."""

from collections.abc import Mapping

from fastapi import APIRouter

from consumers.control.api.backend import Backend
from consumers.control.api.bodies import StoredFeed, list_body, local_time
from consumers.control.api.context import Bus, FeedId, Namespace, User
from consumers.control.api.requests import SomeTablesBody, TablesBody
from consumers.control.changefeeds.asked_images import AskedImages
from schemas.config.sink.schemes import is_lake_scheme, sink_scheme
from schemas.ids import TableId
from schemas.rawlog.images import ImageMode

PROOFS_LOOKED_AT = 1_000
"""Newest records of the proofs topic, in which those of a changefeed are looked for."""
router = APIRouter(prefix="/api/tidebus/changefeeds/{changefeed_id}", dependencies=[User], tags=["tidebus"])


@router.get("/images", summary="How far a changefeed's table images are")
def feed_images(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return what the owner has said last; empty: the changefeed waits for no image."""
    return dict(images_body(bus, feed_id, namespace) or {})


@router.get("/proofs", summary="What a changefeed read, left out and wrote of late, by window")
def feed_proofs(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return the newest records of its chain; `tidebus proofs export` gives all."""
    return {"proofs": list(bus.proofs(bus.feed(feed_id, namespace), PROOFS_LOOKED_AT))}


@router.get("/tables/refused", summary="Which of its tables a lake's sink refuses or passes over")
def refused_tables(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return table, code, reason and what helps of each; none where the sink is no lake. The one whose DDL has stopped
    the changefeed comes first, with ``ddl``; the others are refused by the schema as it is now.
    """
    return list_body(refused_items(bus, bus.feed(feed_id, namespace)))


@router.post("/tables/backfill", summary="Let a running changefeed write the rows that tables have, once more")
def backfill(bus: Bus, namespace: Namespace, feed_id: FeedId, body: TablesBody) -> dict[str, object]:
    """Ask for images of tables; changes go out as ever meanwhile."""
    return {"table_ids": _requested(bus, namespace, feed_id, ImageMode.BACKFILL, body)}


@router.post("/tables/resync", summary="The same, and deletes of rows that tables lack")
def resync(bus: Bus, namespace: Namespace, feed_id: FeedId, body: TablesBody) -> dict[str, object]:
    """Ask for images of tables after which the destination has their rows and no others."""
    return {"table_ids": _requested(bus, namespace, feed_id, ImageMode.RESYNC, body)}


def _requested(bus: Backend, namespace: str, feed_id: str, mode: ImageMode, body: TablesBody) -> list[TableId]:
    return list(bus.request_images(feed_id, namespace, mode, body.tables, body.where_key_range))


@router.post("/tables/pause", summary="Begin no more chunks of tables' images")
def pause(bus: Bus, namespace: Namespace, feed_id: FeedId, body: SomeTablesBody) -> dict[str, object]:
    """Let images of tables rest, or of all tables; changes go out as ever. Return what is paused then."""
    return paused_body(bus.pause_images(feed_id, namespace, body.tables))


@router.post("/tables/resume", summary="Go on with tables' images")
def resume(bus: Bus, namespace: Namespace, feed_id: FeedId, body: SomeTablesBody) -> dict[str, object]:
    """Let images of tables go on where they were, or of all tables. Return what is paused then."""
    return paused_body(bus.resume_images(feed_id, namespace, body.tables))


def refused_items(bus: Backend, feed: StoredFeed) -> list[dict[str, object]]:
    """Return the tables that a changefeed's sink refuses, as the API shows them.

    Raises:
        BusError: there is no raw log, or Kafka does not answer.
    """
    error = feed.status.error if feed.status else None
    items: list[dict[str, object]] = [{**each, "ddl": None} for each in bus.refused_tables(feed)]
    if error is None or error.ddl is None or not is_lake_scheme(sink_scheme(feed.info.sink_uri)):
        return items
    ddl = error.ddl
    by_ddl = {
        "query": ddl.query,
        "start_ts": ddl.start_ts,
        "commit_ts": ddl.commit_ts,
        "commit_time": local_time(ddl.commit_ts),
    }
    said: dict[str, object] = {
        "table": ddl.table,
        "code": error.code,
        "reason": ddl.reason,
        "what_helps": ddl.what_helps,
        "ddl": by_ddl,
    }
    return [said, *items]


def paused_body(asked: AskedImages) -> dict[str, object]:
    """Return what of a changefeed's images is paused."""
    return {"is_paused": asked.is_paused, "table_ids": sorted(asked.paused)}


def images_body(bus: Backend, feed_id: str, namespace: str) -> Mapping[str, object] | None:
    """Return how far a changefeed's images are; None: it waits for none.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
    """
    upstream = bus.feed(feed_id, namespace).info.upstream
    shown = (item for view in bus.upstreams() if view.upstream == upstream for item in view.status.get("images", ()))
    return next((item for item in shown if (item["namespace"], item["id"]) == (namespace, feed_id)), None)
