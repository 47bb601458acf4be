"""``tidebus table …``: rows that tables have already, for a changefeed that runs. `cdc cli` has nothing like it."""

from functools import partial
from typing import TYPE_CHECKING

import click

from compose.cli.changefeed import OURS, echo_json, namespace_option
from compose.cli.options.kinds import Command
from compose.cli.options.server import server_options

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls


@click.group()
def table() -> None:
    """Write rows that tables have already, while changes go on: backfill, resync; pause, resume."""


def _of_tables(command: Command, *, is_needed: bool = True) -> Command:
    tables = click.option(
        *("-t", "--table", "tables"),
        required=is_needed,
        multiple=True,
        metavar="SCHEMA.TABLE",
        help="May be given repeatedly." if is_needed else "May be given repeatedly; none: all of the changefeed.",
    )
    changefeed = click.option("-c", "--changefeed", "changefeed_id", required=True, metavar="ID")
    return server_options(changefeed(namespace_option(tables(command))))


_key_range = click.option(
    "--where-key-range",
    default="",
    metavar="START:END",
    help="Only rows whose integer key is at least START and below END; one of them may be left out.",
)


@table.command()
@_of_tables
@_key_range
def backfill(
    api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...], where_key_range: str
) -> None:
    """Write each row that a table has, once more; `changefeed query` shows how far it is."""
    _ask(api, "backfill", changefeed_id, namespace, tables, where_key_range)


@table.command()
@_of_tables
@_key_range
def resync(api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...], where_key_range: str) -> None:
    """Write each row that a table has, and delete what the destination has beside them; topics get a TRUNCATE first."""
    _ask(api, "resync", changefeed_id, namespace, tables, where_key_range)


@table.command()
@partial(_of_tables, is_needed=False)
def pause(api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...]) -> None:
    """Begin no more chunks of tables' images; changes, and what has landed, go out. Other changefeeds go on."""
    _ask(api, "pause", changefeed_id, namespace, tables)


@table.command()
@partial(_of_tables, is_needed=False)
def resume(api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...]) -> None:
    """Go on with images of tables where they were."""
    _ask(api, "resume", changefeed_id, namespace, tables)


def _ask(
    api: "ApiCalls",
    verb: str,
    changefeed_id: str,
    namespace: str,
    tables: tuple[str, ...],
    key_range: str = "",
) -> None:
    path = f"{OURS}/changefeeds/{changefeed_id}/tables/{verb}"
    body: dict[str, object] = {"tables": list(tables)}
    if key_range:
        body["where_key_range"] = key_range
    echo_json(api.call("POST", path, body, namespace=namespace))
