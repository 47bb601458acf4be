"""``tidebus changefeed …``: `cdc cli changefeed`, verb by verb, over a capture's API."""

import difflib
import functools
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compose.cli.given_files import changefeed_text
from compose.cli.options.kinds import Command, Duration
from compose.cli.options.server import ask, server_options
from compose.echo import echo, listed
from schemas.errors import ConfigError
from schemas.nodes.changefeed import NAMESPACE_DEFAULT

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls
    from schemas.config.parse.origin import Origin
    from schemas.config.settings import ChangefeedConfig

OURS = "/api/tidebus"
"""Where the API has what TiCDC has not."""
DAY_MS = 24 * 3600 * 1000
_HIDDEN_STATES = ("finished", "removed")
_UPDATABLE = ("stopped", "failed")
_IDENTITY = ("upstream_id", "namespace", "id", "keyspace")


@click.group()
def changefeed() -> None:
    """Create, list, query, pause, resume, update, move and remove changefeeds."""


def namespace_option(command: Command) -> Command:
    """Add ``--namespace``, and ``--keyspace``, the same by its newer name; the command gets it as ``namespace``."""

    @functools.wraps(command)
    def wrapper(*, namespace: str, keyspace: str, **others: object) -> object:
        return command(namespace=keyspace or namespace, **others)

    wrapper = click.option("-k", "--keyspace", default="", help="TiCDC's newer word for --namespace.")(wrapper)
    option = click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)
    return option(wrapper)  # type: ignore[return-value]


def upstream_options(command: Command) -> Command:
    """Add ``--upstream-pd`` and its files, which `cdc cli` takes without telling; for :func:`upstream_body`."""
    for what in ("pd", "ca", "cert", "key"):
        command = click.option(f"--upstream-{what}", default="", hidden=True)(command)
    return command


def _which(command: Command) -> Command:
    command = click.option("-c", "--changefeed-id", required=True, metavar="ID")(namespace_option(command))
    return server_options(command)


def _settings(command: Command) -> Command:
    """Add what create and update take: the sink, the file, the end, and what `cdc cli` takes without telling."""
    for option in (
        upstream_options,
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Changefeed file, TiCDC's TOML.",
        ),
        click.option("--target-ts", type=click.IntRange(min=0), default=0, help="The last TSO, inclusive; 0: none."),
        click.option("--schema-registry", default="", metavar="URL", help="For Avro; as [sink] schema-registry."),
        click.option("--no-confirm", is_flag=True, help="Do not ask."),
        *(click.option(f"--{what}", default="", hidden=True) for what in ("sort-engine", "sort-dir", "tz")),
        click.option("-v", "--verbose", is_flag=True, hidden=True),
    ):
        command = option(command)
    return command


@changefeed.command()
@click.option("-c", "--changefeed-id", default="", metavar="ID", help="Letters and digits joined by '-'; none: a UUID.")
@namespace_option
@click.option("--sink-uri", required=True, metavar="URI", help="kafka://HOST:PORT/TOPIC?protocol=…, as TiCDC takes it.")
@click.option("--start-ts", type=click.IntRange(min=0), default=0, help="Rows above this TSO; 0: from now on.")
@click.option("--disable-gc-check", is_flag=True, hidden=True)
@_settings
@server_options
def create(api: "ApiCalls", changefeed_id: str, namespace: str, start_ts: int, no_confirm: bool, **given: Any) -> None:
    """Check a changefeed and create it; the owner gives it to a sorter service."""
    from compose.operator.api_calls import ApiRefusedError, located, tables_without_key

    sink_uri, config = given["sink_uri"], given["config"]
    table, checked = _read(sink_uri, config, given["schema_registry"])
    settings = {"sink_uri": sink_uri, "replica_config": table, **upstream_body(given)}
    body = {**settings, "namespace": namespace, "changefeed_id": changefeed_id, "start_ts": start_ts}
    try:
        if start_ts:
            _ask_old(api, start_ts, no_confirm)
        tables = tables_without_key(api, settings, start_ts)
        if tables:
            echo(f"tables without a primary key or not-null unique key: {listed(tables)}", err=True)
            ask("Ignore those tables and replicate the others?", no_confirm)
        if tables or no_confirm:
            body["replica_config"] = {**table, "ignore_ineligible_table": True}
        info = api.call("POST", "/changefeeds", {**body, "target_ts": given["target_ts"]})
    except ApiRefusedError as error:
        raise located(error, checked.origin) from error
    for note in checked.notes:
        echo(f"note: {note}", err=True)
    echo(f"Create changefeed successfully!\nID: {info['id']}\nInfo: {json.dumps(info, ensure_ascii=False)}")


@changefeed.command()
@click.option("--sink-uri", default="", metavar="URI")
@_settings
@_which
def update(api: "ApiCalls", changefeed_id: str, namespace: str, no_confirm: bool, **given: Any) -> None:
    """Change settings of a stopped or failed changefeed; prints what changes, and asks.

    A file is laid over the settings that there are: what it does not name stays.
    """
    from compose.operator.api_calls import ApiRefusedError, located
    from consumers.control.api.replica_config import laid_over, replica_config, to_api
    from consumers.control.changefeeds.verbs import UpdateRefusedError
    from schemas.config.parse.origin import Origin

    before = api.get(f"/changefeeds/{changefeed_id}/meta_info", namespace=namespace)
    if before["state"] not in _UPDATABLE:  # not after a question that leads to nothing
        raise UpdateRefusedError(
            "only a stopped or failed changefeed can be updated; pause it first",
            changefeed=changefeed_id,
            state=before["state"],
        )
    change, after, origin = upstream_body(given), dict(before), Origin()
    if given["sink_uri"]:
        from consumers.control.api.bodies import shown_uri

        change["sink_uri"], after["sink_uri"] = given["sink_uri"], shown_uri(given["sink_uri"])
    if given["config"] or given["schema_registry"]:
        table, origin = _table(given["config"], given["schema_registry"])
        # Secrets that are shown as stars go back as stars, for which the server keeps its own.
        change["replica_config"] = laid_over(before["config"], replica_config(table))
        after["config"] = laid_over(before["config"], to_api(table))
    if given["target_ts"]:
        change["target_ts"] = after["target_ts"] = given["target_ts"]
    for line in _difference(before, after):
        echo(line, err=True)
    ask(f"Apply these changes to changefeed {changefeed_id}?", no_confirm)
    try:
        info = api.call("PUT", f"/changefeeds/{changefeed_id}", change, namespace=namespace)
    except ApiRefusedError as error:
        raise located(error, origin) from error
    shown = json.dumps(info, ensure_ascii=False)
    echo(f"Update changefeed config successfully!\nID: {changefeed_id}\nInfo: {shown}")


@changefeed.command("list")
@namespace_option
@click.option("-a", "--all", "everything", is_flag=True, help="Finished and removed ones too.")
@server_options
def list_command(api: "ApiCalls", namespace: str, everything: bool) -> None:
    """Show the changefeeds of a namespace."""
    items = api.get("/changefeeds", state="all", namespace=namespace)["items"]
    named = ("id", "namespace", "keyspace")
    shown = [{**{name: item[name] for name in named}, "summary": _summary(item)} for item in items]
    echo_json([item for item in shown if everything or item["summary"]["state"] not in _HIDDEN_STATES])


@changefeed.command()
@click.option("-s", "--simple", "is_simple", is_flag=True, help="State, checkpoint and error only.")
@_which
def query(api: "ApiCalls", changefeed_id: str, namespace: str, is_simple: bool) -> None:
    """Show one changefeed: settings, state, checkpoint, last error, who pulls its tables, who sorts it, its images."""
    from schemas.config.sink.schemes import is_lake_scheme, sink_scheme

    info = api.get(f"/changefeeds/{changefeed_id}", namespace=namespace)
    info["checkpoint_tso"] = info["checkpoint_ts"]
    if is_simple:
        echo_json({name: info[name] for name in (*_IDENTITY, "state", "checkpoint_tso", "checkpoint_time", "error")})
        return
    names = (*_IDENTITY, "sink_uri", "config", "create_time", "start_ts", "resolved_ts", "target_ts", "checkpoint_tso")
    more = ("checkpoint_time", "state", "error", "creator_version", "time_zone", "task_status")
    shown = {name: info[name] for name in (*names, *more)}
    for name in ("sorter", "images"):
        shown[name] = api.get(f"{OURS}/changefeeds/{changefeed_id}/{name}", namespace=namespace) or None
    if is_lake_scheme(sink_scheme(info["sink_uri"])):
        shown["refused_tables"] = _refused_tables(api, changefeed_id, namespace)
    echo_json(shown)


def _refused_tables(api: "ApiCalls", changefeed_id: str, namespace: str) -> object:
    """Return which tables a lake refuses; None: a capture of a version before does not say it, or Kafka none."""
    from compose.operator.api_calls import ApiRefusedError

    try:
        return api.get(f"{OURS}/changefeeds/{changefeed_id}/tables/refused", namespace=namespace)["items"]
    except ApiRefusedError:
        return None


@changefeed.command()
@click.option("-I", "--interval", type=Duration(), default=10.0, show_default=True, help="Between two lines.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many lines; else at Ctrl-C.")
@_which
def statistics(api: "ApiCalls", changefeed_id: str, namespace: str, interval: float, count: int | None) -> None:
    """Print a changefeed's gaps at every interval: behind what could be written, and behind PD's clock."""
    for number in itertools.count(1):
        status = api.get(f"/changefeeds/{changefeed_id}/status", namespace=namespace)
        checkpoint_ms, resolved_ms = status["checkpoint_ts"] >> 18, status["resolved_ts"] >> 18
        now_ms = api.call("POST", "/tso", {})["timestamp"]
        gaps = {"sink_gap": resolved_ms - checkpoint_ms, "replication_gap": max(0, now_ms - checkpoint_ms)}
        echo_json({name: f"{gap}ms" for name, gap in gaps.items()})
        if number == count:
            return
        time.sleep(interval)


@changefeed.command()
@_which
def pause(api: "ApiCalls", changefeed_id: str, namespace: str) -> None:
    """Stop a changefeed after its batch; its checkpoint stays."""
    api.call("POST", f"/changefeeds/{changefeed_id}/pause", namespace=namespace)


@changefeed.command()
@click.option(
    "--overwrite-checkpoint-ts", default="", metavar="TSO|now", help="Go on from here instead; `now`: by PD's clock."
)
@click.option("--no-confirm", is_flag=True, help="Do not ask before a checkpoint is overwritten.")
@upstream_options
@click.option("-v", "--verbose", is_flag=True, hidden=True)
@_which
def resume(
    api: "ApiCalls",
    changefeed_id: str,
    namespace: str,
    overwrite_checkpoint_ts: str,
    no_confirm: bool,
    verbose: bool,
    **given: object,
) -> None:
    """Let a stopped, failed or finished changefeed go on from its checkpoint, or another."""
    wanted, ts = overwrite_checkpoint_ts.lower(), 0
    if wanted and wanted != "now" and not (wanted.isdecimal() and int(wanted)):
        raise ConfigError("must be a TSO or `now`", key="overwrite-checkpoint-ts", got=wanted)
    if wanted:
        known = api.get(f"/changefeeds/{changefeed_id}/status", namespace=namespace)["checkpoint_ts"]
        ts = now_ts(api) if wanted == "now" else int(wanted)
        ask(f"The checkpoint goes from {known} to {ts}: rows are repeated or passed over. Go on?", no_confirm)
    body = {**({"overwrite_checkpoint_ts": ts} if ts else {}), **upstream_body(given)}
    api.call("POST", f"/changefeeds/{changefeed_id}/resume", body, namespace=namespace)


@changefeed.command()
@click.option(
    "--capture",
    required=True,
    metavar="ID",
    help="A capture's id or address, or a sorter service's id; '': whichever the owner takes.",
)
@_which
def move(api: "ApiCalls", changefeed_id: str, namespace: str, capture: str) -> None:
    """Let a capture's sorter service run a changefeed whenever that capture lives, also after its restart; a service
    that was started by hand, for as long as it lives.
    """
    api.call("POST", f"{OURS}/changefeeds/{changefeed_id}/move", {"capture_id": capture}, namespace=namespace)


@changefeed.command("move-table")
@click.option("-t", "--table-id", type=int, required=True)
@click.option("-d", "--target-node-id", required=True, metavar="ID", help="The capture.")
@click.option("--mode", type=int, default=0, hidden=True)
@click.option("--wait/--no-wait", default=True, hidden=True)
@_which
def move_table(
    api: "ApiCalls", changefeed_id: str, namespace: str, table_id: int, target_node_id: str, mode: int, wait: bool
) -> None:
    """Move a table to a capture, for all changefeeds of its upstream; `processor query` shows when it is there."""
    path = f"/changefeeds/{changefeed_id}/move_table"
    query = {"tableID": str(table_id), "targetNodeID": target_node_id, "mode": str(mode), "wait": str(wait).lower()}
    api.call("POST", path, None, namespace=namespace, **query)


@changefeed.command()
@_which
def remove(api: "ApiCalls", changefeed_id: str, namespace: str) -> None:
    """Forget a changefeed; its topics stay. One that is not there is no error, as in `cdc cli`."""
    from compose.operator.api_calls import ApiRefusedError

    untold: ApiRefusedError | None = None
    try:
        info = api.get(f"/changefeeds/{changefeed_id}/meta_info", namespace=namespace)
    except ApiRefusedError as error:
        if error.cdc_code == "CDC:ErrChangeFeedNotExists":
            echo(f"Changefeed not found.\nID: {changefeed_id}")
            return
        # Only what is printed below is missing: one that nobody can read is removed all the same.
        untold, info = error, {"checkpoint_ts": "unknown", "sink_uri": "unknown"}
    api.call("DELETE", f"/changefeeds/{changefeed_id}", namespace=namespace)
    if untold is not None:
        echo(f"note: {untold}", err=True)
    said = f"ID: {changefeed_id}\nCheckpointTs: {info['checkpoint_ts']}\nSinkURI: {info['sink_uri']}"
    echo(f"Changefeed remove successfully.\n{said}")


def now_ts(api: "ApiCalls") -> int:
    """Return a new TSO of PD."""
    now = api.call("POST", "/tso", {})
    return int(now["timestamp"]) << 18 | int(now["logic_time"])


def echo_json(shown: object) -> None:
    """Print a value as people and scripts read it."""
    echo(json.dumps(shown, indent=2, ensure_ascii=False))


def _summary(info: dict[str, object]) -> dict[str, object]:
    return {
        "state": info["state"],
        "tso": info["checkpoint_tso"],
        "checkpoint": info["checkpoint_time"],
        "error": info["error"],
    }


def _read(sink_uri: str, file: Path | None, schema_registry: str) -> "tuple[dict[str, object], ChangefeedConfig]":
    """Return a changefeed file as a ``replica_config``, checked here so that an error names the line."""
    from consumers.control.api.replica_config import replica_config
    from schemas.config.changefeed import load_changefeed

    table, _ = _table(file, schema_registry)
    checked = load_changefeed(
        sink_uri, table if schema_registry or file is None else changefeed_text(file), file=_name(file)
    )
    return replica_config(table), checked


def _table(file: Path | None, schema_registry: str) -> "tuple[dict[str, object], Origin]":
    """Return a changefeed file's table, and where its keys stand."""
    from schemas.config.changefeed import parse_changefeed_text

    table, origin = parse_changefeed_text(changefeed_text(file) if file else "", file=_name(file))
    if schema_registry:
        sink = table.get("sink", {})
        given = {"schema-registry": schema_registry}
        # A `sink` that is no table is refused by its name where the table is checked.
        table = {**table, "sink": {**sink, **given} if isinstance(sink, Mapping) else sink}
    return table, origin


def _name(file: Path | None) -> str | None:
    return str(file) if file else None


def upstream_body(given: dict[str, Any]) -> dict[str, object]:
    """Return the fields of a request that name an upstream by ``--upstream-…``, which must be the capture's own."""
    for flag in ("sort_engine", "sort_dir"):
        if given.get(flag):
            echo(f"note: --{flag.replace('_', '-')} does nothing here: the raw log is the sorter", err=True)
    if given.get("tz"):
        echo("note: --tz does nothing here: the capture's own --tz decides", err=True)
    addresses = [address for address in given["upstream_pd"].split(",") if address]
    named = {"ca_path": "upstream_ca", "cert_path": "upstream_cert", "key_path": "upstream_key"}
    paths = {name: given[flag] for name, flag in named.items() if given[flag]}
    return {**({"pd_addrs": addresses} if addresses else {}), **paths}


def _ask_old(api: "ApiCalls", start_ts: int, no_confirm: bool) -> None:
    lag_ms = (now_ts(api) >> 18) - (start_ts >> 18)
    if lag_ms > DAY_MS:
        ask(
            f"--start-ts is {lag_ms / DAY_MS:.1f} days behind: all rows since then are sorted again. Go on?", no_confirm
        )


def _difference(before: dict[str, object], after: dict[str, object]) -> list[str]:
    now, then = (json.dumps(settings, indent=2, ensure_ascii=False).splitlines() for settings in (before, after))
    return list(difflib.unified_diff(now, then, "now", "then", lineterm="", n=0))
