"""What can go wrong while the local parts are fetched and started."""

from schemas.errors import Action, BusError


class MachineError(BusError):
    """Something that the README asks of the machine is missing: Python, Java, a port, memory, disk."""

    code, action = "bus.machine", Action.STOP_CHANGEFEED


class JarsError(BusError):
    """Ivy could not resolve or write the jars."""

    code, action = "bus.jars", Action.RETRY


class ChildError(BusError):
    """A child process did not become ready, or ended by itself; ``fields`` name its log."""

    code, action = "bus.child", Action.RETRY
