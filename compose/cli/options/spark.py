"""Options of Spark: of a command that is a driver, and of the sorters that a capture runs."""

import functools
import re

import click

from compose.cli.options.kinds import Command, Duration, HeapSize

_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[[\d,]+\]|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+")


def driver_options(command: Command) -> Command:
    """Add ``--master`` and ``--driver-memory``, of a command that is a Spark driver."""
    text = "Heap of the driver's JVM."
    kind = {"type": HeapSize(), "metavar": "SIZE", "help": text}
    command = click.option("--driver-memory", default="1500m", show_default=True, **kind)(command)  # type: ignore[arg-type]
    return click.option("--master", default="local[2]", show_default=True, help="Spark master.")(command)


_SORTER_OPTIONS = (
    click.option(
        "--sorter-retry-first",
        type=Duration(),
        default=10.0,
        show_default=True,
        help="First wait after a changefeed's error; it doubles up to 10 minutes.",
    ),
    click.option(
        "--sorter-run-cuts",
        type=click.Choice(["auto", "driver", "spark"]),
        default="auto",
        show_default=True,
        help="Who runs the cuts of changefeeds that leave it open; auto goes by cost.",
    ),
    click.option(
        "--sorter-spark-ui-port",
        type=click.IntRange(-1, 65535),
        default=0,
        show_default=True,
        help="Of the UI of the sorters' Spark, on 127.0.0.1; 0: any free one, -1: no UI.",
    ),
    click.option("--sorter-event-log", default="", metavar="URI", help="Folder of event logs of the sorters' Spark."),
    click.option(
        "--sorter-spark-on-demand",
        is_flag=True,
        help="Start the sorters' Spark with the first cut that needs it, not before.",
    ),
    click.option("--sorter-conf", multiple=True, metavar="KEY=VALUE", help="Setting of the sorters' Spark; again."),
    click.option(
        "--sorter-checkpoint-dir",
        default="",
        metavar="URI",
        help="Where Spark keeps a query's checkpoint, such as hdfs:///tidebus.  [default: in --data-dir]",
    ),
    click.option(
        "--sorter-driver-memory",
        type=HeapSize(),
        default="",
        metavar="SIZE",
        help="Heap of a sorter service's JVM, such as 2g.",
    ),
    click.option(
        "--sorter-master",
        default="local[1]",
        show_default=True,
        envvar="TIDEBUS_SORTER_MASTER",
        help="Spark master of this capture's sorter service; none: `tidebus sorters` is run elsewhere.",
    ),
)


def sorter_options(command: Command) -> Command:
    """Add what a capture says of the sorters that it runs; the command gets it as ``sorters``, without a folder."""

    @functools.wraps(command)
    def wrapper(
        *,
        sorter_master: str,
        sorter_driver_memory: str,
        sorter_checkpoint_dir: str,
        sorter_conf: tuple[str, ...],
        sorter_run_cuts: str,
        sorter_spark_ui_port: int,
        sorter_event_log: str,
        sorter_spark_on_demand: bool,
        sorter_retry_first: float,
        **others: object,
    ) -> object:
        from consumers.control.fleets.settings import SorterSettings

        check_master(sorter_master, others=("none",))
        conf_pairs(sorter_conf)
        settings = SorterSettings(
            master=sorter_master,
            driver_memory=sorter_driver_memory,
            checkpoint_dir=sorter_checkpoint_dir,
            conf=sorter_conf,
            run_cuts=sorter_run_cuts,
            spark_ui_port=sorter_spark_ui_port,
            event_log=sorter_event_log,
            spark_on_demand=sorter_spark_on_demand,
            retry_first_s=sorter_retry_first,
        )
        return command(**others, sorters=settings)

    for option in _SORTER_OPTIONS:
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def check_master(master: str, others: tuple[str, ...] = ()) -> None:
    """Check a Spark master's URL: Spark itself only says that its JVM has ended.

    Raises:
        click.BadParameter: it is none, nor one of ``others``.
    """
    if master not in others and not _MASTER.fullmatch(master):
        known = ", ".join(("local[2]", "spark://host:7077", "yarn", "k8s://https://host:6443", *others))
        raise click.BadParameter(f"{master!r} is no Spark master; it is one of the kinds of {known}")


def conf_pairs(conf: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return settings of Spark as pairs.

    Raises:
        click.BadParameter: one is not ``key=value``.
    """
    for setting in conf:
        if "=" not in setting or not setting.partition("=")[0].strip():
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE, such as spark.executor.memory=2g")
    return tuple((key.strip(), value) for key, _, value in (setting.partition("=") for setting in conf))
