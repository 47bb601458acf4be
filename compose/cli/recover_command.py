"""``tidebus recover``: when the upstream is gone."""

import json
import sys
from typing import TYPE_CHECKING

import click

from compose.cli.options.access import kafka_option, zookeeper_option
from compose.cli.options.names import cluster_option, data_dir_option, feed_options
from compose.cli.options.spark import check_master, driver_options
from compose.echo import echo

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess
    from edges.zookeeper.access import ZooKeeperAccess

STATUS_IN_OTHER_HANDS = 3
_IN_OTHER_HANDS = ("recover.captures_alive", "recover.sorter_alive", "recover.processor_alive")


@click.command()
@feed_options
@kafka_option(required=True)
@zookeeper_option(required=True)
@cluster_option
@click.option("--dry-run", is_flag=True, help="Say up to where the destination can be brought, and write nothing.")
@click.option("--json", "in_json", is_flag=True, help="One JSON object instead of lines; progress is on stderr.")
@driver_options
@data_dir_option("data/recover")
def recover(
    changefeed_id: str,
    namespace: str,
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    cluster: str,
    dry_run: bool,
    in_json: bool,
    master: str,
    driver_memory: str,
    data_dir: str,
) -> int:
    """Bring a MySQL or TiDB whose upstream is gone to the last ts up to which Kafka holds everything.

    Needs Kafka, ZooKeeper and the destination, and no PD, TiKV or capture: as `cdc redo apply`, with the raw log as
    redo log. Killed or failed, it is run again and goes on. Exit status: 0 the destination shows what the upstream had
    at the checkpoint-ts that is printed; 1 it failed; 2 it cannot be recovered so; 3 captures, a sorter or a processor
    still run the changefeed.
    """
    from pathlib import Path

    from compose.operator.recover import RecoverOptions, as_json, closing_lines, opening_lines
    from compose.operator.recover import recover as run
    from compose.stack.java import find_java
    from compose.stack.spark_files import name_spark_files
    from schemas.errors import BusError

    def say(text: str) -> None:
        echo(text, err=True)

    check_master(master)
    if not dry_run:
        find_java()
        name_spark_files()
    options = RecoverOptions(
        changefeed_id=changefeed_id,
        namespace=namespace,
        cluster=cluster,
        kafka=kafka,
        zookeeper=zookeeper,
        master=master,
        driver_memory=driver_memory,
        data_dir=Path(data_dir),
        dry_run=dry_run,
    )
    try:
        report = run(options, say)
    except BusError as error:
        if error.code not in _IN_OTHER_HANDS:
            raise
        echo(f"error: {error}", err=True)
        return STATUS_IN_OTHER_HANDS
    if in_json:
        echo(json.dumps(as_json(report)))
    else:
        lines = [*opening_lines(report), *closing_lines(report)] if dry_run else closing_lines(report)
        echo("\n".join(lines))
    sys.stdout.flush()
    return 0
