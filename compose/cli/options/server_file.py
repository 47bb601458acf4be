"""``--config`` of a capture: TiCDC's server file. What a capture has by another way is read, what it lacks is named.

Keys: ``pkg/config/server_config.go`` of tiflow and ticdc. Flags and variables of the environment count more.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from compose.echo import echo
from schemas.config.parse.origin import NotSupportedYetError
from schemas.config.parse.section import unknown_key
from schemas.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., object])

READ: Final = {
    "addr": "addr",
    "advertise-addr": "advertise_addr",
    "log-file": "log_file",
    "log-level": "log_level",
    "log.file.max-size": "log_file_max_size",
    "log.file.max-backups": "log_file_max_backups",
    "data-dir": "data_dir",
    "gc-ttl": "gc_ttl",
    "tz": "tz",
    "cluster-id": "cluster",
    "security.ca-path": "ca",
    "security.cert-path": "cert",
    "security.key-path": "key",
    "security.cert-allowed-cn": "cert_allowed_cn",
    "security.mtls": "mtls",
    "security.redact-info-log": "redact_info_log",
}
"""Keys, and the parameter of the command that each one is."""
REFUSED: Final = {
    "security.client-user-required": "users stand in a file: give --client-credentials",
    "encryption.enable-encryption": "what rests in Kafka is encrypted by Kafka's disks",
}
"""Keys that promise to protect something: refused where they are true."""
UNREAD: Final = {
    "log.file.max-days": "files that were set aside are kept by number, log.file.max-backups",
    "log.error-output": "errors go where the log goes",
    "security.client-allowed-user": "users stand in a file, --client-credentials",
    "memory-limit-percentage": "--matcher-memory-bytes-max bounds open transactions",
    "enable-legacy-safepoint": "PD's interface is chosen by its version",
    **dict.fromkeys(
        (
            *("newarch", "capture-session-ttl", "owner-flush-interval", "processor-flush-interval", "sorter"),
            *("kv-client", "debug", "encryption", "per-table-memory-quota", "max-memory-percentage"),
            *("gc-tuner-memory-threshold", "log.internal-err-output", "max-memory-consumption"),
        ),
        "it tunes a part of TiCDC that is not here",
    ),
}
"""Keys and tables that change nothing here, and why; each that is given is named."""


def server_file_option(command: Command) -> Command:
    """Add ``--config``: the file's settings are the defaults of the command's other options."""

    def read(context: click.Context, _option: click.Parameter, file: Path | None) -> None:
        if file is None:
            return
        values, notes = read_server_file(file)
        context.default_map = {**(context.default_map or {}), **values}
        for note in notes:
            echo(f"note: {file}: {note}", err=True)

    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=read,
        help="TiCDC's server file; flags and variables of the environment count more.",
    )(command)


def read_server_file(file: Path) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return a server file's settings by the names of a capture's parameters, and notes of what is not read.

    Raises:
        ConfigError: it is not readable, no TOML, or holds a key that TiCDC does not have.
        NotSupportedYetError: it asks for a protection that a capture does not have, or has by another way.
    """
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("server file is not readable as TOML", file=str(file), reason=error) from error
    values: dict[str, object] = {}
    notes: list[str] = []
    for key, value in _leaves(table):
        above = next((known for known in UNREAD if key == known or key.startswith(f"{known}.")), None)
        if key in READ:
            if value not in ("", 0) or value is False:
                values[READ[key]] = _text(value, key, file)
        elif key in REFUSED:
            if value:
                raise NotSupportedYetError(f"`{key}` is not supported: {REFUSED[key]}", file=str(file), key=key)
        elif above is not None:
            notes.append(f"{key} has no effect: {UNREAD[above]}")
        else:
            known = {**READ, **REFUSED, **UNREAD}
            raise ConfigError(unknown_key(key, known, "in the server file"), file=str(file), key=key)
    return values, tuple(notes)


def _leaves(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        leaves += _leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return leaves


def _text(value: object, key: str, file: Path) -> object:
    """Return a value as the option's own type reads it from a text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, str | int):
        return str(value)
    raise ConfigError(f"`{key}` must be a text, a whole number or a list of texts", file=str(file), key=key)
