"""A changefeed's tables over captures, as TiCDC's newer architecture asks for them.

There a changefeed has its own dispatchers; here a table is pulled once for all changefeeds of an upstream, and its
spans are divided by regions alone.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from consumers.control.api.access.errors import ApiError
from consumers.control.api.bodies import list_body
from consumers.control.api.context import Bus, FeedId, Namespace, Owner, User
from consumers.control.api.errors import SchedulerRefusedError
from consumers.control.api.routes.changefeeds import tasks_of
from consumers.control.api.routes.cluster import check_capture
from schemas.ids import CaptureId, TableId

router = APIRouter(prefix="/api/v2/changefeeds/{changefeed_id}", dependencies=[User], tags=["tables"])


@router.get("/tables", summary="Which of its tables each capture pulls")
def tables(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return captures with the ids of the changefeed's tables that they pull."""
    shares = tasks_of(bus, owner, bus.feed(feed_id, namespace))
    return list_body([{"node_id": capture, "table_ids": ids} for capture, ids in shares.items()])


@router.get("/get_dispatcher_count", summary="How many tables are pulled for it")
def dispatcher_count(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Return the number of pairs of a table and a capture that pulls it."""
    shares = tasks_of(bus, owner, bus.feed(feed_id, namespace))
    return {"count": sum(len(ids) for ids in shares.values())}


@router.post("/move_table", summary="Move a table to a capture")
def move_table(
    bus: Bus,
    owner: Owner,
    namespace: Namespace,
    feed_id: FeedId,
    table_id: Annotated[int, Query(alias="tableID", ge=1, le=(1 << 63) - 1)],
    target: Annotated[str, Query(alias="targetNodeID", description="a capture's id")],
) -> dict[str, object]:
    """Move a table of the changefeed, for all changefeeds of its upstream; ``mode`` and ``wait`` are not looked at."""
    feed = bus.feed(feed_id, namespace)
    check_capture(bus, target)
    if TableId(table_id) not in set(bus.feed_tables(feed)):
        raise ApiError("the changefeed has no such table", changefeed=feed_id, table_id=table_id)
    owner.move_table(TableId(table_id), CaptureId(target))
    return {}


@router.post("/move_split_table", include_in_schema=False)
@router.post("/split_table_by_region_count", include_in_schema=False)
@router.post("/merge_table", include_in_schema=False)
def refuse_spans(bus: Bus, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Refuse by name what works on single spans of a table.

    Raises:
        SchedulerRefusedError: always, where there is such a changefeed.
    """
    bus.feed(feed_id, namespace)
    reason = "a table's spans are divided by the owner, by --enable-table-across-nodes and --region-threshold"
    raise SchedulerRefusedError(reason, changefeed=feed_id)
