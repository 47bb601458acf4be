"""One message of the event feed, by two descriptions of its bytes: its events, and the rows of large ones by column."""

from collections.abc import Sequence

from producers.pull.core.match.log_rows import COLUMNS_MIN, LogRows
from schemas.proto import cdcpb_pb2, rowcolumns_pb2


class FeedMessage:
    """See the module's text."""

    __slots__ = ("_columns", "_encoded", "parsed")

    def __init__(self, encoded: bytes) -> None:
        """Parse a message.

        Raises:
            DecodeError: it is none.
        """
        self.parsed = cdcpb_pb2.ChangeDataEvent.FromString(encoded)
        self._encoded = encoded
        self._columns: Sequence[rowcolumns_pb2.Event] | None = None

    def rows(self, number: int, event: cdcpb_pb2.Event) -> LogRows:
        """Return the rows of ``event``, which stands at ``number``."""
        rows = event.entries.entries
        if len(rows) < COLUMNS_MIN:
            return LogRows(rows)
        if self._columns is None:
            self._columns = rowcolumns_pb2.ChangeDataEvent.FromString(self._encoded).events
        return LogRows(rows, self._columns[number].entries.columns)
