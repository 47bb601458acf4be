"""Captures that live: one ephemeral node each under ``captures/``, named by the capture's id."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from edges.zookeeper.node_cache import Node, NodeCache
from edges.zookeeper.session import Session
from schemas.errors import BusError, CorruptDataError, InvariantBrokenError
from schemas.ids import CaptureId
from schemas.json_text import read_bool, read_int, read_json, read_text
from schemas.nodes.changefeed import ZkPaths

log = logging.getLogger(__name__)

TEXT_CHARS_MAX: Final = 1_000
"""Of an address or a version."""
RECHECK_S = 1.0
"""A watch tells of a change at once; this is for what a server of ZooKeeper hears late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """One process. Its id is new at every start, so nothing that is said of it can outlive its memory."""

    capture_id: CaptureId
    address: str
    version: str
    started_at_s: int
    """Unix time by the capture's own clock; for people only."""
    peer_address: str = ""
    """Where other captures reach it; '': one of a version that talked to nobody."""
    is_stopping: bool = False
    """It is leaving and takes nothing over."""
    service_id: str = ""
    """Of the sorter service that it runs; '': it runs none."""


def encode_capture(info: CaptureInfo) -> bytes:
    """Return the node's bytes, with TiCDC's names of the fields."""
    return json.dumps(
        {
            "id": info.capture_id,
            "address": info.address,
            "version": info.version,
            "start-timestamp": info.started_at_s,
            "peer-address": info.peer_address,
            **({"stopping": True} if info.is_stopping else {}),
            **({"sorter-service": info.service_id} if info.service_id else {}),
        }
    ).encode()


def decode_capture(node: bytes, name: str) -> CaptureInfo:
    """Read the node of this name.

    Raises:
        CorruptDataError: not JSON, a field is missing, what is in it cannot be, or it speaks for another capture.
    """
    try:
        raw = read_json(node)
        if raw["id"] != name:
            raise ValueError(f"it has the id {str(raw['id'])[:40]!r}")
        return CaptureInfo(
            capture_id=CaptureId(name),
            address=read_text(raw["address"], TEXT_CHARS_MAX),
            version=read_text(raw["version"], TEXT_CHARS_MAX),
            started_at_s=read_int(raw["start-timestamp"], bits=63),
            peer_address=read_text(raw.get("peer-address", ""), TEXT_CHARS_MAX),
            is_stopping=read_bool(raw.get("stopping", False)),
            service_id=read_text(raw.get("sorter-service", ""), TEXT_CHARS_MAX),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            "capture node does not decode", name=name, node=node[:200], reason=repr(error)
        ) from error


def register_capture(session: Session, paths: ZkPaths, info: CaptureInfo) -> None:
    """Make the capture known for as long as ``session`` lives.

    Raises:
        InvariantBrokenError: the id is taken, though ids are new at every start.
        BusError: ZooKeeper failed.
    """
    node = f"{paths.captures}/{info.capture_id}"
    with session.requests("registering the capture") as client:
        try:
            client.create(node, encode_capture(info), ephemeral=True, makepath=True)
        except NodeExistsError as error:
            raise InvariantBrokenError("capture id is taken", capture=info.capture_id, node=node) from error


def mark_stopping(session: Session, paths: ZkPaths, info: CaptureInfo) -> None:
    """Let the others know that the capture is leaving, so that none that leaves, too, waits for it.

    Raises:
        BusError: ZooKeeper failed.
    """
    with session.requests("marking the capture as stopping") as client:
        client.set(f"{paths.captures}/{info.capture_id}", encode_capture(replace(info, is_stopping=True)))


def list_captures(session: Session, paths: ZkPaths) -> list[CaptureInfo]:
    """Return the captures that live, by id.

    Raises:
        BusError: ZooKeeper failed, or a node does not decode.
    """
    captures = []
    with session.requests("listing captures") as client:
        try:
            names = client.get_children(paths.captures)
        except NoNodeError:
            return []
        for name in sorted(names):
            try:
                node, stat = client.get(f"{paths.captures}/{name}")
            except NoNodeError:  # it left between the two calls
                continue
            if (info := _read_capture(node, int(stat.ephemeralOwner), name)) is not None:
                captures.append(info)
    return captures


def _read_capture(node: bytes, session_id: int, name: str) -> CaptureInfo | None:
    """Return a capture; None, and a line in the log: the node is no session's, so no capture's.

    Raises:
        CorruptDataError: it does not decode, and somebody lives behind it.
    """
    try:
        info = decode_capture(node, name)
    except CorruptDataError as error:
        if session_id:
            raise
        _pass_over(name, error)
        return None
    if not session_id:
        _pass_over(name, CorruptDataError("a capture's node must be its session's", name=name))
        return None
    return info


def _pass_over(name: str, error: CorruptDataError) -> None:
    log.warning("capture's node is passed over", extra={"node": name, "code": error.code, "error": str(error)})


class CaptureWatch:
    """Knows the captures that live, as ZooKeeper last said: safe to use from any thread, close it.

    While ZooKeeper does not answer it stays as it was. That is safe for as long as the caller's own lease holds: a
    capture whose node is gone has stopped landing before, and is only given up later.
    """

    def __init__(
        self, session: Session, paths: ZkPaths, on_change: Callable[[Mapping[CaptureId, CaptureInfo]], None]
    ) -> None:
        """Look once, then again at each change. ``on_change`` runs in a thread of ours, or of :meth:`refresh`.

        Raises:
            BusError: ZooKeeper failed, or a node does not decode.
        """
        self._on_change = on_change
        self._looking = threading.Lock()
        self._closing = threading.Event()
        self._captures: Mapping[CaptureId, CaptureInfo] = MappingProxyType({})
        self._cache = NodeCache(session, [f"{paths.captures}/*"])
        self._read: dict[str, tuple[Node, CaptureInfo | None]] = {}
        """What was made of each node, by its path."""
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="capture-watch", daemon=True)
        self._thread.start()

    @property
    def captures(self) -> Mapping[CaptureId, CaptureInfo]:
        """Whoever is registered; the same object until that changes."""
        return self._captures

    def refresh(self) -> Mapping[CaptureId, CaptureInfo]:
        """Look now, past what a server of ZooKeeper may not have heard yet.

        Raises:
            BusError: ZooKeeper failed, or a node does not decode.
        """
        with self._looking:
            self._cache.refresh(is_exact=True)
            nodes = self._cache.nodes
            infos = [self._info(path, node) for path, node in sorted(nodes.items())]
            self._read = {path: read for path, read in self._read.items() if path in nodes}
            captures = {info.capture_id: info for info in infos if info is not None}
            if captures != self._captures:
                self._captures = MappingProxyType(captures)
                self._on_change(self._captures)
            return self._captures

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        self._cache.close()
        self._thread.join(RECHECK_S)

    def _info(self, path: str, node: Node) -> CaptureInfo | None:
        if path in self._read and self._read[path][0] is node:
            return self._read[path][1]
        name = path.rpartition("/")[2]
        try:
            info = _read_capture(node.value, node.session_id, name)
        except CorruptDataError as error:
            # It lives, and may be landing: one that is known stays so, and of a stranger nothing may be assumed.
            info = self._captures.get(CaptureId(name))
            if info is None:
                raise
            _pass_over(name, error)
        self._read[path] = node, info
        return info

    def _run(self) -> None:
        failing = False
        while True:
            self._cache.wait(RECHECK_S)
            if self._closing.is_set():
                return
            try:
                self.refresh()
                failing = False
            except BusError as error:
                if not failing and not self._closing.is_set():
                    log.warning("captures cannot be listed; going by the last list", extra={"error": str(error)})
                failing = True
                self._closing.wait(RECHECK_S)
