"""One message of the event feed, by two descriptions of its bytes: its events, and the rows of large ones by column."""

from collections.abc import Sequence

from producers.core.log_rows import COLUMNWISE_MIN, LogRows
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

    def rows(self, number: int) -> LogRows:
        """Return the rows of the event that stands at ``number``."""
        rows = self.parsed.events[number].entries.entries
        if len(rows) < COLUMNWISE_MIN:
            return LogRows(rows)
        if self._columns is None:
            self._columns = rowcolumns_pb2.ChangeDataEvent.FromString(self._encoded).events
        return LogRows(rows, self._columns[number].entries.columns)
