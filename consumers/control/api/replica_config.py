"""A changefeed file's table as the API's ``replica_config`` and back: snake_case for dashed keys, nanoseconds."""

from collections.abc import Mapping
from typing import Any, Final

from schemas.config.parse.duration import parse_duration
from schemas.masking import MASK, is_secret_name, mask_uri

DURATIONS: Final = frozenset(
    {
        "sync-point-interval",
        "sync-point-retention",
        "changefeed-error-stuck-duration",
        "checksum-check-interval",
        "dial-timeout",
        "write-timeout",
        "read-timeout",
    }
)
"""Keys whose value is a duration: the API shows nanoseconds, and takes them or a text such as ``10m``."""
RENAMED: Final = {"file-index-digit": "file_index_width"}
"""The API's own names, where it is not the file's with underscores."""
KEPT: Final = frozenset({"send-all-bootstrap-at-start"})
"""Keys that keep their dashes in the API."""
_FROM_API: Final = {new: old for old, new in RENAMED.items()}


def to_api(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changefeed file's table as the API shows it: what was set, without secrets."""
    return {_api_name(key): _shown(key, value) for key, value in table.items()}


def replica_config(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changefeed file's table as a ``replica_config`` to be sent: all of it, with its secrets."""
    return {_api_name(key): _sent(value) for key, value in table.items()}


def _sent(value: Any) -> Any:
    if isinstance(value, Mapping):
        return replica_config(value)
    return [_sent(item) for item in value] if isinstance(value, list | tuple) else value


def from_api(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's table of a ``replica_config``; what is null is not set. The values are not checked here."""
    table = {}
    for name, value in config.items():
        key = _FROM_API.get(name, name.replace("_", "-"))
        if value is not None:
            table[key] = _read(key, value)
    return table


def _api_name(key: str) -> str:
    return key if key in KEPT else RENAMED.get(key, key.replace("-", "_"))


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return to_api(value)
    if isinstance(value, list | tuple):
        return [_shown(key, item) for item in value]
    if isinstance(value, str):
        if is_secret_name(key):
            return MASK
        return _nanoseconds(value) if key in DURATIONS else mask_uri(value)
    return value


def _nanoseconds(text: str) -> int | str:
    try:
        return round(parse_duration(text) * 1e9)
    except ValueError:
        return text


def _read(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_api(value)
    if isinstance(value, list):
        return [_read(key, item) for item in value]
    if key in DURATIONS and isinstance(value, int) and not isinstance(value, bool):
        return f"{value}ns"
    return value
