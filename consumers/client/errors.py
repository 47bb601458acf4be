"""What can go wrong while reading a changefeed's topics."""

from schemas.errors import Action, BusError


class MessageError(BusError):
    """A record is not what the protocol says, or of a kind that this reader cannot read; it names the record."""

    code, action = "client.message", Action.STOP_CHANGEFEED


class NoPositionError(BusError):
    """A record has no ``tidebus-position`` header: another program wrote it, or a tool that copies drops headers."""

    code, action = "client.no_position", Action.STOP_CHANGEFEED


class ProofLostError(BusError):
    """What was materialised is not what the table shows: a DDL has changed rows that no message came for, a message has
    less than a whole row, or rows of a partition that was found later are still coming."""

    code, action = "client.proof_lost", Action.STOP_CHANGEFEED


class StreamUnavailableError(BusError):
    """Kafka, or the schema registry, does not answer."""

    code, action = "client.unavailable", Action.RETRY
