"""``tidebus cli …``: TiCDC's `cdc cli`, verb by verb, over a capture's API."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.changefeed import changefeed, echo_json, namespace_option, now_ts, upstream_body, upstream_options
from compose.cli.options.access import kafka_option, pd_option, tls_options, zookeeper_option
from compose.cli.options.names import cluster_option, upstream_option
from compose.cli.options.server import CREDENTIALS_DEFAULT, ask, ask_nothing, server_group, server_options
from compose.echo import echo
from schemas.errors import ConfigError
from schemas.ids import UpstreamId
from schemas.masking import mask_uri
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ZkPaths

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls
    from edges.kafka.access import KafkaAccess
    from edges.zookeeper.access import ZooKeeperAccess
    from producers.tls import TlsSettings


@click.group("cli")
@server_group
def operator() -> None:
    """What `cdc cli` does: changefeeds, captures, processors, PD's clock, repairs."""


@click.group()
def capture() -> None:
    """The captures that live."""


@capture.command("list")
@server_options
def list_captures(api: "ApiCalls") -> None:
    """Show all captures and which of them is the owner."""
    items = api.get("/captures")["items"]
    echo_json([{name.replace("_", "-"): value for name, value in item.items()} for item in items])


@capture.command()
@click.argument("capture_id")
@server_options
def drain(api: "ApiCalls", capture_id: str) -> None:
    """Move all tables of a capture to the others; prints how many it has now. Ask again until it is 0."""
    echo_json(api.call("POST", f"/captures/{capture_id}/drain"))


@capture.command("resign-owner")
@server_options
def resign_owner(api: "ApiCalls") -> None:
    """Let the owner resign; the next capture in line takes over."""
    api.call("POST", "/owner/resign")


@capture.command("move-table")
@click.option("-c", "--changefeed-id", required=True, metavar="ID", help="Any changefeed that has the table.")
@namespace_option
@click.option("-t", "--table-id", type=int, required=True)
@click.option("-p", "--capture-id", required=True, help="Where to.")
@server_options
def move_table(api: "ApiCalls", changefeed_id: str, namespace: str, table_id: int, capture_id: str) -> None:
    """Move a table to a capture; `processor query` shows when it is there."""
    path = f"/api/v1/changefeeds/{changefeed_id}/tables/move_table"
    api.call("POST", path, {"capture_id": capture_id, "table_id": table_id}, namespace=namespace)


@capture.command("rebalance")
@click.option("-c", "--changefeed-id", required=True, metavar="ID", help="Any changefeed of the upstream.")
@namespace_option
@server_options
def rebalance(api: "ApiCalls", changefeed_id: str, namespace: str) -> None:
    """Give every capture its share of the tables at once."""
    api.call("POST", f"/api/v1/changefeeds/{changefeed_id}/tables/rebalance_table", namespace=namespace)


@click.group()
def processor() -> None:
    """Which captures work for which changefeeds."""


@processor.command("list")
@server_options
def list_processors(api: "ApiCalls") -> None:
    """Show every pair of a changefeed that runs and a capture that pulls of its tables or applies of its rows."""
    echo_json(api.get("/processors")["items"])


@processor.command("query")
@click.option("-c", "--changefeed-id", required=True, metavar="ID")
@click.option("-p", "--capture-id", required=True, metavar="ID")
@namespace_option
@server_options
def query_processor(api: "ApiCalls", changefeed_id: str, capture_id: str, namespace: str) -> None:
    """Show a changefeed's tables that a capture pulls, and the partitions of its topic that it applies."""
    pulled = api.get(f"/processors/{changefeed_id}/{capture_id}", namespace=namespace)
    tables = {str(table): {"start-ts": 0} for table in pulled["table_ids"]}
    # The outer two are what `cdc cli` still prints, though no TiCDC fills more of them in.
    status = {"tables": tables, "operation": None, "admin-job-type": 0}
    echo_json({"status": status, "position": None, **pulled})


@click.group()
def tso() -> None:
    """PD's timestamps."""


@tso.command("query")
@server_options
def query_tso(api: "ApiCalls") -> None:
    """Print a new TSO."""
    echo(now_ts(api))


@click.group()
@click.option("--no-confirm", is_flag=True, help="Do not ask; behind the verb too.")
def unsafe(no_confirm: bool) -> None:
    """Repairs that can lose data where they are not needed; those that can ask first."""
    ask_nothing(no_confirm)


@unsafe.command("show-metadata")
@server_options
def show_metadata(api: "ApiCalls") -> None:
    """Print all nodes of the cluster in ZooKeeper, without secrets."""
    for node in api.get("/unsafe/metadata"):
        echo(f"Key: {node['key']}, Value: {node['value']}")


@unsafe.command("resolve-lock")
@click.option("--region", type=int, required=True, help="The region's id.")
@click.option("--ts", type=int, default=0, help="Of transactions up to this TSO; 0: now.")
@click.option("--no-confirm", is_flag=True, hidden=True)
@namespace_option
@upstream_options
@server_options
def resolve_lock(api: "ApiCalls", region: int, ts: int, no_confirm: bool, namespace: str, **given: object) -> None:
    """Commit or roll back what crashed transactions have left locked in a region, as their primaries say; asks nothing,
    as transactions that live are left alone."""
    body = {"region_id": region, "ts": ts, **upstream_body(given)}
    echo_json(api.call("POST", "/unsafe/resolve_lock", body, namespace=namespace))


@unsafe.command("delete-service-gc-safepoint")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@namespace_option
@upstream_options
@server_options
def delete_service_gc_safepoint(api: "ApiCalls", no_confirm: bool, namespace: str, **given: object) -> None:
    """Let TiKV collect the history that this bus has still to pull; a running owner sets it anew."""
    ask("Really give up TiKV's history for this bus?", no_confirm)
    gone = api.call("DELETE", "/unsafe/service_gc_safepoint", upstream_body(given), namespace=namespace)
    echo(f"deleted {gone['service_id']}")


@unsafe.command("verify-gc-safepoint")
@click.option("-k", "--keyspace", default=NAMESPACE_DEFAULT, show_default=True, help="There is the null keyspace only.")
@click.option("--legacy-safepoint", is_flag=True, help="The GC safe point that all PDs have, not the txn safe point.")
@pd_option(required=True)
@tls_options
def verify_gc_safepoint(keyspace: str, legacy_safepoint: bool, pd: str, tls: "TlsSettings") -> None:
    """Read TiDB's databases as of the ts up to which PD lets history be collected; changes nothing, holds nothing."""
    from compose.operator.upstream_repair import verify_gc_safe_point

    if keyspace != NAMESPACE_DEFAULT:
        raise ConfigError("there is the null keyspace only, named `default`", key="keyspace", got=keyspace)
    ts, databases = verify_gc_safe_point(pd, tls, is_legacy=legacy_safepoint)
    echo(f"GC safepoint verified, snapshot-ts: {ts}, databases: {databases}")


@unsafe.command()
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@click.option("--cluster-id", default="", help="As --cluster, by TiCDC's name.")
@cluster_option
@zookeeper_option(required=True)
@pd_option(required=False)
@tls_options
@upstream_option
def reset(
    no_confirm: bool,
    cluster_id: str,
    cluster: str,
    zookeeper: "ZooKeeperAccess",
    pd: str,
    upstream: str,
    tls: "TlsSettings",
) -> None:
    """Forget all changefeeds of a cluster, and with --pd give up TiKV's history; topics stay.

    It asks no server: captures must have been stopped before.
    """
    from compose.operator.cluster_reset import reset_cluster
    from compose.operator.upstream_repair import delete_safe_point

    name = cluster_id or cluster
    ask(f"Really forget all changefeeds of cluster {name}?", no_confirm)
    echo("reset" if reset_cluster(zookeeper, name) else f"there is no cluster {name} in ZooKeeper")
    if pd:
        echo(f"deleted {delete_safe_point(pd, tls, name, UpstreamId(upstream))}")


@unsafe.command("adopt-raw-log")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@cluster_option
@zookeeper_option(required=True)
@kafka_option(required=True)
@upstream_option
def adopt_raw_log(
    no_confirm: bool, cluster: str, zookeeper: "ZooKeeperAccess", kafka: "KafkaAccess", upstream: str
) -> None:
    """Go on with an upstream's raw log that ZooKeeper has forgotten, since its data was lost.

    No other cluster may use that raw log. It asks no server: captures must have been stopped before.
    """
    from compose.operator import cluster_reset

    ask(f"Is upstream {upstream} used by no other cluster?", no_confirm)
    revision = cluster_reset.adopt_raw_log(zookeeper, kafka, cluster, UpstreamId(upstream))
    echo("nothing to do" if revision is None else f"the next owner follows the one of revision {revision}")


@unsafe.command("seal-changefeeds")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@cluster_option
@zookeeper_option(required=True)
def seal_changefeeds(no_confirm: bool, cluster: str, zookeeper: "ZooKeeperAccess") -> None:
    """Seal by the first key of --secret-key-file what rests in the clear or under a former key.

    With the key captures then trust these settings: look at where they send rows before you say yes. It asks no server.
    """
    from consumers.control.changefeeds.sealing import not_sealed, seal
    from edges.secrets import own_keyring
    from edges.zookeeper.session import Session

    paths, keyring = ZkPaths(cluster), own_keyring()
    with Session(zookeeper) as session:
        shown = not_sealed(session, paths, keyring)
        for info in shown:
            echo(f"{info.namespace}/{info.changefeed_id}: {mask_uri(info.sink_uri)}")
        if shown:
            ask("Are these settings all yours?", no_confirm)
        echo(f"sealed {seal(session, paths, keyring, shown)}")


@click.command("configure-credentials")
@click.option("--user", prompt=True)
@click.option("--password", prompt=True, hide_input=True, confirmation_prompt=True)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=CREDENTIALS_DEFAULT,
    help="[default: ~/.tidebus/credentials]",
)
@click.option(
    "--for-server",
    is_flag=True,
    help="Keep salted hashes of all users only: enough for --client-credentials, not for this command line.",
)
def configure_credentials(user: str, password: str, file: Path, for_server: bool) -> None:
    """Write a user and a password to a file that only you can read: for this command line, or for a server."""
    from consumers.control.api.access.credentials import write_credentials

    write_credentials(file, user, password, for_server=for_server)
    echo(f"user {user} stands in {file}")


@click.command()
@click.option("--name", "level", required=True, help="debug, info, warn, error")
@server_options
def log_level(api: "ApiCalls", level: str) -> None:
    """Change what a capture logs, until its end."""
    api.call("POST", "/log", {"log_level": level})


@click.command()
@server_options
def status(api: "ApiCalls") -> None:
    """Show the capture that answers."""
    echo(json.dumps(api.get("/status"), indent=2))


for _command in (changefeed, capture, processor, tso, unsafe, configure_credentials, status):
    operator.add_command(_command)
operator.add_command(log_level, "log-level")
