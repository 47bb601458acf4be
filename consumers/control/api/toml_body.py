"""A changefeed as TOML, for clients that say ``Accept: application/toml``, as TiCDC's newer API answers them.

Keys are the changefeed file's, with dashes, so what stands under ``config`` is a changefeed file (without its secrets).
Source: pingcap/ticdc ``api/v2/helper.go`` and the ``toml`` tags of ``api/v2/model.go``.
"""

from collections.abc import Mapping
from typing import Any, Final

import tomlkit

from consumers.control.api.replica_config import from_api

TOML: Final = "application/toml"
_LEFT_OUT: Final = ("config", "namespace", "notes")


def wants_toml(accept: str) -> bool:
    """Tell whether a request's Accept header asks for TOML."""
    return TOML in accept.lower()


def toml_text(body: Mapping[str, Any]) -> str:
    """Return what :func:`~consumers.control.api.bodies.feed_body` has made, as TOML; what is null is left out."""
    shown = {key.replace("_", "-"): value for key, value in body.items() if key not in _LEFT_OUT}
    return tomlkit.dumps(_plain_table({**shown, "config": from_api(body["config"])}))


def _plain_table(value: Mapping[str, object]) -> dict[str, object]:
    return {str(key): _plain(item) for key, item in value.items() if item is not None}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return _plain_table(value)
    return [_plain(item) for item in value if item is not None] if isinstance(value, list | tuple) else value
