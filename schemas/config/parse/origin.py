"""Where each setting came from, so that an error can say key, file and line; and the errors of configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from schemas.errors import Action, ConfigError

Path: TypeAlias = tuple[str | int, ...]
"""Path of a setting in the changefeed file: ``("sink", "dispatchers", 0, "matcher")``."""


class NotSupportedYetError(ConfigError):
    """The setting is TiCDC's and well-formed, but this version would ignore it; ``fields`` name the key."""

    code, action = "config.not_supported_yet", Action.STOP_CHANGEFEED


class ExpressionParseError(ConfigError):
    """The text of a value expression does not parse; ``fields`` name the key, and the message the position."""

    code, action = "config.expression_parse_failed", Action.STOP_CHANGEFEED


class UriText(str):
    """A value that came from the sink URI: text, whatever type the setting has."""

    __slots__ = ()


def dotted(path: Path) -> str:
    """Return a path as people write it.

    >>> dotted(("sink", "dispatchers", 0, "matcher"))
    'sink.dispatchers[0].matcher'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the settings of one changefeed stand."""

    file: str | None = None
    """Name of the changefeed file, as the user gave it. None: the settings are not from a file."""
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Line (from 1) of each key and list item of the file; empty when there is no text."""
    uri_params: Mapping[Path, str] = field(default_factory=dict)
    """Settings that the sink URI gives, with the parameter's name."""

    def where(self, path: Path) -> dict[str, object]:
        """Return the fields of an error about this setting: key, and parameter or file and line."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.uri_params:
                return {"key": dotted(path), "sink_uri_parameter": self.uri_params[path[:end]]}
        where: dict[str, object] = {"key": dotted(path)} if path else {}
        if self.file is not None:
            where["file"] = self.file
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                where["line"] = self.lines[path[:end]]
                break
        return where

    def error(self, path: Path, message: str) -> ConfigError:
        """Build the error of a setting; the caller raises it."""
        return ConfigError(message, **self.where(path))

    def not_yet(self, path: Path, message: str) -> NotSupportedYetError:
        """Build the error of a setting that a later version will take; the caller raises it."""
        return NotSupportedYetError(message, **self.where(path))
