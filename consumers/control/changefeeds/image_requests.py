"""Table images that users have asked for by hand: a node of the changefeed, ``images``, JSON, by compare-and-set.

    {"backfill": [112, 115], "resync": []}          physical table ids

The API adds to it. The owner takes a table out once a published frontier record says that the changefeed waits for its
image; from there on the frontier topic alone knows of it. The node goes with its changefeed.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from consumers.control.changefeeds.store import no_such_changefeed
from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.nodes import read_node, replace_node
from edges.zookeeper.session import Session
from schemas.config.parse.origin import NotSupportedYetError
from schemas.config.sink.iceberg import ICEBERG_SCHEMES
from schemas.config.sink.storage import STORAGE_SCHEMES
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import TableId
from schemas.json_text import read_int, read_json
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.sorter_service import FeedName
from schemas.rawlog.images import ImageMode

TABLES_MAX: Final = 20_000
"""Asked for and not begun yet, of one changefeed: the node stays small. Partitions are tables of their own."""
BY_HAND: Final = (ImageMode.BACKFILL, ImageMode.RESYNC)


Requested = Mapping[ImageMode, frozenset[TableId]]
"""Tables by mode; those of ``BY_HAND``."""
AskedTable = tuple[ImageMode, TableId]


class ImageRefusedError(BusError):
    """Images of these tables cannot be asked for now."""

    code, action = "images.refused", Action.STOP_CHANGEFEED


def check_mode(mode: ImageMode, sink_uri: str) -> None:
    """Refuse what this version cannot emit.

    Raises:
        NotSupportedYetError: a sink of lake tables, or a resync into files.
    """
    scheme = sink_uri.partition("://")[0].lower()
    if scheme in ICEBERG_SCHEMES:
        text = f"`{mode}` is not supported yet with an Iceberg sink: it takes images at its beginning alone"
        raise NotSupportedYetError(text, key=mode)
    if mode is ImageMode.RESYNC and scheme in STORAGE_SCHEMES:
        text = "`resync` is not supported yet with a storage sink: files have no place for rows that are there no more"
        raise NotSupportedYetError(text, key=mode)


def encode_requested(requested: Requested) -> bytes:
    """Return the node's bytes."""
    return json.dumps({mode.value: sorted(requested.get(mode, ())) for mode in BY_HAND}).encode()


def decode_requested(node: bytes) -> Requested:
    """Read a changefeed's ``images`` node.

    Raises:
        CorruptDataError: it is no such node.
    """
    try:
        raw = read_json(node)
        requested = {
            mode: frozenset(TableId(read_int(table, bits=63)) for table in raw[mode.value]) for mode in BY_HAND
        }
        if sum(map(len, requested.values())) > TABLES_MAX:
            raise ValueError(f"more than {TABLES_MAX} tables")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("node of images does not decode", node=node[:200], reason=repr(error)) from error
    return requested


def request_images(
    session: Session, paths: ZkPaths, name: FeedName, mode: ImageMode, tables: Collection[TableId]
) -> None:
    """Ask for images of tables; of those that are asked for already, nothing changes but the mode.

    Raises:
        ChangefeedNotFoundError: there is no such changefeed.
        ImageRefusedError: too many are asked for at once.
        BusError: ZooKeeper failed, or the node does not decode.
    """

    def with_tables(before: Requested) -> Requested:
        after = {other: before.get(other, frozenset()) - set(tables) for other in BY_HAND}
        after[mode] |= set(tables)
        number = sum(map(len, after.values()))
        if number > TABLES_MAX:
            raise ImageRefusedError(
                "too many images are asked for at once; wait until some have begun",
                changefeed=name[1], tables=number, tables_max=TABLES_MAX,
            )  # fmt: skip
        return after

    with session.requests("asking for table images") as client:
        is_written = False
        while not is_written:
            if read_node(client, paths.changefeed_info(*name), ANSWER_S) is None:
                raise no_such_changefeed(name[1], name[0])
            is_written = _changed(client, paths.changefeed_images(*name), with_tables)


def withdraw_images(session: Session, paths: ZkPaths, name: FeedName, asked: Collection[AskedTable]) -> None:
    """Take out tables that are not asked for any more; what is asked of one of them in another mode stays.

    Raises:
        BusError: ZooKeeper failed, or the node does not decode.
    """

    def without_tables(before: Requested) -> Requested:
        return {
            mode: before.get(mode, frozenset()) - {table for asked_so, table in asked if asked_so is mode}
            for mode in BY_HAND
        }

    path = paths.changefeed_images(*name)
    with session.requests("withdrawing requests for table images") as client:
        while read_node(client, path, ANSWER_S) is not None and not _changed(client, path, without_tables):
            pass


def _changed(client: Any, path: str, change: Callable[[Requested], Requested]) -> bool:
    """Write what ``change`` makes of the node; False: another has written, made or removed it meanwhile."""
    node = read_node(client, path, ANSWER_S)
    before: Requested = {} if node is None else decode_requested(node[0])
    after = change(before)
    if after == before:
        return True
    version = None if node is None else node[1].version
    return replace_node(client, path, encode_requested(after), version, ANSWER_S) is not None
