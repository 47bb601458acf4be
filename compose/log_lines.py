"""The newest warnings and errors that this process has logged, kept for the console; the log itself is elsewhere."""

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from compose.logs import JsonFormatter
from schemas.errors import shortened

LINES_MAX: Final = 500
_FIELDS_MAX: Final = 40
_TEXT_CHARS_MAX: Final = 4_000


class RecentLines(logging.Handler):
    """Keeps records of level WARNING and above, as JSON logs have them: masked, and redacted as the log was then."""

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(JsonFormatter())
        self._lines = deque[Mapping[str, Any]](maxlen=lines_max)
        self._of_lines = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; the oldest one goes. What is very long is cut."""
        try:
            shown = json.loads(self.format(record))
            cut = {name: _cut(value) for name, value in list(shown.items())[:_FIELDS_MAX]}
        except Exception:  # as every handler does: a log line stops nothing
            self.handleError(record)
            return
        with self._of_lines:
            self._lines.append(cut)

    def lines(self) -> Sequence[Mapping[str, Any]]:
        """Return what is kept, oldest first."""
        with self._of_lines:
            return list(self._lines)


def _cut(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _TEXT_CHARS_MAX)


_begun: Final = threading.Lock()


def keep_recent_lines() -> RecentLines:
    """Return what this process keeps of its log; the first call begins it."""
    root = logging.getLogger()
    with _begun:
        for handler in root.handlers:
            if isinstance(handler, RecentLines):
                return handler
        kept = RecentLines()
        root.addHandler(kept)
        return kept
