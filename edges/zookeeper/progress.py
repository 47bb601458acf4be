"""How far running changefeeds are, asked of ZooKeeper once; who looks again and again has a cache of nodes.

A sorter service folds a changefeed's entry into its ``status`` when it ends its run. So entries are read first: who
reads them after the status can miss what was folded between the two, and see a checkpoint go back.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError

from edges.zookeeper.client import Promise, ZooKeeperClient
from edges.zookeeper.node_cache import ANSWER_S
from schemas.errors import CorruptDataError
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import FeedFigures, RunKey, decode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedEntry, FeedName, decode_entries, newest_entries, with_figures

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_NO_NAMES: list[str] = []
_GONE: tuple[bytes, Any] = b"", None

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
    for path, value in _values(client, nodes.figures):
        figures |= readable_figures(value, path)
    return [
        with_figures(entry, figures)
        for path, value in _values(client, nodes.progress)
        for entry in readable_entries(value, path)
    ]


def readable_entries(node: bytes, path: str) -> list[FeedEntry]:
    """Return a node's entries; none, and a word in the log, of one that does not decode: others must not rest on it."""
    try:
        return decode_entries(node)
    except CorruptDataError as error:
        extra = {"code": error.code, "path": path, "error": str(error)}
        log.error("progress of a sorter service is not readable", extra=extra)
        return []


def readable_figures(node: bytes, path: str) -> dict[RunKey, FeedFigures]:
    """Return a node's figures; likewise none of one that does not decode."""
    try:
        return decode_figures(node)
    except CorruptDataError as error:
        extra = {"code": error.code, "path": path, "error": str(error)}
        log.error("figures of a sorter service are not readable", extra=extra)
        return {}


def _values(client: ZooKeeperClient, folder: str) -> list[tuple[str, bytes]]:
    """Return the paths of all services' nodes below a folder, and what they hold."""
    services = [f"{folder}/{name}" for names in _answers(client.get_children_async, [folder]) for name in names]
    nodes = [
        f"{service}/{number}"
        for service, numbers in zip(services, _answers(client.get_children_async, services, _NO_NAMES), strict=True)
        for number in numbers
    ]
    answers = _answers(client.get_async, nodes, _GONE)
    return [(path, bytes(answer[0])) for path, answer in zip(nodes, answers, strict=True) if answer is not _GONE]


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
