"""``tidebus top``, ``tidebus services`` and ``tidebus completion``."""

import time
from typing import TYPE_CHECKING

import click

from compose.cli.options.kinds import Duration
from compose.cli.options.server import server_options
from compose.echo import echo

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls

OVERVIEW = "/api/tidebus/overview"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.option("-I", "--interval", type=Duration(), default=1.0, show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Print one picture and end, as without a terminal; rates over an interval.")
@click.option("--json", "as_json", is_flag=True, help="With --once: what the server says, for scripts.")
@server_options
def top(api: "ApiCalls", interval: float, once: bool, as_json: bool) -> None:
    """Show the bus live: upstream, captures with their tables, changefeeds with state, lag, rows/s and errors."""
    import json

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from compose.escapes import escaped
    from compose.operator.top_view import Top
    from schemas.errors import BusError

    if as_json:
        echo(json.dumps(api.get(OVERVIEW), indent=2))
        return
    console, seen = Console(), Top()
    seen.take(api.get(OVERVIEW), time.monotonic())
    if once or not console.is_terminal:  # a file or a pipe would get nothing until the end, and there is none
        time.sleep(interval)
        seen.take(api.get(OVERVIEW), time.monotonic())
        console.print(seen.picture(console.width, console.height))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(seen.picture(console.width, console.height), refresh=True)
            time.sleep(interval)
            try:
                seen.take(api.get(OVERVIEW), time.monotonic())
            except BusError as error:  # an owner's change takes some seconds; the picture says so and goes on
                live.update(Text(escaped(str(error)), style="red"), refresh=True)
                time.sleep(interval)


@click.command()
@server_options
def services(api: "ApiCalls") -> None:
    """List the sorter services: capture, process, Spark's UI, and the changefeeds that each runs."""
    import json

    echo(json.dumps(api.get("/api/tidebus/services")["items"], indent=2))


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands and options: `source <(tidebus completion bash)`."""
    from click.shell_completion import get_completion_class

    shell_completion = get_completion_class(shell)
    assert shell_completion is not None
    command = click.get_current_context().find_root().command
    click.echo(shell_completion(command, {}, "tidebus", "_TIDEBUS_COMPLETE").source())
