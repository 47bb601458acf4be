"""`tidebus processor`: writes one changefeed's rows to its destination, where that is no Kafka."""

import click

from compose.cli.options import cluster_option, kafka_option, zookeeper_option
from schemas.changefeed import NAMESPACE_DEFAULT


@click.command()
@click.option(
    "-c", "--changefeed", "changefeed_id", required=True, metavar="ID", help="As `changefeed create` named it."
)
@click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)
@kafka_option(required=True)
@zookeeper_option(required=True)
@cluster_option
def processor(changefeed_id: str, namespace: str, kafka: str, zookeeper: str, cluster: str) -> int:
    """Apply one changefeed to its MySQL or TiDB: rows, DDL and syncpoints, each exactly once."""
    from compose.logs import log_to_stderr
    from compose.processors import begin
    from consumers.processor import ProcessorOptions, run_processor

    log_to_stderr()
    options = ProcessorOptions(
        changefeed_id=changefeed_id, namespace=namespace, cluster=cluster, kafka=kafka, zookeeper=zookeeper
    )
    return run_processor(options, begin)
