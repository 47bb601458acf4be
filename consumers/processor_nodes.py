"""What ZooKeeper says of a changefeed's processors: one ephemeral node each, and who applies which partition."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from schemas.errors import CorruptDataError
from schemas.ids import CaptureId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorInfo:
    """One processor. Its id is new each time it begins, so nothing that is said of it can outlive its memory."""

    processor: CaptureId
    """To its changefeed's coordinator a processor is what a capture is to an upstream's."""
    capture: CaptureId
    """That has started it; '': it was started by hand."""
    version: str
    peer_address: str
    """Where other processors reach it."""
    is_stopping: bool = False
    """It is leaving and takes nothing over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one processor applies."""

    processor: CaptureId
    capture: CaptureId
    partitions: tuple[int, ...]
    is_leader: bool = False


def encode_processor(info: ProcessorInfo) -> bytes:
    """Return the node's bytes."""
    return json.dumps(asdict(info)).encode()


def decode_processor(node: bytes) -> ProcessorInfo:
    """Read a processor's node.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = json.loads(node)
        return ProcessorInfo(
            processor=CaptureId(raw["processor"]),
            capture=CaptureId(raw["capture"]),
            version=str(raw["version"]),
            peer_address=str(raw["peer_address"]),
            is_stopping=bool(raw["is_stopping"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("processor's node does not decode", node=node[:200], reason=repr(error)) from error


def encode_shares(shares: Collection[Share]) -> bytes:
    """Return the node's bytes."""
    return json.dumps([asdict(share) for share in shares]).encode()


def decode_shares(node: bytes) -> list[Share]:
    """Read who applies what; empty: nobody has said so yet.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return [
            Share(
                processor=CaptureId(raw["processor"]),
                capture=CaptureId(raw["capture"]),
                partitions=tuple(int(partition) for partition in raw["partitions"]),
                is_leader=bool(raw["is_leader"]),
            )
            for raw in json.loads(node or b"[]")
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("node of processors does not decode", node=node[:200], reason=repr(error)) from error
