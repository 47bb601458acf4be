"""``tidebus verify``: whether the destination holds what the upstream held."""

import sys
from typing import TYPE_CHECKING

import click

from compose.cli.options.access import kafka_option, zookeeper_option
from compose.cli.options.kinds import Duration
from compose.cli.options.names import cluster_option, feed_options
from compose.echo import echo

if TYPE_CHECKING:
    from consumers.verify.core.outcome import TableOutcome
    from edges.kafka.access import KafkaAccess
    from edges.zookeeper.access import ZooKeeperAccess


@click.command()
@feed_options
@click.option("-t", "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Upstream's name; again for more.")
@click.option(
    "--upstream-dsn",
    default="",
    envvar="TIDEBUS_UPSTREAM_DSN",
    metavar="URI",
    help="The TiDB to compare with, as a sink URI: tidb://user:password@host:4000/. Better by the variable.",
)
@click.option(
    "--downstream-dsn",
    default="",
    envvar="TIDEBUS_DOWNSTREAM_DSN",
    metavar="URI",
    help="The destination by another address or user.  [default: the changefeed's sink URI]",
)
@click.option("--keys", "keys_max", type=click.IntRange(1), default=100, show_default=True, help="Named, of a table.")
@click.option(
    "--wait", "wait_s", type=Duration(), default=60.0, show_default=True, help="For a DDL that is under way there."
)
@click.option("--json", "in_json", is_flag=True, help="One JSON object a table.")
@kafka_option(required=False)
@zookeeper_option(required=True)
@cluster_option
def verify(
    changefeed_id: str,
    namespace: str,
    tables: tuple[str, ...],
    upstream_dsn: str,
    downstream_dsn: str,
    keys_max: int,
    wait_s: float,
    in_json: bool,
    kafka: "KafkaAccess | None",
    zookeeper: "ZooKeeperAccess",
    cluster: str,
) -> int:
    """Compare a database, or topics, with the TiDB that a changefeed copies there, and name the keys that differ.

    Both sides are read as of one ts a table, while writers and processors go on; nothing is written. Exit status: 0 all
    tables are the same; 3 one differs; 1 it failed, or a table could not be compared; 2 the command line is wrong.
    """
    from compose.operator.verify import STATUS_NOT_COMPARED, VerifyOptions, exit_status, shown
    from compose.operator.verify import verify as run

    if not upstream_dsn:
        raise click.UsageError("--upstream-dsn, or TIDEBUS_UPSTREAM_DSN, must say which TiDB to compare with")
    options = VerifyOptions(
        changefeed_id=changefeed_id,
        namespace=namespace,
        cluster=cluster,
        zookeeper=zookeeper,
        upstream_dsn=upstream_dsn,
        downstream_dsn=downstream_dsn,
        tables=tables,
        keys_max=keys_max,
        wait_s=wait_s,
        kafka=kafka,
    )
    verdicts = []

    def on_table(outcome: "TableOutcome") -> None:
        verdicts.append(outcome.verdict)
        echo(shown(outcome, in_json=in_json))
        sys.stdout.flush()

    if not run(options, on_table, lambda text: echo(f"note: {text}", err=True)):
        echo("note: the changefeed has no tables upstream, so nothing is compared", err=True)
        return STATUS_NOT_COMPARED
    return exit_status(verdicts)
