"""What ZooKeeper says of a changefeed's processors: a node each, who applies which partition, and what is applied."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from kazoo.exceptions import NoNodeError

from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, Ts
from schemas.json_text import read_bool, read_int, read_json, read_text
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedStatus, ZkPaths
from schemas.sink.topic import has_processors, life_of
from schemas.sink_figures import NO_FIGURES, SinkFigures, figures_json, read_figures


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
        raw = read_json(node)
        return ProcessorInfo(
            processor=CaptureId(read_text(raw["processor"])),
            capture=CaptureId(read_text(raw["capture"])),
            version=read_text(raw["version"]),
            peer_address=read_text(raw["peer_address"]),
            is_stopping=read_bool(raw["is_stopping"]),
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
                processor=CaptureId(read_text(raw["processor"])),
                capture=CaptureId(read_text(raw["capture"])),
                partitions=tuple(read_int(partition, bits=31) for partition in raw["partitions"]),
                is_leader=read_bool(raw["is_leader"]),
            )
            for raw in read_json(node or b"[]")
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("node of processors does not decode", node=node[:200], reason=repr(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedNode:
    """How far processors are, in one life of a changefeed."""

    life: str
    checkpoint_ts: Ts
    rows_total: int = 0
    """Since the processor started."""
    ddl_total: int = 0
    windows_proven: int = 0
    """Of flow proofs, likewise: windows that came out even."""
    windows_unproven: int = 0
    """And those of which not all was seen."""
    sink: SinkFigures = NO_FIGURES
    """Of their writes, since they have reported to this leader."""


def encode_applied(applied: AppliedNode) -> bytes:
    """Return the node's bytes."""
    return json.dumps(
        {
            "life": applied.life,
            "checkpoint_ts": applied.checkpoint_ts,
            "rows_total": applied.rows_total,
            "ddl_total": applied.ddl_total,
            "windows_proven": applied.windows_proven,
            "windows_unproven": applied.windows_unproven,
            **({"sink": figures_json(applied.sink)} if applied.sink != NO_FIGURES else {}),
        }
    ).encode()


def decode_applied(node: bytes) -> AppliedNode:
    """Read an ``applied`` node.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = read_json(node)
        return AppliedNode(
            life=read_text(raw["life"]),
            checkpoint_ts=Ts(read_int(raw["checkpoint_ts"], bits=63)),
            rows_total=read_int(raw["rows_total"]),
            ddl_total=read_int(raw["ddl_total"]),
            # Absent from nodes of earlier versions.
            windows_proven=read_int(raw.get("windows_proven", 0)),
            windows_unproven=read_int(raw.get("windows_unproven", 0)),
            sink=read_figures(raw.get("sink", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("applied node does not decode", node=node[:200], reason=repr(error)) from error


def applied_ts(info: ChangefeedInfo, applied: AppliedNode | None) -> Ts:
    """Return up to which ts the destination holds the changefeed's rows."""
    return info.start_ts if applied is None or applied.life != life_of(info) else applied.checkpoint_ts


def read_applied_ts(session: Session, paths: ZkPaths, info: ChangefeedInfo) -> Ts | None:
    """Return up to which ts the destination holds the rows of a changefeed that has processors; None: it has none, or
    nobody can tell: its leader writes a node that does not decode anew.

    It changes all the time: who looks again and again asks only where it counts.

    Raises:
        ZooKeeperError, LeaseLostError
    """
    if not has_processors(info.sink_uri):
        return None
    path = paths.changefeed_applied(info.namespace, info.changefeed_id)
    with session.requests("reading what is applied") as client:
        try:
            return applied_ts(info, decode_applied(client.get_async(path).get(timeout=ANSWER_S)[0]))
        except NoNodeError:
            return applied_ts(info, None)
        except CorruptDataError:
            return None


def with_applied(info: ChangefeedInfo, status: ChangefeedStatus, applied: AppliedNode | None) -> ChangefeedStatus:
    """Return a status as users mean it: the checkpoint is what the destination holds, resolved what the sorter wrote.

    A changefeed is finished only when all is applied.
    """
    done = applied_ts(info, applied)
    state = status.state
    if state == "finished" and info.target_ts is not None and done < info.target_ts:
        state = "normal"
    return replace(
        status,
        state=state,
        checkpoint_ts=done,
        resolved_ts=status.checkpoint_ts,
        rows_total=0 if applied is None else applied.rows_total,
        windows_proven=0 if applied is None else applied.windows_proven,
        windows_unproven=0 if applied is None else applied.windows_unproven,
    )
