"""What a processor process begins, by the changefeed's sink."""

from consumers.processors.apply.begin import begin_database_work
from consumers.processors.processor import Assignment
from consumers.processors.run import Work
from consumers.processors.storage.begin import begin_storage_work
from schemas.config.parse.origin import NotSupportedYetError


def begin_work(assignment: Assignment) -> Work:
    """Begin this processor's part in a changefeed.

    Raises:
        NotSupportedYetError: no processor writes to such a sink.
        BusError: it cannot begin.
    """
    if assignment.config.uri.server is not None:
        return begin_database_work(assignment)
    if assignment.config.uri.storage is not None:
        return begin_storage_work(assignment)
    raise NotSupportedYetError("no processor writes to this sink yet", scheme=assignment.config.uri.scheme)
