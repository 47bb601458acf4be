"""How far running changefeeds are, asked of ZooKeeper once; who looks again and again has a cache of nodes.

A sorter service folds a changefeed's entry into its ``status`` when it ends its run. So entries are read first: who
reads them after the status can miss what was folded between the two, and see a checkpoint go back.
"""

import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from kazoo.exceptions import NoNodeError

from edges.zookeeper.client import Promise, ZooKeeperClient
from edges.zookeeper.node_cache import ANSWER_S
from schemas.errors import CorruptDataError
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import FeedFigures, RunKey, decode_figures
from schemas.nodes.sorter_service import (
    FeedEntry,
    FeedName,
    ServicePaths,
    decode_entries,
    newest_entries,
    with_figures,
)

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_NO_NAMES: list[str] = []

Entries = dict[tuple[FeedName, int], FeedEntry]
"""The entry that counts, by a changefeed's name and the zxid of its creation."""


def read_entries(client: ZooKeeperClient, paths: ZkPaths) -> Entries:
    """Return what all sorter services say of their changefeeds: to be read before any ``status``.

    Args:
        client: a connected KazooClient.

    Raises:
        KazooException, KazooTimeoutError
    """
    return newest_entries(all_entries(client, paths))


def all_entries(client: ZooKeeperClient, paths: ZkPaths) -> list[FeedEntry]:
    """Return every entry with its figures, of former holders too.

    Raises:
        KazooException, KazooTimeoutError
    """
    nodes, figures = ServicePaths(paths), dict[RunKey, FeedFigures]()
    # First, for a service takes them away together: figures without an entry say nothing, entries without figures lie.
    for value in _values(client, nodes.figures):
        figures |= readable_figures(value)
    return [
        with_figures(entry, figures) for value in _values(client, nodes.progress) for entry in readable_entries(value)
    ]


def readable_entries(node: bytes) -> list[FeedEntry]:
    """Return a node's entries; none, and a word in the log, of one that does not decode: others must not rest on it."""
    try:
        return decode_entries(node)
    except CorruptDataError as error:
        log.error("progress of a sorter service is not readable", extra={"code": error.code, "error": str(error)})
        return []


def readable_figures(node: bytes) -> dict[RunKey, FeedFigures]:
    """Return a node's figures; likewise none of one that does not decode."""
    try:
        return decode_figures(node)
    except CorruptDataError as error:
        log.error("figures of a sorter service are not readable", extra={"code": error.code, "error": str(error)})
        return {}


def _values(client: ZooKeeperClient, folder: str) -> list[bytes]:
    """Return what all services' nodes below a folder hold."""
    services = [f"{folder}/{name}" for names in _answers(client.get_children_async, [folder]) for name in names]
    nodes = [
        f"{service}/{number}"
        for service, numbers in zip(services, _answers(client.get_children_async, services, _NO_NAMES), strict=True)
        for number in numbers
    ]
    return [bytes(value) for value, _ in _answers(client.get_async, nodes)]


def _answers(
    ask: Callable[[str], Promise[_Answer]], paths: Collection[str], missing: _Answer | None = None
) -> list[_Answer]:
    """Return the answer for each path, ``missing`` for one that is not there; None: it is left out."""
    answers = []
    for answer in [ask(path) for path in paths]:
        try:
            answers.append(answer.get(timeout=ANSWER_S))
        except NoNodeError:
            if missing is not None:
                answers.append(missing)
    return answers
