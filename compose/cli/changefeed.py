"""``tidebus changefeed …``: TiCDC's verbs."""

import difflib
import itertools
import json
import time
from pathlib import Path
from typing import Any

import click

from compose.cli.options import Duration, cluster_option, kafka_option, upstream_option, zookeeper_option
from schemas.changefeed import NAMESPACE_DEFAULT
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId


@click.group()
def changefeed() -> None:
    """Create, list, query, pause, resume, update and remove changefeeds."""


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
@click.option("-a", "--all", "everything", is_flag=True, help="Finished ones too.")
@cluster_option
@zookeeper_option(required=True)
def list_command(namespace: str, everything: bool, cluster: str, zookeeper: str) -> None:
    """Show the changefeeds of a namespace."""
    from compose.changefeeds import listed, open_store

    with open_store(zookeeper, cluster) as store:
        shown = [listed(info, store.status(info.changefeed_id, namespace)) for info in store.list(namespace)]
    _print([feed for feed in shown if everything or feed["summary"]["state"] not in ("finished", "removed")])


@changefeed.command()
@_which
@click.option("-s", "--simple", "is_simple", is_flag=True, help="State, checkpoint and error only.")
def query(changefeed_id: str, namespace: str, cluster: str, zookeeper: str, is_simple: bool) -> None:
    """Show one changefeed: settings, state, checkpoint, last error."""
    from compose.changefeeds import details, open_store, simple

    with open_store(zookeeper, cluster) as store:
        info, status = store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)
        _print((simple if is_simple else details)(info, status))


@changefeed.command()
@_which
@click.option("-I", "--interval", type=Duration(), default=10.0, show_default=True, help="Between two lines.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many lines; else at Ctrl-C.")
def statistics(
    changefeed_id: str, namespace: str, cluster: str, zookeeper: str, interval: float, count: int | None
) -> None:
    """Print a changefeed's gaps at every interval; the time now is this machine's."""
    from compose.changefeeds import gaps, open_store

    with open_store(zookeeper, cluster) as store:
        for number in itertools.count(1):
            info, status = store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)
            click.echo(json.dumps(gaps(info, status, time.time() * 1000)))
            if number == count:
                return
            time.sleep(interval)


@changefeed.command()
@_which
def pause(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Stop a changefeed after its batch; its checkpoint stays."""
    from compose.changefeeds import open_control

    with open_control(zookeeper, cluster) as control:
        control.pause(changefeed_id, namespace)


@changefeed.command()
@_which
@kafka_option(required=False)
@click.option(
    "--overwrite-checkpoint-ts",
    metavar="TSO|now",
    help="Go on from here instead; `now` is the newest that the raw log has. Needs --kafka.",
)
@click.option("--no-confirm", is_flag=True, help="Do not ask before a checkpoint is overwritten.")
def resume(
    changefeed_id: str,
    namespace: str,
    cluster: str,
    zookeeper: str,
    kafka: str,
    overwrite_checkpoint_ts: str | None,
    no_confirm: bool,
) -> None:
    """Let a stopped, failed or finished changefeed go on from its checkpoint, or another."""
    from compose.changefeeds import open_control, resume_ts

    with open_control(zookeeper, cluster) as control:
        ts = None
        if overwrite_checkpoint_ts is not None:
            info, status = control.store.get(changefeed_id, namespace), control.store.status(changefeed_id, namespace)
            ts = resume_ts(kafka, info.upstream, overwrite_checkpoint_ts)
            known = status.checkpoint_ts if status else info.start_ts
            _ask(f"The checkpoint goes from {known} to {ts}: rows are repeated or passed over. Go on?", no_confirm)
        control.resume(changefeed_id, namespace, overwrite_checkpoint_ts=ts)


@changefeed.command()
@_which
@click.option("--sink-uri", default=None, metavar="URI")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replaces the settings as a whole."
)
@click.option("--target-ts", type=int, default=0, help="The last TSO, inclusive; 0: as it is.")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
def update(
    changefeed_id: str,
    namespace: str,
    cluster: str,
    zookeeper: str,
    sink_uri: str | None,
    config: Path | None,
    target_ts: int,
    no_confirm: bool,
) -> None:
    """Change settings of a stopped or failed changefeed; prints what changes, and asks."""
    from compose.changefeeds import details, open_control
    from consumers.changefeed_control import ConfigChange, configured, state_of
    from schemas.config.changefeed import load_changefeed

    change = ConfigChange(
        sink_uri=sink_uri,
        config=read_changefeed_file(config) if config else None,
        target_ts=Ts(target_ts) if target_ts else None,
    )
    with open_control(zookeeper, cluster) as control:
        info, status = control.store.get(changefeed_id, namespace), control.store.status(changefeed_id, namespace)
        if config is not None:  # so that an error names the line
            load_changefeed(sink_uri or info.sink_uri, config.read_text(), file=str(config))
        changed = configured(info, state_of(info, status), change)
        before, after = (json.dumps(details(one, status), indent=2).splitlines() for one in (info, changed))
        for line in difflib.unified_diff(before, after, "now", "then", lineterm="", n=0):
            click.echo(line, err=True)
        _ask("Update the changefeed?", no_confirm)
        _print(details(control.configure(changefeed_id, change, namespace), status))


@changefeed.command()
@_which
def remove(changefeed_id: str, namespace: str, cluster: str, zookeeper: str) -> None:
    """Forget a changefeed; its topics stay."""
    from compose.changefeeds import open_control

    with open_control(zookeeper, cluster) as control:
        control.remove(changefeed_id, namespace)


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


def _ask(question: str, no_confirm: bool) -> None:
    if not no_confirm:
        click.confirm(question, abort=True, err=True)


def _print(shown: Any) -> None:
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
