"""Options of commands that ask a capture's API, as `cdc cli` has them."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    pass

Command = TypeVar("Command", bound=Callable[..., Any])
SERVER_DEFAULT = "http://127.0.0.1:8300"
CREDENTIALS_DEFAULT = Path.home() / ".tidebus" / "credentials"


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
        **others: Any,
    ) -> Any:
        from compose.logs import start_logging
        from compose.operator.api_calls import ApiCalls
        from consumers.control.api.client import ApiClient
        from consumers.control.api.tls import ApiTls

        if pd:
            click.echo("note: --pd does nothing here; --server names a capture", err=True)
        if log_level:
            start_logging(level=log_level)
        user, password = _user(user, password, credentials)
        tls = ApiTls(ca_path=ca, cert_path=cert, key_path=key)
        url = server or ("https://" if ca or cert else "http://") + SERVER_DEFAULT.removeprefix("http://")
        return command(**others, api=ApiCalls(ApiClient(url=url, tls=tls, user=user, password=password)))

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
    return wrapper  # type: ignore[return-value]


def _env(what: str) -> list[str]:
    return [f"TICDC_{what}_PATH", f"TIDEBUS_{what}_PATH"]


def _user(user: str, password: str, file: Path) -> tuple[str, str]:
    """Return who asks: as given, or as the file says; of several in it the one that is named."""
    if password or not file.exists():
        return user, password
    from consumers.control.api.credentials import read_credentials
    from schemas.errors import ConfigError

    users = read_credentials(file).users
    name = user or os.environ.get("USER", "")
    if name in users:
        return name, users[name]
    if user or len(users) > 1:
        raise ConfigError("the credentials file has several users, or not this one; give --user", key="user", file=file)
    ((name, word),) = users.items()
    return name, word


def ask(question: str, no_confirm: bool) -> None:
    """Ask, unless it is not wanted; no ends the command.

    Raises:
        click.Abort: the answer was no, or there is nobody to ask.
    """
    if not no_confirm:
        click.confirm(question, abort=True, err=True)
