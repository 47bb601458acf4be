"""Which run a processor process begins, by the changefeed's sink."""

from consumers.apply.begin import begin_database
from consumers.processor import Assignment, Run
from consumers.storage.begin import begin_storage
from schemas.config.origin import NotSupportedYetError


def begin(assignment: Assignment) -> Run:
    """Begin the run of a changefeed.

    Raises:
        NotSupportedYetError: no processor writes to such a sink.
        BusError: it cannot begin.
    """
    if assignment.config.uri.server is not None:
        return begin_database(assignment)
    if assignment.config.uri.storage is not None:
        return begin_storage(assignment)
    raise NotSupportedYetError("no processor writes to this sink yet", scheme=assignment.config.uri.scheme)
