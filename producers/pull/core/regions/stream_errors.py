"""What to do about a stream that ended, and about data that cannot be right; the table is in region_errors."""

from typing import Final

from producers.pull.core.regions.region_errors import SAID_CHARS_MAX, ClusterMismatchError, Decision, RecoveryStep
from schemas.errors import Action, BusError, shortened

REOPEN_MS: Final = 1_000
"""A store whose stream broke is left alone so long, as both engines do."""
SHORT_OF_RESOURCES_MS: Final = 5_000
REFUSED_MS: Final = 30_000
"""Between two tries of what only an operator or an upgrade can mend."""


class StreamRefusedError(BusError):
    """A store ends our streams for what we ask; ``fields`` name it and what it said."""

    code, action = "producer.stream_refused", Action.STOP_CHANGEFEED


class StoreMessageTooLargeError(BusError):
    """A store sends a message above our limit again and again."""

    code, action = "producer.message_too_large", Action.STOP_CHANGEFEED


class MalformedMessageError(BusError):
    """A store sent bytes that are no ChangeDataEvent, or one that cannot be."""

    code, action = "producer.malformed_message", Action.STOP_CHANGEFEED


def decide_stream(code: str, details: str, *, multiplexed: bool, where: str) -> Decision:
    """Return what to do when a stream ended with a status.

    Args:
        code: gRPC's name of the status.
        details: what came with it.
        multiplexed: it was EventFeedV2.
        where: names the store and its address, for people.
    """
    details = shortened(details, SAID_CHARS_MAX)
    reason = f"stream to {where} ended: {code} {details}".rstrip()
    wait_ms, old_protocol = REOPEN_MS, False
    error: BusError | None = None
    match code:
        case "UNIMPLEMENTED" if multiplexed:
            reason, wait_ms, old_protocol = f"{where} has no multiplexed event feed", 0, True
        case "UNIMPLEMENTED" | "UNAUTHENTICATED" | "PERMISSION_DENIED":
            wait_ms = REFUSED_MS
        case "RESOURCE_EXHAUSTED" if "larger than max" in details:
            # gRPC's own words for a message above grpc.max_receive_message_length.
            error = StoreMessageTooLargeError("a message is above our limit", store=where, said=details)
        case "RESOURCE_EXHAUSTED":
            wait_ms = SHORT_OF_RESOURCES_MS
        case "INVALID_ARGUMENT":
            error = StreamRefusedError("store refuses a request as invalid", store=where, said=details)
        case "FAILED_PRECONDITION" if "cluster id" in details:
            mismatch = ClusterMismatchError("store belongs to another cluster", store=where, said=details)
            return Decision(kind="cluster_id_mismatch", step=RecoveryStep.FAIL, reason=reason, error=mismatch)
    return Decision(
        kind=f"stream_{code.lower()}",
        step=RecoveryStep.LOCATE,
        reason=reason,
        wait_ms=wait_ms,
        error=error,
        old_protocol=old_protocol,
    )


def silent(where: str, silent_s: float) -> Decision:
    """Return what to do about a stream that says nothing though it should."""
    return Decision(
        kind="stream_silent",
        step=RecoveryStep.LOCATE,
        reason=f"{where} was silent for {silent_s:.0f} s: its stream is opened anew",
    )


def malformed(where: str, what: str) -> Decision:
    """Return what to do about a message that cannot be read: its stream is not to be trusted."""
    error = MalformedMessageError("a message of a store cannot be read", store=where, what=what)
    return Decision(
        kind="malformed_message", step=RecoveryStep.LOCATE, reason=str(error), wait_ms=REOPEN_MS, error=error
    )


def no_room(error: BusError) -> Decision:
    """Return what to do about the region whose open transaction finds no room on disk, until there is some."""
    return Decision(
        kind=error.code.partition(".")[2],
        step=RecoveryStep.REGISTER,
        reason=f"registered anew after {REFUSED_MS // 1000} s: {error}",
        wait_ms=REFUSED_MS,
    )


def bad_rows(error: BusError) -> Decision:
    """Return what to do about rows of one region that a new scan may mend."""
    return Decision(
        kind=error.code.partition(".")[2],
        step=RecoveryStep.REGISTER,
        reason=f"registered anew after {error}",
        error=error,
    )
