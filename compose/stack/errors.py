"""What can go wrong while the local parts are fetched and started."""

from schemas.errors import Action, BusError


class MachineError(BusError):
    """Something that the README asks of the machine is missing: Python, Java, a port, memory, disk."""

    code, action = "bus.machine", Action.STOP_CHANGEFEED


class JarsError(BusError):
    """Ivy could not resolve or write the jars."""

    code, action = "bus.jars", Action.RETRY


class JarChecksumError(BusError):
    """A jar that was fetched is not the one that this version pins by its checksum: it is not used."""

    code, action = "bus.jar_checksum", Action.STOP_CHANGEFEED


class JarsMissingError(BusError):
    """Spark's Kafka connector is not on this machine; a process that serves fetches nothing: run `tidebus setup`."""

    code, action = "bus.jars_missing", Action.STOP_CHANGEFEED


class ChildError(BusError):
    """A child process cannot be started, did not become ready, or ended by itself; ``fields`` name its log."""

    code, action = "bus.child", Action.RETRY
