"""``tidebus table …``: rows that tables have already, for a changefeed that runs. `cdc cli` has nothing like it."""

from typing import TYPE_CHECKING, Any

import click

from compose.cli.changefeed import OURS, echo_json, namespace_option
from compose.cli.server_options import server_options

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls


@click.group()
def table() -> None:
    """Write rows that tables have already, while changes go on: backfill, resync."""


def _of_tables(command: Any) -> Any:
    tables = click.option(
        "-t", "--table", "tables", required=True, multiple=True, metavar="SCHEMA.TABLE", help="May be given repeatedly."
    )
    changefeed = click.option("-c", "--changefeed", "changefeed_id", required=True, metavar="ID")
    return server_options(changefeed(namespace_option(tables(command))))


@table.command()
@_of_tables
def backfill(api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...]) -> None:
    """Write each row that a table has, once more; `changefeed query` shows how far it is."""
    _ask(api, "backfill", changefeed_id, namespace, tables)


@table.command()
@_of_tables
def resync(api: "ApiCalls", changefeed_id: str, namespace: str, tables: tuple[str, ...]) -> None:
    """Write each row that a table has, and delete what the destination has beside them; topics get a TRUNCATE first."""
    _ask(api, "resync", changefeed_id, namespace, tables)


def _ask(api: "ApiCalls", mode: str, changefeed_id: str, namespace: str, tables: tuple[str, ...]) -> None:
    path = f"{OURS}/changefeeds/{changefeed_id}/tables/{mode}"
    echo_json(api.call("POST", path, {"tables": list(tables)}, namespace=namespace))
