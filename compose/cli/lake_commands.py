"""``tidebus lake …``: maintenance of a changefeed's Iceberg tables, by hand."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compose.cli.options.access import zookeeper_option
from compose.cli.options.kinds import Command, Duration
from compose.cli.options.logs import log_options
from compose.cli.options.names import cluster_option, data_dir_option, feed_options
from compose.cli.options.spark import check_master, driver_options
from compose.echo import echo
from schemas.errors import BusError

if TYPE_CHECKING:
    from compose.operator.lake import LakeOptions


@click.group()
def lake() -> None:
    """Maintain a changefeed's Iceberg tables: compact, expire. Its sorter does both each `compaction-interval`."""


def _of_changefeed(command: Command) -> Command:
    for option in (log_options, data_dir_option("data/lake"), driver_options, cluster_option):
        command = option(command)
    return feed_options(zookeeper_option(required=True)(command))


@lake.command()
@_of_changefeed
def compact(**given: object) -> int:
    """Write small data files of each table anew as larger ones, with a Spark of this command's own; exit status 1 if a
    table is left as it is, because it is resynced or was written meanwhile.
    """
    from compose.operator.lake import compact_tables, left_shown

    status = 0
    for table, done in compact_tables(_options(given)):
        if isinstance(done, BusError):
            status = _failed(table, done)
            continue
        shown: dict[str, object] = {"files_before": done.files_before, "files_after": done.files_after}
        shown["delete_files_dropped"] = done.deletes_dropped
        if done.left_for is not None:
            shown, status = {**shown, "left": left_shown(done.left_for)}, 1
        echo(json.dumps({"table": table, **shown}))
    return status


@lake.command()
@click.option(
    "--older-than", type=Duration(), default="1h", show_default=True, help="What main has left for less stays."
)
@_of_changefeed
def expire(older_than: float, **given: object) -> int:
    """Take away the snapshots of each table that no tag names, and their files; exit status 1 if one was refused."""
    from compose.operator.lake import expire_tables

    status = 0
    for table, done in expire_tables(_options(given), older_than):
        if isinstance(done, BusError):
            status = _failed(table, done)
            continue
        echo(json.dumps({"table": table, "snapshots_expired": done}))
    return status


def _failed(table: str, error: BusError) -> int:
    echo(json.dumps({"table": table, "error": str(error)}))
    return 1


def _options(given: dict[str, Any]) -> "LakeOptions":
    from compose.operator.lake import LakeOptions
    from compose.stack.spark_files import name_spark_files

    check_master(given["master"])
    name_spark_files()
    return LakeOptions(**{**given, "data_dir": Path(given["data_dir"])})
