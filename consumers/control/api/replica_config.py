"""A changefeed file's table as the API's ``replica_config`` and back: snake_case for dashed keys, nanoseconds.

What is shown is whole, defaults too: `cdc cli changefeed update` takes it into its own structs, lays the user's file
over it, and sends all of it back. It would send zeros for what it has not been shown.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from schemas.config.parse.duration import Seconds, parse_duration
from schemas.config.parse.origin import Path
from schemas.config.parse.section import fields_by_key
from schemas.config.settings import ChangefeedFile
from schemas.masking import MASK, is_secret_name, is_uri_name, mask_setting, mask_uri

DURATIONS: Final = frozenset(
    {
        "sync-point-interval",
        "sync-point-retention",
        "changefeed-error-stuck-duration",
        "checksum-check-interval",
        "active-active-progress-interval",
        "active-active-sync-stats-interval",
        "region-count-refresh-interval",
    }
)
"""Keys whose value is a duration: the API shows nanoseconds, and takes them or a text such as ``10m``. Those of Kafka
and databases are not among them: the API has them as texts."""
RENAMED: Final = {
    "file-index-digit": "file_index_width",
    "advance-timeout-in-sec": "advance_timeout",
    "max-multi-update-row": "max_multi_update_row_count",
}
"""The API's own names, where it is not the file's with underscores."""
KEPT: Final = frozenset({"send-all-bootstrap-at-start", "target-schema", "target-table"})
"""Keys that keep their dashes in the API."""
OURS: Final = ("sorter", "initial", "initial-rules", "initial-schema", "table-images", "state-proofs")
"""Settings that TiCDC does not have: its clients neither show nor send them."""
NOT_SHOWN: Final = frozenset(
    {
        *OURS,
        *("sql-mode", "performance-mode", "event-collector-batch-count", "event-collector-batch-bytes"),
        *("enable-active-active", "active-active-progress-interval", "active-active-sync-stats-interval"),
        *("sink.transaction-atomicity", "sink.file-index-digit", "sink.safe-mode"),
        *("sink.kafka-config", "sink.mysql-config", "sink.cloud-storage-config", "sink.iceberg-config"),
        *("consistent.compression", "consistent.flush-concurrency", "consistent.event-collector-batch-count"),
        *("scheduler.region-per-span", "scheduler.region-count-refresh-interval", "scheduler.force-split"),
    }
)
"""Settings that TiCDC does not show unless they are set."""
OF_EVENT_FILTERS: Final = tuple(
    f"ignore_{which}_value_expr" for which in ("insert", "update_new", "update_old", "delete")
)
"""What TiCDC shows of every event filter, empty where it is not set."""
_FROM_API: Final = {new: old for old, new in RENAMED.items()}


def to_api(table: Mapping[str, object]) -> dict[str, object]:
    """Return a changefeed file's table as the API shows it: what was set, without secrets."""
    return {_api_name(key): _shown(key, value) for key, value in table.items()}


def shown_config(table: Mapping[str, object]) -> dict[str, object]:
    """Return a changefeed file's table as the API shows it with all defaults that TiCDC shows, without secrets."""
    shown = laid_over(_defaults(ChangefeedFile()), to_api(table))
    section = shown["filter"]
    if isinstance(section, dict) and isinstance(filters := section.get("event_filters"), list):
        section["event_filters"] = [{**dict.fromkeys(OF_EVENT_FILTERS, ""), **rule} for rule in filters]
    return shown


def given_up(config: Mapping[str, object]) -> frozenset[str]:
    """Return the file's keys of ours that a ``replica_config`` says null of: its sender knows them, and wants none."""
    return frozenset(key for key in OURS if _api_name(key) in config and config[_api_name(key)] is None)


def kept_secrets(
    config: dict[str, object], stored: Mapping[str, object], gone: Collection[str] = frozenset()
) -> tuple[dict[str, object], frozenset[Path]]:
    """Return a file's table that a client has sent with the stored values where it sends the masks that it was shown,
    and the settings where it does.

    `cdc cli changefeed update` sends all that it was shown. A table of ours alone (``sorter``), which it does not
    know, stays, unless it is among ``gone``.
    """
    ours = {key: stored[key] for key in OURS if key in stored and key not in config and key not in gone}
    kept: set[Path] = set()
    return {**_unmasked_table(config, stored, (), kept), **ours}, frozenset(kept)


def _unmasked_table(
    sent: Mapping[str, object], stored: Mapping[str, object], path: Path, kept: set[Path]
) -> dict[str, object]:
    return {key: _unmasked(value, stored.get(key), (*path, key), kept) for key, value in sent.items()}


def _unmasked(sent: object, stored: object, path: Path, kept: set[Path]) -> object:
    if isinstance(sent, Mapping):
        return _unmasked_table(sent, stored if isinstance(stored, Mapping) else {}, path, kept)
    name = str(path[-1])
    if not (isinstance(sent, str) and isinstance(stored, str) and (is_secret_name(name) or is_uri_name(name))):
        return sent  # stars are what they are in a text that is shown as it is
    if MASK in sent and sent in (MASK, mask_uri(stored)):
        kept.add(path)
        return stored
    return sent


def _defaults(section: object, prefix: str = "") -> dict[str, object]:
    shown: dict[str, object] = {}
    for key, (field, hint) in fields_by_key(type(section)).items():
        value, path = getattr(section, field.name), f"{prefix}{key}"
        if path in NOT_SHOWN or value is None:
            continue
        if dataclasses.is_dataclass(value):
            shown[_api_name(key)] = _defaults(value, f"{path}.")
        elif isinstance(value, tuple):
            if value:
                shown[_api_name(key)] = list(value)
        else:
            shown[_api_name(key)] = round(value * 1e9) if hint is Seconds else value
    return shown


def laid_over(below: dict[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Return a ``replica_config`` with another one's values over its own, table by table; lists are replaced."""
    laid = dict(below)
    for key, value in above.items():
        under = laid.get(key)
        laid[key] = laid_over(under, value) if isinstance(under, dict) and isinstance(value, Mapping) else value
    return laid


def replica_config(table: Mapping[str, object]) -> dict[str, object]:
    """Return a changefeed file's table as a ``replica_config`` to be sent: all of it, with its secrets."""
    return {_api_name(key): _sent(value) for key, value in table.items()}


def _sent(value: object) -> object:
    if isinstance(value, Mapping):
        return replica_config(value)
    return [_sent(item) for item in value] if isinstance(value, list | tuple) else value


def from_api(config: Mapping[str, object]) -> dict[str, object]:
    """Return the file's table of a ``replica_config``; what is null is not set. The values are not checked here."""
    table = {}
    for name, value in config.items():
        key = _FROM_API.get(name, name.replace("_", "-"))
        if value is not None:
            table[key] = _read(key, value)
    return table


def _api_name(key: str) -> str:
    return key if key in KEPT else RENAMED.get(key, key.replace("-", "_"))


def _shown(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        return to_api(value)
    if isinstance(value, list | tuple):
        return [_shown(key, item) for item in value]
    if isinstance(value, str):
        return _nanoseconds(value) if key in DURATIONS else mask_setting(key, value)
    return value


def _nanoseconds(text: str) -> int | str:
    try:
        return round(parse_duration(text) * 1e9)
    except ValueError:
        return text


def _read(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        return from_api(value)
    if isinstance(value, list):
        return [_read(key, item) for item in value]
    if key in DURATIONS and isinstance(value, int) and not isinstance(value, bool):
        return f"{value}ns"
    return value
