"""``tidebus changefeed …``: TiCDC's verbs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compose.cli.options import cluster_option, kafka_option, upstream_option, zookeeper_option
from schemas.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo, ChangefeedState
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId

if TYPE_CHECKING:
    from consumers.changefeed_store import ChangefeedStore


@click.group()
def changefeed() -> None:
    """Create, list, query, pause, resume and remove changefeeds."""


def _which(command: Any) -> Any:
    command = click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)(command)
    command = click.option("-c", "--changefeed-id", required=True, metavar="ID")(command)
    return cluster_option(zookeeper_option(required=True)(command))


@changefeed.command()
@click.option(
    "-c", "--changefeed-id", default=None, metavar="ID", help="Letters and digits joined by '-'; none: a UUID."
)
@click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)
@click.option("--sink-uri", required=True, metavar="URI", help="kafka://HOST:PORT/TOPIC?protocol=…, as TiCDC takes it.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Changefeed file, TiCDC's TOML."
)
@click.option("--start-ts", type=int, default=0, help="Rows above this TSO; 0: from now on.")
@click.option("--target-ts", type=int, default=0, help="The last TSO, inclusive; 0: never ends.")
@upstream_option
@cluster_option
@kafka_option(required=True)
@zookeeper_option(required=True)
def create(
    changefeed_id: str | None,
    namespace: str,
    sink_uri: str,
    config: Path | None,
    start_ts: int,
    target_ts: int,
    upstream: str,
    cluster: str,
    kafka: str,
    zookeeper: str,
) -> None:
    """Check a changefeed and create it; `tidebus sorter --changefeed ID` then runs it."""
    from compose.changefeeds import create_changefeed, summary
    from compose.stack.local import Addresses
    from consumers.changefeed_store import ChangefeedRequest
    from schemas.config.changefeed import load_changefeed

    table = read_changefeed_file(config)
    checked = load_changefeed(sink_uri, config.read_text() if config else None, file=str(config) if config else None)
    request = ChangefeedRequest(
        upstream=UpstreamId(upstream),
        sink_uri=sink_uri,
        config=table,
        changefeed_id=changefeed_id,
        namespace=namespace,
        start_ts=Ts(start_ts) if start_ts else None,
        target_ts=Ts(target_ts) if target_ts else None,
    )
    info = create_changefeed(Addresses(kafka=kafka, zookeeper=zookeeper), cluster, request, checked)
    for note in checked.notes:
        click.echo(f"note: {note}", err=True)
    _print(summary(info, None))


@changefeed.command("list")
@click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)
@cluster_option
@zookeeper_option(required=True)
def list_command(namespace: str, cluster: str, zookeeper: str) -> None:
    """Show all changefeeds of a namespace."""
    from compose.changefeeds import open_store, summary

    with open_store(zookeeper, cluster) as store:
        infos = store.list(namespace)
        _print([summary(info, store.status(info.changefeed_id, namespace)) for info in infos])


@changefeed.command()
@_which
def query(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Show one changefeed: settings, state, checkpoint, last error."""
    from compose.changefeeds import details, open_store

    with open_store(zookeeper, cluster) as store:
        _print(details(store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)))


@changefeed.command()
@_which
def pause(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Stop a changefeed after its batch; its checkpoint stays."""
    from compose.changefeeds import open_store

    with open_store(zookeeper, cluster) as store:
        _desire(store, changefeed_id, namespace, "stopped")


@changefeed.command()
@_which
def resume(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Let a stopped or failed changefeed go on from its checkpoint."""
    from compose.changefeeds import open_store

    with open_store(zookeeper, cluster) as store:
        _desire(store, changefeed_id, namespace, "normal")


@changefeed.command()
@_which
def remove(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Forget a changefeed; its topics stay."""
    from compose.changefeeds import open_store

    with open_store(zookeeper, cluster) as store:
        store.remove(changefeed_id, namespace)


def read_changefeed_file(path: Path | None) -> dict[str, Any]:
    """Return a changefeed file's table.

    Raises:
        ConfigError: malformed; file and line are named.
    """
    from schemas.config.changefeed import parse_changefeed_text

    if path is None:
        return {}
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("changefeed file is not readable", file=str(path), reason=error) from error
    return parse_changefeed_text(text, file=str(path))[0]


def _desire(store: "ChangefeedStore", changefeed_id: str, namespace: str, state: ChangefeedState) -> None:
    def change(info: ChangefeedInfo) -> ChangefeedInfo:
        return replace(info, desired_state=state)

    store.update(changefeed_id, change, namespace)


def _print(shown: Any) -> None:
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
