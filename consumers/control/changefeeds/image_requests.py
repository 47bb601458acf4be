"""What users ask of table images by hand, written into the changefeed's node ``images`` by compare-and-set.

The API writes what is asked (:mod:`consumers.control.changefeeds.asked_images`). The owner takes a table out once a
published frontier record says that the changefeed waits for its image; from there on the frontier topic alone knows of
it. The node goes with its changefeed.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from consumers.control.changefeeds.asked_images import (
    BY_HAND,
    NOTHING_ASKED,
    TABLES_MAX,
    AskedImages,
    AskedTable,
    decode_asked,
    encode_asked,
)
from consumers.control.changefeeds.store import no_such_changefeed
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.nodes import read_node, replace_node
from edges.zookeeper.session import Session
from schemas.config.parse.origin import NotSupportedYetError
from schemas.config.sink.schemes import sink_scheme
from schemas.config.sink.storage import STORAGE_SCHEMES
from schemas.errors import Action, BusError, CorruptDataError, decoding
from schemas.ids import TableId
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.sorter_service import FeedName
from schemas.rawlog.images import ImageMode, KeyRange

log = logging.getLogger(__name__)


class ImageRefusedError(BusError):
    """Images of these tables cannot be asked for now."""

    code, action = "images.refused", Action.STOP_CHANGEFEED


def check_mode(mode: ImageMode, sink_uri: str) -> None:
    """Refuse what this version cannot emit.

    Raises:
        NotSupportedYetError: a resync into files.
    """
    if mode is ImageMode.RESYNC and sink_scheme(sink_uri) in STORAGE_SCHEMES:
        text = "`resync` is not supported yet with a storage sink: its folders cannot say that a table begins anew"
        raise NotSupportedYetError(text, key=mode)


def request_images(
    session: Session, paths: ZkPaths, name: FeedName, mode: ImageMode, tables: Collection[TableId]
) -> None:
    """Ask for images of tables; of those that are asked for already, nothing changes but the mode. Whoever asks for a
    table wants it to go on: it is paused no more.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
        ImageRefusedError: too many are asked for at once.
        BusError: ZooKeeper failed, or the node does not decode.
    """

    _change(session, paths, name, "asking for table images", lambda before: asked_for(before, name, mode, tables))


def asked_for(before: AskedImages, name: FeedName, mode: ImageMode, tables: Collection[TableId]) -> AskedImages:
    """Return what is asked for when all of some tables is asked for besides; see :func:`request_images`.

    Raises:
        ImageRefusedError: too many are asked for at once.
    """
    after = {other: before.requested.get(other, frozenset()) - set(tables) for other in BY_HAND}
    after[mode] |= set(tables)
    # All of a table has what was asked of it.
    ranged = {asked: keys for asked, keys in before.ranged.items() if asked[1] not in tables}
    return _checked(name, replace(before, requested=after, ranged=ranged, paused=before.paused - set(tables)))


def request_range(
    session: Session, paths: ZkPaths, name: FeedName, mode: ImageMode, table: TableId, keys: tuple[KeyRange, ...]
) -> None:
    """Ask for the image of a part of a table, which is paused no more then.

    Args:
        session: with ZooKeeper.
        paths: of the cluster.
        name: the changefeed's.
        mode: in which.
        table: physical.
        keys: raw, within the table's records, ascending.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
        ImageRefusedError: all of the table, or another part of it, is asked for and has not begun.
        BusError: ZooKeeper failed, or the node does not decode.
    """

    def with_range(before: AskedImages) -> AskedImages:
        known = [asked for asked in before.tables if asked.table_id == table]
        if known and known != [AskedTable(mode, table, keys)]:
            raise ImageRefusedError(
                "an image of this table, or of another part of it, is asked for already; wait until it has begun",
                changefeed=name[1], table_id=table,
            )  # fmt: skip
        after = replace(before, ranged={**before.ranged, (mode, table): keys}, paused=before.paused - {table})
        return _checked(name, after)

    _change(session, paths, name, "asking for a part of a table's image", with_range)


def _checked(name: FeedName, asked: AskedImages) -> AskedImages:
    number = len(asked.tables)
    if number > TABLES_MAX:
        raise ImageRefusedError(
            "too many images are asked for at once; wait until some have begun",
            changefeed=name[1], tables=number, tables_max=TABLES_MAX,
        )  # fmt: skip
    return asked


def pause_images(session: Session, paths: ZkPaths, name: FeedName, tables: Collection[TableId]) -> AskedImages:
    """Let no more chunks of tables begin; of no table at all if none is named. Return what is asked then.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
        ImageRefusedError: too many are paused one by one.
        BusError: ZooKeeper failed, or the node does not decode.
    """

    def with_paused(before: AskedImages) -> AskedImages:
        if not tables:
            return replace(before, is_paused=True)
        paused = before.paused.union(tables)
        if len(paused) > TABLES_MAX:
            raise ImageRefusedError(
                "too many images are paused one by one; name no table, and all of them are",
                changefeed=name[1], tables=len(paused), tables_max=TABLES_MAX,
            )  # fmt: skip
        return replace(before, paused=paused)

    return _change(session, paths, name, "pausing table images", with_paused)


def resume_images(session: Session, paths: ZkPaths, name: FeedName, tables: Collection[TableId]) -> AskedImages:
    """Let chunks of tables begin again; of all tables if none is named. Return what is asked then.

    With none named it also makes anew a node that does not decode: nobody knows what was asked there.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
        ImageRefusedError: tables are named while all are paused.
        BusError: ZooKeeper failed; or tables are named, and the node does not decode.
    """

    def without_paused(before: AskedImages) -> AskedImages:
        if not tables:
            return replace(before, is_paused=False, paused=frozenset())
        if before.is_paused:
            raise ImageRefusedError(
                "all images of the changefeed are paused; resume all, by naming no table", changefeed=name[1]
            )
        return replace(before, paused=before.paused.difference(tables))

    return _change(session, paths, name, "resuming table images", without_paused, mends=not tables)


def withdraw_images(session: Session, paths: ZkPaths, name: FeedName, asked: Collection[AskedTable]) -> None:
    """Take out tables that are not asked for any more; what is asked of one of them in another mode stays.

    Raises:
        BusError: ZooKeeper failed, or the node does not decode.
    """

    def without_tables(before: AskedImages) -> AskedImages:
        tables = before.tables.difference(asked)
        return replace(
            before,
            requested={
                mode: frozenset(t.table_id for t in tables if t.mode is mode and not t.keys) for mode in BY_HAND
            },
            ranged={(each.mode, each.table_id): each.keys for each in tables if each.keys},
        )

    path = paths.changefeed_images(*name)
    with session.requests("withdrawing requests for table images") as client:
        while read_node(client, path, ANSWER_S) is not None and _written(client, path, without_tables) is None:
            pass


def _change(
    session: Session,
    paths: ZkPaths,
    name: FeedName,
    why: str,
    change: Callable[[AskedImages], AskedImages],
    *,
    mends: bool = False,
) -> AskedImages:
    with session.requests(why) as client:
        written = None
        while written is None:
            if read_node(client, paths.changefeed_info(*name), ANSWER_S) is None:
                raise no_such_changefeed(name[1], name[0])
            written = _written(client, paths.changefeed_images(*name), change, mends=mends)
    return written


def _written(
    client: ZooKeeperClient, path: str, change: Callable[[AskedImages], AskedImages], *, mends: bool = False
) -> AskedImages | None:
    """Write what ``change`` makes of the node, and return it; None: another has written or removed it meanwhile.
    ``mends``: one that does not decode asks for nothing.
    """
    node = read_node(client, path, ANSWER_S)
    before: AskedImages | None = None
    try:
        with decoding(path=path):
            before = NOTHING_ASKED if node is None else decode_asked(node[0])
    except CorruptDataError as error:
        if not mends:
            raise
        log.warning("node of images is made anew", extra={"path": path, "code": error.code, "error": str(error)})
    after = change(before or NOTHING_ASKED)
    version = None if node is None else node[1].version
    if after == before or replace_node(client, path, encode_asked(after), version, ANSWER_S) is not None:
        return after
    return None
