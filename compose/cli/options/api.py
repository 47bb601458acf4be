"""Where a capture serves its API, and to whom."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])
ADDR_DEFAULT = "127.0.0.1:8300"
"""TiCDC's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """As given; named as the fields of CaptureOptions."""

    addr: str
    advertise_addr: str
    mtls: bool
    credentials: Path | None
    api_hosts: tuple[str, ...]


def api_options(command: Command) -> Command:
    """Add the options; the command gets them as ``api``. The certificate is that of ``tls_options``."""

    @functools.wraps(command)
    def wrapper(
        *,
        addr: str,
        advertise_addr: str,
        mtls: bool,
        client_credentials: Path | None,
        api_host: tuple[str, ...],
        **others: object,
    ) -> object:
        given = ApiOptions(
            addr="" if addr == "none" else addr,
            advertise_addr=advertise_addr,
            mtls=mtls,
            credentials=client_credentials,
            api_hosts=api_host,
        )
        return command(**others, api=given)

    for option in (
        click.option(
            "--api-host",
            multiple=True,
            metavar="NAME",
            help="A further name under which the API is asked, such as a Kubernetes service's; again for more.",
        ),
        click.option(
            "--client-credentials",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Let only the users of this file ask the API; `tidebus configure-credentials --file` writes one.",
        ),
        click.option("--mtls", is_flag=True, help="Let only clients with a certificate of --ca ask the API."),
        click.option(
            "--advertise-addr", default="", metavar="HOST:PORT", help="Where others reach it.  [default: --addr]"
        ),
        click.option(
            "--addr",
            default=ADDR_DEFAULT,
            show_default=True,
            envvar="TIDEBUS_ADDR",
            metavar="HOST:PORT",
            help="Serve TiCDC's HTTP API and /metrics here, by HTTPS with --cert; port 0: any; none: nowhere.",
        ),
    ):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]
