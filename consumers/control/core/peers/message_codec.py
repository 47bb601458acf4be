"""The messages of scheduling as TiCDC's ``schedulepb`` (docs/formats/cluster.md §5.2), and back."""

from collections.abc import Callable
from typing import assert_never

from google.protobuf.message import DecodeError

from consumers.control.core.peers.span_codec import decode_span, encode_span
from consumers.control.core.replication.messages import (
    AddTableRequest,
    AddTableResponse,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveTableRequest,
    RemoveTableResponse,
    Request,
    Response,
    Standing,
    Stats,
    TableState,
    TableStatus,
)
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId, TableId, Ts
from schemas.proto import schedulepb_pb2 as pb
from schemas.proto import tablepb_pb2 as tables
from schemas.sink_figures import BUCKETS_MAX, NO_FIGURES, SinkFigures, Spread

_STATES = tuple(TableState)
"""By number: looking one up this way costs a tenth of calling the enumeration."""


def encode_message(message: Message) -> bytes:
    """Return the bytes of a message."""
    header, body = message.header, message.body
    raw = pb.Message(
        header=pb.Message.Header(
            version=header.version,
            owner_revision=pb.OwnerRevision(revision=header.owner_revision),
            processor_epoch=pb.ProcessorEpoch(epoch=header.processor_epoch),
            changefeed_epoch=pb.ChangefeedEpoch(epoch=header.changefeed_epoch),
        ),
        to=message.receiver,
        sequence=message.sequence,
    )
    setattr(raw, "from", message.sender)  # a keyword of Python
    match body:
        case AddTableRequest(span, is_secondary, checkpoint):
            raw.msg_type = pb.MsgDispatchTableRequest
            raw.dispatch_table_request.add_table.CopyFrom(
                pb.AddTableRequest(
                    table_id=span.table_id,
                    is_secondary=is_secondary,
                    checkpoint=_raw_checkpoint(checkpoint),
                    span=encode_span(span),
                )
            )
        case RemoveTableRequest(span):
            raw.msg_type = pb.MsgDispatchTableRequest
            raw.dispatch_table_request.remove_table.CopyFrom(
                pb.RemoveTableRequest(table_id=span.table_id, span=encode_span(span))
            )
        case AddTableResponse(status):
            raw.msg_type = pb.MsgDispatchTableResponse
            raw.dispatch_table_response.add_table.CopyFrom(
                pb.AddTableResponse(status=_raw_status(status), checkpoint=_raw_checkpoint(status.checkpoint))
            )
        case RemoveTableResponse(status):
            raw.msg_type = pb.MsgDispatchTableResponse
            raw.dispatch_table_response.remove_table.CopyFrom(
                pb.RemoveTableResponse(status=_raw_status(status), checkpoint=_raw_checkpoint(status.checkpoint))
            )
        case Heartbeat():
            raw.msg_type = pb.MsgHeartbeat
            raw.heartbeat.CopyFrom(_raw_heartbeat(body))
        case HeartbeatResponse(statuses, liveness):
            raw.msg_type = pb.MsgHeartbeatResponse
            raw.heartbeat_response.tables.extend(map(_raw_status, statuses))
            raw.heartbeat_response.liveness = liveness
        case _:
            assert_never(body)
    return raw.SerializeToString()


def decode_message(content: bytes) -> Message:
    """Read a message.

    Raises:
        CorruptDataError: not a message, or of a type or with a state that this version does not know.
    """
    raw = pb.Message()
    try:
        raw.ParseFromString(content)
        read = _BODIES.get(raw.msg_type)
        if read is None:
            raise CorruptDataError("unknown type of message", type=raw.msg_type, allowed=sorted(_BODIES))
        return Message(
            Header(
                raw.header.version,
                raw.header.owner_revision.revision,
                raw.header.processor_epoch.epoch,
                raw.header.changefeed_epoch.epoch,
            ),
            CaptureId(getattr(raw, "from")),
            CaptureId(raw.to),
            raw.sequence,
            read(raw),
        )
    except (DecodeError, ValueError, IndexError) as error:
        raise CorruptDataError("message does not decode", size=len(content), reason=repr(error)) from error


def _raw_checkpoint(checkpoint: Checkpoint) -> tables.Checkpoint:
    return tables.Checkpoint(
        checkpoint_ts=checkpoint.checkpoint_ts,
        resolved_ts=checkpoint.resolved_ts,
        last_synced_ts=checkpoint.last_synced_ts,
    )


def _checkpoint(raw: tables.Checkpoint) -> Checkpoint:
    return Checkpoint(Ts(raw.checkpoint_ts), Ts(raw.resolved_ts), Ts(raw.last_synced_ts))


def _raw_status(status: TableStatus) -> tables.TableStatus:
    span, stats, standing = status.span, status.stats, status.standing
    return tables.TableStatus(
        table_id=span.table_id,
        state=tables.TableState.ValueType(status.state),
        checkpoint=_raw_checkpoint(status.checkpoint),
        span=encode_span(span),
        stats=None if stats is None else _raw_stats(stats),
        standing=None if standing is None else _raw_standing(standing),
    )


def _status(raw: tables.TableStatus) -> TableStatus:
    stats = _stats(raw.stats) if raw.HasField("stats") else None
    standing = _standing(raw.standing) if raw.HasField("standing") else None
    return TableStatus(decode_span(raw.span), _STATES[raw.state], _checkpoint(raw.checkpoint), stats, standing)


def _raw_standing(standing: Standing) -> tables.Standing:
    return tables.Standing(
        ddl=standing.ddl,
        offset=standing.offset,
        barrier_ts=standing.barrier_ts,
        rows_total=standing.rows_total,
        windows_proven=standing.windows_proven,
        windows_unproven=standing.windows_unproven,
        sink=None if standing.sink == NO_FIGURES else _raw_figures(standing.sink),
    )


def _standing(raw: tables.Standing) -> Standing:
    return Standing(
        ddl=raw.ddl,
        offset=raw.offset,
        barrier_ts=Ts(raw.barrier_ts),
        rows_total=raw.rows_total,
        windows_proven=raw.windows_proven,
        windows_unproven=raw.windows_unproven,
        sink=_figures(raw.sink) if raw.HasField("sink") else NO_FIGURES,
    )


def _raw_figures(figures: SinkFigures) -> tables.SinkFigures:
    # All that processors count of a partition; DDL is the leader's own.
    return tables.SinkFigures(
        flushes_us=_raw_spread(figures.flushes_us),
        queued_us=_raw_spread(figures.queued_us),
        batch_rows=_raw_spread(figures.batch_rows),
        rounds_us=_raw_spread(figures.rounds_us),
        files=figures.files,
        file_bytes=figures.file_bytes,
    )


def _figures(raw: tables.SinkFigures) -> SinkFigures:
    return SinkFigures(
        flushes_us=_spread(raw.flushes_us),
        queued_us=_spread(raw.queued_us),
        batch_rows=_spread(raw.batch_rows),
        rounds_us=_spread(raw.rounds_us),
        files=raw.files,
        file_bytes=raw.file_bytes,
    )


def _raw_spread(spread: Spread) -> tables.Spread:
    return tables.Spread(counts=spread.counts, total=spread.total)


def _spread(raw: tables.Spread) -> Spread:
    return Spread(tuple(raw.counts[: BUCKETS_MAX + 1]), raw.total)


def _raw_stats(stats: Stats) -> tables.Stats:
    stages = {stage: _raw_checkpoint(checkpoint) for stage, checkpoint in stats.stage_checkpoints.items()}
    return tables.Stats(region_count=stats.region_count, barrier_ts=stats.barrier_ts, stage_checkpoints=stages)


def _stats(raw: tables.Stats) -> Stats:
    return Stats(
        region_count=raw.region_count,
        barrier_ts=Ts(raw.barrier_ts),
        stage_checkpoints={stage: _checkpoint(checkpoint) for stage, checkpoint in raw.stage_checkpoints.items()},
    )


def _raw_heartbeat(heartbeat: Heartbeat) -> pb.Heartbeat:
    barrier = heartbeat.barrier
    return pb.Heartbeat(
        is_stopping=heartbeat.is_stopping,
        spans=map(encode_span, heartbeat.spans),
        collect_stats=heartbeat.collect_stats,
        all_spans=heartbeat.all_spans,
        barrier=None
        if barrier is None
        else pb.Barrier(
            global_barrier_ts=barrier.global_barrier_ts,
            table_barriers=(
                pb.TableBarrier(table_id=table, barrier_ts=ts) for table, ts in barrier.table_barriers.items()
            ),
            resolved_ts=barrier.resolved_ts,
            passed_ddl=barrier.passed_ddl,
            schemas_ts=barrier.schemas_ts,
        ),
    )


def _dispatch_request(raw: pb.Message) -> Request:
    request = raw.dispatch_table_request
    match request.WhichOneof("request"):
        case "add_table":
            add = request.add_table
            return AddTableRequest(decode_span(add.span), add.is_secondary, _checkpoint(add.checkpoint))
        case "remove_table":
            return RemoveTableRequest(decode_span(request.remove_table.span))
        case _:
            raise CorruptDataError("request without a body")


def _dispatch_response(raw: pb.Message) -> Response:
    response = raw.dispatch_table_response
    match response.WhichOneof("response"):
        case "add_table":
            return AddTableResponse(_status(response.add_table.status))
        case "remove_table":
            return RemoveTableResponse(_status(response.remove_table.status))
        case _:
            raise CorruptDataError("response without a body")


def _heartbeat(raw: pb.Message) -> Heartbeat:
    heartbeat = raw.heartbeat
    barrier = None
    if heartbeat.HasField("barrier"):
        barriers = {
            TableId(table_barrier.table_id): Ts(table_barrier.barrier_ts)
            for table_barrier in heartbeat.barrier.table_barriers
        }
        raw_barrier = heartbeat.barrier
        barrier = Barrier(
            Ts(raw_barrier.global_barrier_ts),
            barriers,
            Ts(raw_barrier.resolved_ts),
            raw_barrier.passed_ddl,
            Ts(raw_barrier.schemas_ts),
        )
    return Heartbeat(
        spans=tuple(map(decode_span, heartbeat.spans)),
        is_stopping=heartbeat.is_stopping,
        collect_stats=heartbeat.collect_stats,
        barrier=barrier,
        all_spans=heartbeat.all_spans,
    )


def _heartbeat_response(raw: pb.Message) -> HeartbeatResponse:
    response = raw.heartbeat_response
    return HeartbeatResponse(tuple(map(_status, response.tables)), Liveness(response.liveness))


_BODIES: dict[int, Callable[[pb.Message], Request | Response]] = {
    pb.MsgDispatchTableRequest: _dispatch_request,
    pb.MsgDispatchTableResponse: _dispatch_response,
    pb.MsgHeartbeat: _heartbeat,
    pb.MsgHeartbeatResponse: _heartbeat_response,
}
