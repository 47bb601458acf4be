"""Files of ``key=value`` lines that say how a cluster is reached, and hold its passwords.

One setting a line, as in the files that librdkafka's and Kafka's own tools read: what stands before the first ``=`` is
the key, what stands behind it the value, without the blanks around both. Empty lines and lines that begin with ``#``
say nothing. No value is ever part of an error: it may be a password that was put behind the wrong key.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edges.secret_file import check_secret_mode, read_with_status
from schemas.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKeys:
    """What may stand in such a file."""

    option: str
    """The command's option that names the file, for errors."""
    allowed: frozenset[str]
    secret: frozenset[str]
    """Of ``allowed``: keys whose values nobody but the file's owner may read."""
    paths: frozenset[str] = frozenset()
    """Of ``allowed``: names of files; a relative one is seen from the settings' own folder."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Keys that the client knows and we do not take, with the reason."""


def read_properties(path: Path, keys: KnownKeys) -> dict[str, str]:
    """Return a file's settings.

    Raises:
        SecretFileModeError: others can read a secret in it.
        ConfigError: it is not readable, or a key is unknown, refused or there twice.
    """
    text, status = read_with_status(path, keys.option)
    settings = parse_properties(text, keys, file=str(path))
    if any(key in settings for key in keys.secret):
        check_secret_mode(status, path, keys.option)
    for key in keys.paths:
        if settings.get(key):  # an empty one is for the reader to refuse, and not the folder
            settings[key] = str(path.resolve().parent / settings[key])
    return settings


def parse_properties(text: str, keys: KnownKeys, *, file: str) -> dict[str, str]:
    """Return the settings of a text; ``file`` is its name, for errors.

    Raises:
        ConfigError: a line is no setting, or its key is unknown, refused or there twice.
    """
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise ConfigError("a line of settings must be key=value", key=keys.option, file=file, line=number)
        _check_key(key, keys, {"file": file, "line": number})
        if key in settings:
            raise ConfigError("a setting is there twice", key=key, file=file, line=number)
        settings[key] = value
    return settings


def _check_key(key: str, keys: KnownKeys, where: Mapping[str, object]) -> None:
    if key in keys.refused:
        raise ConfigError(f"this setting is not for {keys.option}: {keys.refused[key]}", key=key, **where)
    if key not in keys.allowed:
        near = difflib.get_close_matches(key, keys.allowed, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        # A line that is no setting may begin with a password that holds a "=": only what looks like a key is shown.
        shown = key if key.replace(".", "").replace("-", "").replace("_", "").isalnum() and "." in key else "?"
        raise ConfigError(f"unknown setting in the file of {keys.option}{hint}", key=shown, **where)
