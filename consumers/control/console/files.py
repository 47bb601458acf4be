"""The console's static files: a fixed table, read once from this package, and the headers that they are sent with.

A request names an entry of the table or nothing: no path is ever made of what a client sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

NAMES: Final = (
    *("index.html", "console.css", "icon.svg", "main.js", "dom.js", "api.js", "words.js", "live.js", "dialogs.js"),
    *("overview.js", "changefeed.js", "verbs.js", "create.js", "captures.js", "upstream.js", "events.js", "checks.js"),
    "images.js",
)
START: Final = "index.html"
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        *(f"{what} 'none'" for what in ("base-uri", "form-action", "frame-ancestors")),
        "require-trusted-types-for 'script'",
    )
)
"""Only files of this server, no script or style in a page or made of a text, and no other page around it."""
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """What is sent."""

    content: bytes
    media_type: str


def _read(name: str) -> StaticFile:
    content = files(__package__).joinpath("static", name).read_bytes()
    return StaticFile(content, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")


STATIC_FILES: Final[Mapping[str, StaticFile]] = MappingProxyType({name: _read(name) for name in NAMES})


def error_codes_text() -> str:
    """Return the catalogue of docs/error-codes.md, made by ``python -m compose.operator.error_codes --json``."""
    return files(__package__).joinpath("error_codes.json").read_text()
