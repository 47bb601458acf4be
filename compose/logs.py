"""Logs of the bus's processes: one line an event, the constant message first, then its ids as ``name=value``."""

import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """``2026-02-03T04:05:06.789Z INFO  sorters.job changefeed runs changefeed=orders``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback below it if there is one."""
        extra = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD)
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        line = f"{at} {record.levelname:<7} {record.name} {record.getMessage()} {extra}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_to_stderr(level: int = logging.INFO) -> None:
    """Let every logger of this process write lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("kazoo", "urllib3", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It logs every error that crosses from Python to the JVM and back with two tracebacks; the query reports it too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
