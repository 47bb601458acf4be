"""What a processor process begins, by the changefeed's sink."""

from consumers.processors.apply.begin import begin_database_work
from consumers.processors.processor import ProcessorInputs
from consumers.processors.run import Work
from consumers.processors.storage.begin import begin_storage_work
from schemas.config.parse.origin import NotSupportedYetError


def begin_work(inputs: ProcessorInputs) -> Work:
    """Begin this processor's part in a changefeed.

    Raises:
        NotSupportedYetError: no processor writes to such a sink.
        BusError: it cannot begin.
    """
    if inputs.config.uri.server is not None:
        return begin_database_work(inputs)
    if inputs.config.uri.storage is not None:
        return begin_storage_work(inputs)
    raise NotSupportedYetError("no processor writes to this sink yet", scheme=inputs.config.uri.scheme)
