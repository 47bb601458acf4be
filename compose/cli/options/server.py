"""Options of commands that ask a capture's API, as `cdc cli` has them."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from compose.cli.options.kinds import Command
from compose.echo import echo

SERVER_DEFAULT = "http://127.0.0.1:8300"
CREDENTIALS_DEFAULT = Path.home() / ".tidebus" / "credentials"
_NO_CONFIRM = "compose.cli.no_confirm"
"""Of a command's context: its group was told to ask nothing."""


def server_options(command: Command) -> Command:
    """Add ``--server`` and how to get in; the command gets them as ``api``."""

    @functools.wraps(command)
    def wrapper(
        *,
        server: str,
        ca: str,
        cert: str,
        key: str,
        user: str,
        password: str,
        credentials: Path,
        pd: str,
        log_level: str,
        **others: object,
    ) -> object:
        given: dict[str, Any] = {
            "server": server,
            "ca": ca,
            "cert": cert,
            "key": key,
            "user": user,
            "password": password,
        }
        given |= {"credentials": credentials, "pd": pd, "log_level": log_level}
        server, ca, cert, key, user, password, credentials, pd, log_level = _before_the_verb(given).values()
        from compose.logs import start_logging
        from compose.operator.api_calls import ApiCalls
        from consumers.control.api.access.tls import ApiTls
        from consumers.control.api.client import ApiClient

        if pd:
            echo("note: --pd does nothing here; --server names a capture", err=True)
        if log_level:
            start_logging(level=log_level)
        user, password = _user(user, password, credentials)
        tls = ApiTls(ca_path=ca, cert_path=cert, key_path=key)
        url = server or ("https://" if ca or cert else "http://") + SERVER_DEFAULT.removeprefix("http://")
        return command(**others, api=ApiCalls(ApiClient(url=url, tls=tls, user=user, password=password)))

    return _with_options(wrapper)  # type: ignore[return-value]


def server_group(group: Command) -> Command:
    """Let a group take the same options before the verb, as `cdc cli` does; those behind the verb count more."""

    @functools.wraps(group)
    def wrapper(**given: object) -> object:
        context = click.get_current_context()
        context.obj = {name: value for name, value in given.items() if _is_typed(context, name)}
        return group()

    return _with_options(wrapper)  # type: ignore[return-value]


def _before_the_verb(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with those of the group where the verb has none of its own."""
    context = click.get_current_context()
    before = context.obj if isinstance(context.obj, dict) else {}
    return {
        name: before[name] if name in before and not _is_typed(context, name) else value
        for name, value in given.items()
    }


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _with_options(wrapper: Callable[..., object]) -> Callable[..., object]:
    for option in (
        click.option("--pd", default="", hidden=True),
        click.option("--log-level", type=click.Choice(["", "debug", "info", "warn", "error"]), default="", hidden=True),
        click.option(
            "--credentials",
            type=click.Path(path_type=Path),
            default=CREDENTIALS_DEFAULT,
            envvar="TIDEBUS_CREDENTIALS",
            help="File of `configure-credentials`.  [default: ~/.tidebus/credentials, if it is there]",
        ),
        click.option("--password", default="", envvar=["TICDC_PASSWORD", "TIDEBUS_PASSWORD"], help="Of --user."),
        click.option("--user", default="", envvar=["TICDC_USER", "TIDEBUS_USER"], help="Where the server wants one."),
        click.option("--key", default="", envvar=_env("KEY"), metavar="FILE", help="Key of --cert, not encrypted."),
        click.option("--cert", default="", envvar=_env("CERT"), metavar="FILE", help="Certificate that we show."),
        click.option("--ca", default="", envvar=_env("CA"), metavar="FILE", help="CA of the server (PEM)."),
        click.option(
            "--server",
            default="",
            envvar="TIDEBUS_SERVER",
            metavar="URL",
            help=f"Any capture's API.  [default: {SERVER_DEFAULT}, https with --ca]",
        ),
    ):
        wrapper = option(wrapper)
    return wrapper


def _env(what: str) -> list[str]:
    return [f"TICDC_{what}_PATH", f"TIDEBUS_{what}_PATH"]


def _user(user: str, password: str, file: Path) -> tuple[str, str]:
    """Return who asks: as given, or as the file says; of several in it the one that is named."""
    if password or (file == CREDENTIALS_DEFAULT and not file.exists()):
        return user, password
    from consumers.control.api.access.credentials import read_credentials
    from schemas.errors import ConfigError

    users = read_credentials(file).users
    name = user or os.environ.get("USER", "")
    if name in users:
        return name, users[name]
    if user or len(users) > 1:
        raise ConfigError("the credentials file has several users, or not this one; give --user", key="user", file=file)
    ((name, word),) = users.items()
    return name, word


def ask_nothing(no_confirm: bool) -> None:
    """Let the verbs of a group ask nothing where ``--no-confirm`` stands before the verb."""
    click.get_current_context().meta[_NO_CONFIRM] = no_confirm


def ask(question: str, no_confirm: bool) -> None:
    """Ask, unless it is not wanted; no ends the command.

    Raises:
        click.Abort: the answer was no, or there is nobody to ask.
    """
    context = click.get_current_context(silent=True)
    if not no_confirm and not (context and context.meta.get(_NO_CONFIRM)):
        click.confirm(question, abort=True, err=True)
