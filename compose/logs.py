"""Logs of the bus's processes: one line an event, the constant message and its ids, as text or as JSON.

Text: ``2026-02-03T04:05:06.789Z INFO    sorters.run.job changefeed runs changefeed=orders``. JSON has the same under
``time``, ``level``, ``logger``, ``message``, and each id under its own name.

Names of tables and values come from users upstream, who may put line breaks and terminal sequences into them. So each
control character is written as an escape, and a traceback, the one thing of several lines, is set off line by line:
whatever begins a line with a time has been logged.
"""

import json
import logging
import math
import os
import sys
import threading
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final

from compose.asked_stacks import log_stacks_on_signal
from compose.escapes import escaped
from compose.log_files import opener
from schemas.errors import ConfigError
from schemas.masking import mask_text, mask_value
from schemas.redaction import (
    REDACT_VARIABLE,
    Redaction,
    parse_redaction,
    redacted,
    redacted_stack,
    redaction,
    set_redaction,
    shown_field,
)

STACK_INDENT = "    | "
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
FILE_BYTES_MAX: Final = 300 << 20
"""TiCDC's log.file.max-size."""
FILES_KEPT: Final = 10
_OURS: Final = frozenset({"compose", "consumers", "edges", "producers", "schemas", "sorters", "tidebus"})
_log = logging.getLogger(__name__)
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class LineFormatter(logging.Formatter):
    """The message first, then its ids as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback below it if there is one."""
        extra = " ".join(f"{name}={value}" for name, value in _ids(record).items())
        said = mask_text(f"{_message(record)} {extra}".rstrip())
        line = escaped(f"{_at(record)} {record.levelname:<7} {record.name} {said}")
        if not record.exc_info:
            return line
        stack = (STACK_INDENT + escaped(mask_text(part)) for part in _stack(self, record).split("\n"))
        return "\n".join([line, *stack])


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what JSON has no form for is its text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback is in it as ``stack``."""
        shown: dict[str, object] = {
            "time": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        # An id never hides what each line has.
        shown |= {f"{name}_" if name in shown else name: value for name, value in _ids(record).items()}
        if record.exc_info:
            shown["stack"] = _stack(self, record)
        return escaped(json.dumps(mask_value(shown), ensure_ascii=False))


def _ids(record: logging.LogRecord) -> dict[str, object]:
    return {name: shown_field(name, value) for name, value in vars(record).items() if name not in _STANDARD}


def _message(record: logging.LogRecord) -> str:
    """Return the message. Ours are constant; those of others may quote what they were given."""
    if redaction() is Redaction.OFF:
        return record.getMessage()
    template = str(record.msg)
    if record.name.partition(".")[0] not in _OURS:
        return redacted(record.getMessage())
    return template if not record.args else f"{template}: {redacted(str(record.args))}"


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback; when it is redacted its lines of code, and of each exception the kind."""
    assert record.exc_info is not None
    error = record.exc_info[1]
    if redaction() is Redaction.OFF or error is None:
        return formatter.formatException(record.exc_info)
    return redacted_stack(error)


def _log_what_nobody_caught(
    kind: type[BaseException], error: BaseException | None, stack: TracebackType | None
) -> None:
    """Log in place of the interpreter, which would write an exception's text as it is."""
    if error is not None and not issubclass(kind, KeyboardInterrupt):
        _log.critical("exception that nobody has caught", exc_info=(kind, error, stack))


def _at(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class NotAgain(logging.Filter):
    """Passes a line once within ``quiet_s``. A ZooKeeper that is away is told of at each try to reach it."""

    def __init__(self, quiet_s: float = 60.0) -> None:
        super().__init__()
        self._quiet_s = quiet_s
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        text, at_s = record.getMessage(), time.monotonic()
        if at_s - self._said.get(text, -math.inf) < self._quiet_s:
            return False
        self._said = {said: when for said, when in self._said.items() if at_s - when < self._quiet_s} | {text: at_s}
        return True


_not_again: Final = NotAgain()


class _LogFile(RotatingFileHandler):
    """Turned over at its largest size; the next one has the mode of the one before."""

    def _open(self) -> TextIOWrapper:
        stream = open(self.baseFilename, "a", encoding=self.encoding, opener=opener)  # noqa: SIM115 # base's
        former = Path(f"{self.baseFilename}.1")
        if not stream.tell() and former.exists():
            os.fchmod(stream.fileno(), former.stat().st_mode & 0o777)
        return stream


def start_logging(
    *,
    level: str = "info",
    form: str = "text",
    file: Path | None = None,
    file_bytes_max: int = FILE_BYTES_MAX,
    files_kept: int = FILES_KEPT,
    redact: str = "off",
) -> None:
    """Let every logger of this process write, to standard error or to a file that is turned over at its largest size.

    Processes that this one starts log in the same way, but to standard error. On SIGUSR1 it says where each thread
    stands. ``redact``: a word of :func:`schemas.redaction.parse_redaction`; what is none hides all.

    Raises:
        ConfigError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = _LogFile(file, maxBytes=file_bytes_max, backupCount=files_kept)
        except OSError as error:
            raise ConfigError("log file cannot be written", key="log-file", file=file, reason=error) from error
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    os.environ["TIDEBUS_LOG_LEVEL"], os.environ["TIDEBUS_LOG_FORMAT"] = level, form
    set_redaction(parse_redaction(redact) or Redaction.ON)
    os.environ[REDACT_VARIABLE] = redaction().value
    if redaction() is not Redaction.OFF:
        sys.excepthook = _log_what_nobody_caught
        threading.excepthook = lambda of: _log_what_nobody_caught(of.exc_type, of.exc_value, of.exc_traceback)
    for noisy in ("azure", "kazoo", "urllib3", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kazoo.client").addFilter(_not_again)
    # It logs every error that crosses from Python to the JVM and back with two tracebacks; the query reports it too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # It would tell of each start and stop of the API's server, which we do ourselves.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    log_stacks_on_signal()


def log_to_stderr() -> None:
    """Log as text, or as whoever started this process does."""
    level, form = os.environ.get("TIDEBUS_LOG_LEVEL", "info"), os.environ.get("TIDEBUS_LOG_FORMAT", "text")
    redact = os.environ.get(REDACT_VARIABLE, "off")
    start_logging(level=level if level in LEVELS else "info", form=form, redact=redact)
