"""`tidebus processor`: writes one changefeed's rows to its destination, where that is no Kafka."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.options.access import cluster_secret_option, kafka_option, tls_options, zookeeper_option
from compose.cli.options.names import cluster_option, feed_options
from compose.quick_imports import quick_imports

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess
    from edges.zookeeper.access import ZooKeeperAccess
    from producers.tls import TlsSettings


@click.command()
@feed_options
@kafka_option(required=True)
@zookeeper_option(required=True)
@cluster_option
@click.option("--capture", default="", metavar="ID", help="The capture that starts it; for people who look.")
@click.option(
    "--peer-host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen for other processors; at any free port.",
)
@click.option("--advertise-peer-host", default="", help="Under which they reach it; empty: --peer-host.")
@tls_options
@cluster_secret_option
def processor(
    changefeed_id: str,
    namespace: str,
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    cluster: str,
    capture: str,
    peer_host: str,
    advertise_peer_host: str,
    tls: "TlsSettings",
    cluster_secret_file: Path | None,
) -> int:
    """Apply a changefeed to its database or files, sharing its partitions with all other processors of it.

    These talk TLS to each other where the files are given that a capture shows to PD and TiKV.
    """
    with quick_imports():
        from compose.logs import log_to_stderr
        from compose.processors import begin_work
        from consumers.processors.processor import VERSION, ProcessorOptions, run_processor

    log_to_stderr()
    options = ProcessorOptions(
        changefeed_id=changefeed_id,
        namespace=namespace,
        cluster=cluster,
        kafka=kafka,
        zookeeper=zookeeper,
        capture=capture,
    )
    listen, advertised = f"{peer_host}:0", f"{advertise_peer_host or peer_host}:0"
    # grpc takes a while to load, ZooKeeper and Kafka a while to answer: both at once.
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(import_module, "compose.peers")
        return run_processor(
            options,
            begin_work,
            lambda processor: loading.result().open_peers(
                processor,
                VERSION,
                listen=listen,
                advertised=advertised,
                tls=tls,
                cluster_secret_file=cluster_secret_file,
            ),
        )
