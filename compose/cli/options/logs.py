"""How a process that serves logs: level, form and file."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from schemas.redaction import Redaction, parse_redaction


class RedactionWord(click.ParamType[Redaction]):
    """One of TiCDC's words for a mode of redaction."""

    name = "redaction"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Redaction:
        """Return the mode."""
        mode = value if isinstance(value, Redaction) else parse_redaction(str(value))
        if mode is None:
            self.fail(f"{value!r} is none of off, marker, on", param, ctx)
        return mode


Command = TypeVar("Command", bound=Callable[..., object])
_OPTIONS = (
    click.option(
        "--log-file-max-backups",
        type=click.IntRange(1, 10_000),
        default=10,
        show_default=True,
        help="Files set aside that are kept.",
    ),
    click.option(
        "--redact-info-log",
        type=RedactionWord(),
        default="off",
        show_default=True,
        envvar="TIDEBUS_REDACT_INFO_LOG",
        metavar="[off|marker|on]",
        help="What users wrote in logs and errors: on hides it, marker sets it off by ‹›.",
    ),
    click.option(
        "--log-file-max-size",
        type=click.IntRange(1, 4096),
        default=300,
        show_default=True,
        metavar="MIB",
        help="Of --log-file, from which on it is set aside.",
    ),
    click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TIDEBUS_LOG_FILE",
        help="Log here and not to standard error; a file that is large is set aside.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        envvar="TIDEBUS_LOG_FORMAT",
        help="json: an object a line.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warn", "error"]),
        default="info",
        show_default=True,
        envvar="TIDEBUS_LOG_LEVEL",
        help="A running capture's is changed by POST /api/v2/log, or `tidebus cli log-level`.",
    ),
)
"""The last one first, as decorators stand."""


def log_options(command: Command) -> Command:
    """Add ``--log-level``, ``--log-format`` and ``--log-file``, and log so before the command begins."""

    @functools.wraps(command)
    def wrapper(
        *,
        log_level: str,
        log_format: str,
        log_file: Path | None,
        log_file_max_size: int,
        log_file_max_backups: int,
        redact_info_log: Redaction,
        **others: object,
    ) -> object:
        from compose.logs import start_logging

        kept = {"file_bytes_max": log_file_max_size << 20, "files_kept": log_file_max_backups}
        start_logging(level=log_level, form=log_format, file=log_file, redact=redact_info_log.value, **kept)
        return command(**others)

    for option in _OPTIONS:
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]
