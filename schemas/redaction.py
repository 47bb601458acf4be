"""What users wrote (values and keys of rows, statements), kept out of logs and errors, as TiCDC's ``redact-info-log``.

Modes are pingcap/ticdc's (``pkg/util/redact.go``): ``on`` writes ``?`` instead, ``marker`` puts it between ``‹`` and
``›`` and doubles those within. What is shown is listed here by name, and all else is taken for a user's: who gives an
error or a log line a new field has to say that nothing of a user stands in it. So what a server, a library or the
interpreter says is hidden too: a database quotes the value that it refuses.

The mode is the process's, and is set when that begins to log: texts of errors are made in every layer.
"""

import traceback
from collections.abc import Mapping
from enum import Enum
from typing import Final

REDACT_VARIABLE: Final = "TIDEBUS_REDACT_INFO_LOG"
"""Environment variable that hands a process's mode to those that it starts; Spark hands it to workers."""


class Redaction(Enum):
    """What becomes of a user's text."""

    OFF = "off"
    MARKER = "marker"
    ON = "on"


_WORDS: Final = {
    **dict.fromkeys(("off", "false", "0", "disable", "disabled", ""), Redaction.OFF),
    **dict.fromkeys(("on", "true", "1", "enable", "enabled"), Redaction.ON),
    **dict.fromkeys(("marker", "mark"), Redaction.MARKER),
}
SHOWN_NAMES: Final = frozenset(
    {
        *("addr", "address", "addresses", "all", "allowed", "asked_s", "bootstrap_servers", "bytes", "ca", "call"),
        *("capture", "captures", "cert", "changefeed", "changefeeds", "chunk", "client", "cluster", "code", "column"),
        *("columns", "committed", "count", "cuts", "depth", "elected", "epoch", "errno", "failures_at_end", "field"),
        *("file", "files", "flag", "folder", "frontier_partitions", "held", "holder", "host", "hosts", "in_s", "java"),
        *("kafka", "kind", "length", "level", "library", "listen", "log", "logs", "master", "may_heal", "method"),
        *("mode", "namespace", "new_table", "offset", "option", "owner", "owner_rev", "part", "partition"),
        *("partition_num", "partitions", "parts", "path", "pd_cluster", "peer", "phase", "pid", "pinned", "precision"),
        *("processor", "records", "region_id", "renamed", "replication", "replication_factor", "revision", "rows"),
        *("scan", "schema", "schema_id", "segments", "seconds", "sender", "sequence", "server", "service", "session"),
        *("setting", "sha256", "sink", "site", "size", "slot", "slots", "state", "status", "storage", "store"),
        *("subject", "table", "tables", "tag", "tls", "topic", "topic_id", "topics", "tries", "tries_left", "ts"),
        *("txn_source", "tz", "type", "upstream", "url", "user", "users", "variable", "version", "versions"),
        *("warehouse", "what_helps"),
    }
)
"""Fields of errors and of log lines that are shown, beside those that end like ``_SHOWN_ENDS``."""
_SHOWN_ENDS: Final = ("_ts", "_id", "_s", "_ms", "_bytes", "_max", "_min", "_rev", "_offset")


class Shown(str):
    """A text in which nothing of a user's is left: that of an error, when it was made by :func:`shown_field`."""

    __slots__ = ()


class _Mode:
    now = Redaction.OFF


def parse_redaction(word: str) -> Redaction | None:
    """Return the mode of one of TiCDC's words; None: it is none of them.

    >>> parse_redaction(" True "), parse_redaction("maybe")
    (<Redaction.ON: 'on'>, None)
    """
    return _WORDS.get(word.strip().lower())


def set_redaction(mode: Redaction) -> None:
    """Redact so from here on, in all of this process."""
    _Mode.now = mode


def redaction() -> Redaction:
    """Return this process's mode."""
    return _Mode.now


def redacted(text: str) -> str:
    """Return what stands for a user's text."""
    match _Mode.now:
        case Redaction.OFF:
            return text
        case Redaction.ON:
            return "?"
    return "‹" + text.replace("‹", "‹‹").replace("›", "››") + "›"


def is_shown(name: str, value: object) -> bool:
    """Tell whether a named field is shown whatever the mode; one that holds others is not."""
    if value is None or isinstance(value, bool | Shown):
        return True
    return not isinstance(value, Mapping) and (name in SHOWN_NAMES or name.endswith(_SHOWN_ENDS))


def shown_field(name: str, value: object) -> object:
    """Return what is shown of a named field of an error or a log line."""
    if _Mode.now is Redaction.OFF or is_shown(name, value):
        return value
    if isinstance(value, Mapping):
        return {key: shown_field(str(key), item) for key, item in value.items()}
    text = str(value)  # an error of ours says what may be said of it
    return text if isinstance(text, Shown) else redacted(text)


def redacted_stack(error: BaseException) -> str:
    """Return the traceback of an exception and its causes: the frames, and of each the kind and what is shown of it.

    Lines of code stand in it, and texts of exceptions only if they are ours.
    """
    parts, seen = list[str](), set[int]()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        frames = "".join(traceback.format_list(traceback.extract_tb(at.__traceback__)))
        parts.append(f"{frames}{type(at).__name__}: {shown_field('error', at)}")
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return "\n\n".join(parts)
