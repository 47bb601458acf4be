"""Options that name things: the cluster, the upstream, a changefeed, folders, a zone."""

from collections.abc import Callable
from pathlib import Path

import click

from compose.cli.options.kinds import Command, Id, PathPart
from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT

UPSTREAM_DEFAULT = "default"


def feed_options(command: Command) -> Command:
    """Add ``--changefeed`` and ``--namespace``, of a command that runs a part of one changefeed."""
    command = click.option(
        "-n", "--namespace", type=Id(), metavar="NAME", default=NAMESPACE_DEFAULT, show_default=True
    )(command)
    text = "As `changefeed create` named it."
    return click.option("-c", "--changefeed", "changefeed_id", type=Id(), required=True, metavar="ID", help=text)(
        command
    )


def cluster_option(command: Command) -> Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        type=PathPart(),
        default=CLUSTER_DEFAULT,
        show_default=True,
        envvar="TIDEBUS_CLUSTER",
        help="Name of this TideBus in ZooKeeper.",
    )(command)


def upstream_option(command: Command) -> Command:
    """Add ``--upstream``."""
    return click.option(
        "--upstream",
        type=PathPart(reserved=("proofs", "prologue", "sink")),
        default=UPSTREAM_DEFAULT,
        show_default=True,
        envvar="TIDEBUS_UPSTREAM",
        help="Name of the TiDB cluster; the raw log's topics carry it.",
    )(command)


def data_dir_option(default: str) -> Callable[[Command], Command]:
    """Return ``--data-dir``."""
    return click.option(
        "--data-dir",
        default=default,
        show_default=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for data and logs.",
    )


def recording_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--recording``."""
    return click.option(
        "--recording",
        required=required,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder with kv.jsonl.zst, the recorded write traffic of a TiDB.",
    )


def zone_option(command: Command) -> Command:
    """Add ``--tz`` of commands that write as a changefeed would; the command gets it as ``tz``."""
    return click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Zone of TIMESTAMPs.")(command)
