"""Captures that live: one ephemeral node each under ``captures/``, named by the capture's id."""

import json
from dataclasses import dataclass

from kazoo.exceptions import NodeExistsError, NoNodeError

from consumers.zookeeper import Session
from schemas.changefeed import ZkPaths
from schemas.errors import CorruptDataError, InvariantBrokenError
from schemas.ids import CaptureId


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """One process. Its id is new at every start, so nothing that is said of it can outlive its memory."""

    capture_id: CaptureId
    address: str
    version: str
    started_at_s: int
    """Unix time by the capture's own clock; for people only."""


def encode_capture(info: CaptureInfo) -> bytes:
    """Return the node's bytes, with TiCDC's names of the fields."""
    return json.dumps(
        {
            "id": info.capture_id,
            "address": info.address,
            "version": info.version,
            "start-timestamp": info.started_at_s,
        }
    ).encode()


def decode_capture(node: bytes) -> CaptureInfo:
    """Read a node.

    Raises:
        CorruptDataError: not JSON, or a field is missing.
    """
    try:
        raw = json.loads(node)
        return CaptureInfo(
            capture_id=CaptureId(raw["id"]),
            address=str(raw["address"]),
            version=str(raw["version"]),
            started_at_s=int(raw["start-timestamp"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("capture node does not decode", node=node[:200], reason=repr(error)) from error


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
                captures.append(decode_capture(client.get(f"{paths.captures}/{name}")[0]))
            except NoNodeError:  # it left between the two calls
                continue
    return captures
