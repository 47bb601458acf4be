"""A changefeed's settings as rows: what is set, and what would hold without it."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl

from consumers.control.api.replica_config import DURATIONS, from_api, shown_config, to_api
from schemas.masking import MASK, is_secret_name, mask_uri

SECOND_NS: Final = 1_000_000_000
_UNITS: Final = (
    *(("h", 3600 * SECOND_NS), ("m", 60 * SECOND_NS), ("s", SECOND_NS)),
    *(("ms", 1_000_000), ("us", 1_000), ("ns", 1)),
)


def setting_rows(config: Mapping[str, object], sink_uri: str) -> list[dict[str, object]]:
    """Return ``key``, ``value``, ``default``, ``differs`` and ``origin`` (file, URI, default) of each setting, by key.

    Values are texts fit to be shown: secrets are masked. ``default`` is None where there is none.
    """
    defaults = dict(_flat(from_api(shown_config({}))))
    given = dict(_flat(from_api(to_api(config))))
    rows: list[dict[str, object]] = [
        {"key": key, "value": given.get(key, value), "default": value, "origin": "file" if key in given else "default"}
        for key, value in defaults.items()
    ]
    rows += [{"key": key, "value": given[key], "default": None, "origin": "file"} for key in given.keys() - defaults]
    rows += [
        {"key": f"?{key}", "value": MASK if is_secret_name(key) else mask_uri(value), "default": None, "origin": "URI"}
        for key, value in parse_qsl(sink_uri.partition("?")[2], keep_blank_values=True)
    ]
    shown = [{**row, "differs": row["origin"] != "default" and row["value"] != row["default"]} for row in rows]
    return sorted(shown, key=lambda row: str(row["key"]))


def readable(config: Mapping[str, object]) -> dict[str, object]:
    """Return a changefeed file's table to be shown and sent back: secrets masked, durations as people write them."""
    return _with_durations(from_api(to_api(config)))


def _with_durations(table: Mapping[str, object]) -> dict[str, object]:
    return {
        key: _with_durations(value) if isinstance(value, Mapping) else _text(key, value) if key in DURATIONS else value
        for key, value in table.items()
    }


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from _flat(item, f"{path}[{number}].")
        else:
            yield path, _text(key, value)


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_text(key, item) for item in value)
    text = str(value)
    if key in DURATIONS and text.endswith("ns") and text[:-2].isdecimal():
        return duration_text(int(text[:-2]))
    return text


def duration_text(nanoseconds: int) -> str:
    """Return a duration as people write it, in whole numbers of one unit: it is sent back as it is shown.

    >>> [duration_text(ns) for ns in (600_000_000_000, 86_400_000_000_000, 90_000_000_000, 1_500_000_000)]
    ['10m', '24h', '90s', '1500ms']
    """
    unit, size = next((unit, size) for unit, size in _UNITS if nanoseconds % size == 0)
    return f"{nanoseconds // size}{unit}" if nanoseconds else "0s"
