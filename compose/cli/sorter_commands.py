"""``tidebus sorter`` and ``tidebus sorters``: one changefeed's sorter by hand, and the service that runs many; and
``tidebus executor-archive``: what their executors need on other machines."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.options.access import kafka_option, registry_option, zookeeper_option
from compose.cli.options.kinds import FeedNameType, PathPart
from compose.cli.options.logs import log_options
from compose.cli.options.names import cluster_option, data_dir_option, feed_options
from compose.cli.options.spark import check_master, conf_pairs, driver_options
from compose.collector import OF_SORTERS, spare_old_objects
from compose.echo import echo
from compose.quick_imports import POOL_OF_MANY_THREADS, quick_imports

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess
    from edges.registry.access import RegistryAccess
    from edges.zookeeper.access import ZooKeeperAccess


_run_cuts_option = click.option(
    "--run-cuts",
    type=click.Choice(["auto", "driver", "spark"]),
    default="auto",
    show_default=True,
    help="Who runs the cuts of changefeeds that leave it open; auto goes by cost.",
)


@click.command()
@feed_options
@kafka_option(required=True)
@zookeeper_option(required=True)
@registry_option(required=False)
@cluster_option
@driver_options
@click.option(
    "--checkpoint-dir",
    default="",
    metavar="URI",
    help="Where Spark keeps the checkpoint of a streaming query.  [default: in --data-dir]",
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Setting of Spark; again for more.")
@_run_cuts_option
@click.option("--once", is_flag=True, help="End when the changefeed wants no sorter or has an error, as for an owner.")
@data_dir_option("data/sorter")
@log_options
def sorter(
    changefeed_id: str,
    namespace: str,
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    schema_registry: "RegistryAccess",
    cluster: str,
    master: str,
    driver_memory: str,
    checkpoint_dir: str,
    conf: tuple[str, ...],
    run_cuts: str,
    once: bool,
    data_dir: Path,
) -> int:
    """Run one changefeed: sort, mount, filter, dispatch and encode the raw log into its topics.

    Sorter services run changefeeds by themselves; one that is run by hand is run by none of them meanwhile. An error is
    for the owner to judge: until it lets the changefeed run again, this waits.
    """
    with quick_imports():
        from compose.stack.spark_files import name_spark_files
        from sorters.run.job import SorterOptions, run_sorter

    check_master(master)
    name_spark_files()
    options = SorterOptions(
        changefeed_id=changefeed_id,
        namespace=namespace,
        cluster=cluster,
        kafka=kafka,
        zookeeper=zookeeper,
        schema_registry=schema_registry,
        master=master,
        driver_memory=driver_memory,
        checkpoint_dir=checkpoint_dir,
        spark_conf=conf_pairs(conf),
        run_cuts=run_cuts,
        once=once,
        data_dir=data_dir,
    )
    return run_sorter(options)


@click.command()
@kafka_option(required=True)
@zookeeper_option(required=True)
@registry_option(required=False)
@cluster_option
@driver_options
@click.option(
    "--service-id",
    type=PathPart(chars_max=400),
    default=lambda: str(uuid.uuid4()),
    metavar="ID",
    help="Its name in the cluster.  [default: a new one]",
)
@click.option(
    "--dedicated",
    type=FeedNameType(),
    default="",
    metavar="NAMESPACE/ID",
    help="Take this one changefeed and no other.",
)
@click.option(
    "--checkpoint-dir",
    default="",
    metavar="URI",
    help="Where Spark keeps the checkpoints of streaming queries.  [default: in --data-dir]",
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Setting of Spark; again for more.")
@click.option(
    "--spark-ui-port",
    type=click.IntRange(-1, 65535),
    default=0,
    show_default=True,
    help="Of Spark's UI, on 127.0.0.1; 0: any free one, -1: no UI.",
)
@click.option("--event-log", default="", metavar="URI", help="Folder in which Spark keeps event logs.  [default: none]")
@_run_cuts_option
@click.option(
    "--memory-bytes-max",
    type=click.IntRange(min=0),
    default=0,
    metavar="BYTES",
    help="Memory, without the JVM's, above which it ends, to be started again.  [default: 70 % of the machine's]",
)
@click.option("--spark-on-demand", is_flag=True, help="Start Spark with the first cut that needs it, not before.")
@click.option(
    "--check-batches",
    is_flag=True,
    help="Compare Kafka's checksum of each batch of raw records, too. A capture asks for it after an abort.",
)
@data_dir_option("data/sorters")
@log_options
def sorters(
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    schema_registry: "RegistryAccess",
    cluster: str,
    master: str,
    driver_memory: str,
    service_id: str,
    dedicated: str,
    checkpoint_dir: str,
    conf: tuple[str, ...],
    spark_ui_port: int,
    event_log: str,
    run_cuts: str,
    memory_bytes_max: int,
    spark_on_demand: bool,
    check_batches: bool,
    data_dir: Path,
) -> int:
    """Run the changefeeds that the owner assigns: sort, mount, filter, dispatch and encode the raw log into topics.

    Each capture runs one by itself, unless it is started with --sorter-master none. One that is started by hand
    outlives captures, and may stand on a machine of its own.
    """
    with quick_imports(arrow_pool=POOL_OF_MANY_THREADS):
        from compose.stack.spark_files import name_spark_files
        from sorters.service.service import ServiceOptions, run_service

    spare_old_objects(OF_SORTERS)
    check_master(master)
    name_spark_files()
    options = ServiceOptions(
        service=service_id,
        cluster=cluster,
        kafka=kafka.checking_batches() if check_batches else kafka,
        zookeeper=zookeeper,
        schema_registry=schema_registry,
        dedicated=dedicated,
        master=master,
        driver_memory=driver_memory,
        checkpoint_dir=checkpoint_dir,
        spark_conf=conf_pairs(conf),
        spark_ui_port=None if spark_ui_port < 0 else spark_ui_port,
        event_log=event_log,
        run_cuts=run_cuts,
        memory_bytes_max=memory_bytes_max,
        keeps_spark_warm=not spark_on_demand,
        data_dir=data_dir,
    )
    return run_service(options)


@click.command("executor-archive")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), default=Path("tidebus-executors.tar.gz"))
def executor_archive(target: Path) -> int:
    """Pack our code and the libraries that it needs for Spark's executors on other machines.

    They need Python of the same minor version and nothing else: give captures
    --sorter-conf spark.archives=tidebus-executors.tar.gz#tidebus-executors, and PYSPARK_PYTHON, the name of that Python
    there, in their environment.
    """
    from compose.deployment.executor_archive import write_archive

    versions = write_archive(target)
    echo(f"{target}: {target.stat().st_size >> 20} MiB, {', '.join(f'{name} {at}' for name, at in versions.items())}")
    return 0
