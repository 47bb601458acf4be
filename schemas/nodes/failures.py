"""Errors of changefeeds as their nodes keep them, and the DDL that has stopped one, for those who show it by table."""

from dataclasses import asdict, dataclass
from typing import Any

from schemas.errors import BusError
from schemas.ids import Ts
from schemas.json_text import read_bool, read_int, read_text
from schemas.redaction import shown_field

_TS_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingDdl:
    """A DDL that a changefeed's sink cannot follow. Texts are redacted as logs are."""

    table: str
    """``schema.table``, as the changefeed's rules name it."""
    query: str
    """Empty: the changefeed leaves the DDL out, and rows behind it are what the sink cannot take."""
    start_ts: Ts
    """Of its transaction; 0: not known."""
    commit_ts: Ts
    reason: str
    what_helps: str
    """Empty: the code's page alone says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedError:
    """The last error, as the API shows it."""

    code: str
    message: str
    time: str
    """RFC 3339."""
    ddl: StoppingDdl | None = None
    """What has stopped it. It stands beside the error in the node (:func:`error_keys`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SorterFailure:
    """What a sorter has ended its run with; the owner decides what follows, and takes it away."""

    epoch: int
    """Under which the sorter ran."""
    code: str
    message: str
    time: str
    """RFC 3339."""
    may_heal: bool
    """Whether trying again is of use, by the error's own ``Action``."""
    ddl: StoppingDdl | None = None
    """As :attr:`ChangefeedError.ddl`."""


def stopping_ddl(error: BusError) -> StoppingDdl | None:
    """Return the DDL of an error that names table, commit_ts and query; None: it is another error."""
    fields = error.fields
    if not {"table", "commit_ts", "query"} <= fields.keys():
        return None

    def shown(name: str, otherwise: str = "") -> str:
        return str(shown_field(name, fields.get(name, otherwise)))

    return StoppingDdl(
        table=shown("table"),
        query=shown("query") if fields["query"] else "",
        start_ts=_ts_of(fields.get("start_ts")),
        commit_ts=_ts_of(fields["commit_ts"]),
        reason=shown("reason") if "reason" in fields else error.message,
        what_helps=shown("what_helps"),
    )


def error_keys(key: str, error: ChangefeedError | SorterFailure | None) -> dict[str, object]:
    """Return what a status has of an error under ``key``; its DDL has a key beside it.

    Version 45ec899 refuses a whole status for one more key within an error. A key of the status itself it passes over,
    and takes away when it writes the node.
    """
    if error is None:
        return {key: None}
    fields = asdict(error)
    ddl = fields.pop("ddl")
    return {key: fields} if ddl is None else {key: fields, _ddl_key(key): ddl}


def read_error(status: Any) -> ChangefeedError | None:
    """Read :func:`error_keys`; None: there is no error.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    raw = status["error"]
    if not raw:
        return None
    return ChangefeedError(
        code=read_text(raw["code"]),
        message=read_text(raw["message"]),
        time=read_text(raw["time"]),
        ddl=_read_ddl(status, "error"),
    )


def read_failure(status: Any) -> SorterFailure | None:
    """Read :func:`error_keys`; None: there is no failure, as in nodes of earlier versions.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    raw = status.get("failure")
    if not raw:
        return None
    return SorterFailure(
        epoch=read_int(raw["epoch"], bits=_TS_BITS),
        code=read_text(raw["code"]),
        message=read_text(raw["message"]),
        time=read_text(raw["time"]),
        may_heal=read_bool(raw["may_heal"]),
        ddl=_read_ddl(status, "failure"),
    )


def _ddl_key(key: str) -> str:
    return f"{key}_ddl"


def _read_ddl(status: Any, key: str) -> StoppingDdl | None:
    """Read the DDL of the error that stands under ``key``; builds since 45ec899 wrote it within the error."""
    raw = status.get(_ddl_key(key), status[key].get("ddl"))
    if raw is None:
        return None
    return StoppingDdl(
        table=read_text(raw["table"]),
        query=read_text(raw["query"]),
        start_ts=Ts(read_int(raw["start_ts"], bits=_TS_BITS)),
        commit_ts=Ts(read_int(raw["commit_ts"], bits=_TS_BITS)),
        reason=read_text(raw["reason"]),
        what_helps=read_text(raw["what_helps"]),
    )


def _ts_of(value: object) -> Ts:
    return Ts(value) if isinstance(value, int) else Ts(0)
