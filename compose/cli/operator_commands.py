"""``tidebus cli …``: TiCDC's `cdc cli`, verb by verb."""

import json
from typing import TYPE_CHECKING

import click

from compose.cli.changefeed import changefeed
from compose.cli.options import cluster_option, pd_option, tls_options, upstream_option, zookeeper_option
from schemas.ids import RegionId, Ts, UpstreamId

if TYPE_CHECKING:
    from producers.tls import TlsSettings


@click.group("cli")
def operator() -> None:
    """What `cdc cli` does: changefeeds, captures, processors, PD's clock, repairs."""


@click.group()
def capture() -> None:
    """The captures that live."""


@capture.command("list")
@cluster_option
@zookeeper_option(required=True)
def list_captures_command(cluster: str, zookeeper: str) -> None:
    """Show all captures and which of them is the owner."""
    from consumers.capture_registry import list_captures
    from consumers.election import Election
    from consumers.zookeeper import Session
    from schemas.changefeed import ZkPaths
    from schemas.ids import CaptureId

    with Session(zookeeper) as session:
        paths = ZkPaths(cluster)
        owner = Election(session, paths, CaptureId("")).owner()
        shown = [
            {
                "id": info.capture_id,
                "is-owner": info.capture_id == owner,
                "address": info.address,
                "cluster-id": cluster,
            }
            for info in list_captures(session, paths)
        ]
    click.echo(json.dumps(shown, indent=2))


@click.group()
def processor() -> None:
    """The processors of changefeeds whose sink is not Kafka."""


@processor.command("list")
def list_processors() -> None:
    """Show all processors: none, for every sink that this version has is Kafka, which a sorter writes."""
    click.echo("[]")


@click.group()
def tso() -> None:
    """PD's timestamps."""


@tso.command("query")
@pd_option(required=True)
@tls_options
def query_tso(pd: str, tls: "TlsSettings") -> None:
    """Print a new TSO."""
    from compose.upstream_repair import now_ts

    click.echo(now_ts(pd, tls))


@click.group()
def unsafe() -> None:
    """Repairs that can lose data where they are not needed; each asks first."""


@unsafe.command("resolve-lock")
@click.option("--region", type=int, required=True, help="The region's id.")
@click.option("--ts", type=int, default=0, help="Of transactions up to this TSO; 0: now.")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@pd_option(required=True)
@tls_options
def resolve_lock(region: int, ts: int, no_confirm: bool, pd: str, tls: "TlsSettings") -> None:
    """Commit or roll back what crashed transactions have left locked in a region, as their primaries say."""
    from compose.upstream_repair import resolve_region

    _ask(f"resolve the locks of region {region}", no_confirm)
    click.echo(json.dumps(resolve_region(pd, tls, RegionId(region), Ts(ts) if ts else None), indent=2))


@unsafe.command("delete-service-gc-safepoint")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@pd_option(required=True)
@tls_options
@cluster_option
@upstream_option
def delete_service_gc_safepoint(no_confirm: bool, pd: str, tls: "TlsSettings", cluster: str, upstream: str) -> None:
    """Let TiKV collect the history that this bus has still to pull; a running capture sets it anew."""
    from compose.upstream_repair import delete_safe_point

    _ask("give up TiKV's history for this bus", no_confirm)
    click.echo(f"deleted {delete_safe_point(pd, tls, cluster, UpstreamId(upstream))}")


def _ask(what: str, no_confirm: bool) -> None:
    if not no_confirm:
        click.confirm(f"Really {what}?", abort=True)


for _command in (changefeed, capture, processor, tso, unsafe):
    operator.add_command(_command)
