"""Options that several commands take, and the types they are given in."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT

KEY_FILE_VARIABLE = "TIDEBUS_SECRET_KEY_FILE"
ACCEPT_VARIABLE = "TIDEBUS_ACCEPT_UNSEALED"
"""As in :mod:`edges.secrets`, which is slow to load."""
Command = TypeVar("Command", bound=Callable[..., Any])
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[[\d,]+\]|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
UPSTREAM_DEFAULT = "default"


class Duration(click.ParamType[float]):
    """Seconds, from ``90s``, ``1.5m``, ``500ms`` or a plain number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, float | int):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration such as 90s, 2m or 500ms", param, ctx)
        return float(match[1]) * _SECONDS[match[2] or "s"]


def _address_option(name: str, metavar: str, words: str, *, required: bool) -> Callable[[Command], Command]:
    # For click, any default fulfils `required`, an empty one too.
    absent: dict[str, Any] = {} if required else {"default": ""}
    variable = f"TIDEBUS_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(name, required=required, envvar=variable, metavar=metavar, help=words, **absent)


def kafka_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--kafka`` and ``--kafka-config``; the command gets a KafkaAccess as ``kafka``."""

    def read(given: str, file: Path | None) -> Any:
        from edges.kafka.access import KafkaAccess

        return KafkaAccess.read(given, file)

    return _access_option("--kafka", "HOST:PORT,…", "Kafka brokers.", read, "librdkafka's settings", required=required)


def zookeeper_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--zookeeper`` and ``--zookeeper-config``; the command gets a ZooKeeperAccess as ``zookeeper``."""

    def read(given: str, file: Path | None) -> Any:
        from edges.zookeeper.access import ZooKeeperAccess  # kazoo is slow to load, and many commands do without

        return ZooKeeperAccess.read(given, file)

    words = "ZooKeeper ensemble."
    add = _access_option("--zookeeper", "HOST:PORT,…", words, read, "user and TLS", required=required)
    return lambda command: secret_key_option(add(command))


def secret_key_option(command: Command) -> Command:
    """Add ``--secret-key-file`` and ``--accept-unsealed``, which this process and its children find in the environment
    (:mod:`edges.secrets`).
    """

    def note(_context: click.Context, _option: click.Parameter, file: Path | None) -> None:
        if file is not None:
            os.environ[KEY_FILE_VARIABLE] = str(file.resolve())

    def accept(_context: click.Context, _option: click.Parameter, accepts: bool) -> None:
        if accepts:
            os.environ[ACCEPT_VARIABLE] = "1"

    command = click.option(
        "--accept-unsealed",
        is_flag=True,
        envvar=ACCEPT_VARIABLE,
        expose_value=False,
        callback=accept,
        help="With a key, read settings in the clear too: for a cluster that is just being given its key.",
    )(command)
    return click.option(
        "--secret-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=KEY_FILE_VARIABLE,
        expose_value=False,
        callback=note,
        help="A key by which changefeeds' settings are sealed in ZooKeeper; more lines: former ones, which still open.",
    )(command)


_SINK_REGISTRIES = "tidebus.sink_registries"
"""In a command's context: the files of ``--sink-registry-config``."""


def registry_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--schema-registry``, its file and those of changefeeds' registries.

    The command gets a RegistryAccess as ``schema_registry``.
    """

    def add(command: Command) -> Command:
        def read(given: str, file: Path | None) -> Any:
            from edges.registry.access import RegistryAccess

            return RegistryAccess.read(given, file, click.get_current_context().meta.get(_SINK_REGISTRIES, ()))

        words = "Schema registry with Confluent's API."
        wrapped = _access_option("--schema-registry", "URL", words, read, "user and TLS", required=required)(command)
        return click.option(
            "--sink-registry-config",
            multiple=True,
            envvar="TIDEBUS_SINK_REGISTRY_CONFIG",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            expose_value=False,
            callback=lambda context, _, files: context.meta.update({_SINK_REGISTRIES: files}),
            help="The same of a registry that changefeeds name: TLS, user, and its url. Once for each.",
        )(wrapped)

    return add


def _access_option(
    name: str,
    metavar: str,
    words: str,
    read: Callable[[str, Path | None], Any],
    settings: str,
    *,
    required: bool,
) -> Callable[[Command], Command]:
    """Return an address with the file that says how one gets in there; either may name the servers."""
    parameter = name.removeprefix("--").replace("-", "_")

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            access = read(given.pop(parameter), given.pop(f"{parameter}_config"))
            if required and not access:
                context = click.get_current_context()
                missing = next(option for option in context.command.params if option.name == parameter)
                raise click.MissingParameter(ctx=context, param=missing)
            return command(**given, **{parameter: access})

        file = click.option(
            f"{name}-config",
            default=None,
            envvar=f"TIDEBUS_{parameter.upper()}_CONFIG",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"File of key=value lines with {settings}; its owner's alone (mode 600).",
        )
        return _address_option(name, metavar, words, required=False)(file(wrapper))  # type: ignore[return-value]

    return add


def pd_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--pd``."""
    return _address_option("--pd", "HOST:PORT,…", "TiDB's PD endpoints.", required=required)


def feed_options(command: Command) -> Command:
    """Add ``--changefeed`` and ``--namespace``, of a command that runs a part of one changefeed."""
    command = click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)(command)
    text = "As `changefeed create` named it."
    return click.option("-c", "--changefeed", "changefeed_id", required=True, metavar="ID", help=text)(command)


def driver_options(command: Command) -> Command:
    """Add ``--master`` and ``--driver-memory``, of a command that is a Spark driver."""
    text = "Heap of the driver's JVM."
    command = click.option("--driver-memory", default="1500m", show_default=True, metavar="SIZE", help=text)(command)
    return click.option("--master", default="local[2]", show_default=True, help="Spark master.")(command)


def tls_options(command: Command) -> Command:
    """Add TiCDC's ``--ca``, ``--cert``, ``--key`` and ``--cert-allowed-cn``; the command gets them as ``tls``."""

    @functools.wraps(command)
    def wrapper(*, ca: str, cert: str, key: str, cert_allowed_cn: str, **others: Any) -> Any:
        from producers.tls import TlsSettings  # grpc is slow to load, and most commands do without

        names = tuple(name.strip() for name in cert_allowed_cn.split(",") if name.strip())
        return command(**others, tls=TlsSettings(ca_path=ca, cert_path=cert, key_path=key, allowed_cn=names))

    for flag, variable, text in (
        ("--cert-allowed-cn", "TIDEBUS_CERT_ALLOWED_CN", "Common names that PD and TiKV may have, comma-separated."),
        ("--key", "TIDEBUS_KEY_PATH", "Key of --cert, not encrypted."),
        ("--cert", "TIDEBUS_CERT_PATH", "Certificate that we show to PD and TiKV."),
        ("--ca", "TIDEBUS_CA_PATH", "CA of PD and TiKV (PEM); turns TLS on."),
    ):
        metavar = "NAME,…" if "cn" in flag else "FILE"
        wrapper = click.option(flag, default="", envvar=variable, metavar=metavar, help=text)(wrapper)
    return wrapper  # type: ignore[return-value]


def child_kafka_options(command: Command) -> Command:
    """Add the files by which a capture's children get into Kafka with fewer rights than itself."""
    for role, topics in (("processor", "sink"), ("sorter", "raw and sink")):
        command = click.option(
            f"--{role}-kafka-config",
            default=None,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"As --kafka-config, for the {role}s that it starts and their {topics} topics.  [default: that file]",
        )(command)
    return command


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
        **others: Any,
    ) -> Any:
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

    for option in (
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
        click.option(
            "--sorter-event-log", default="", metavar="URI", help="Folder of event logs of the sorters' Spark."
        ),
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
            "--sorter-driver-memory", default="", metavar="SIZE", help="Heap of a sorter service's JVM, such as 2g."
        ),
        click.option(
            "--sorter-master",
            default="local[1]",
            show_default=True,
            envvar="TIDEBUS_SORTER_MASTER",
            help="Spark master of this capture's sorter service; none: `tidebus sorters` is run elsewhere.",
        ),
    ):
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


def cluster_option(command: Command) -> Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        default=CLUSTER_DEFAULT,
        show_default=True,
        envvar="TIDEBUS_CLUSTER",
        help="Name of this TideBus in ZooKeeper.",
    )(command)


def cluster_secret_option(command: Command) -> Command:
    """Add ``--cluster-secret-file``."""
    return click.option(
        "--cluster-secret-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TIDEBUS_CLUSTER_SECRET_FILE",
        help="A secret that captures prove to each other that they know; more lines: former or next ones.",
    )(command)


def upstream_option(command: Command) -> Command:
    """Add ``--upstream``."""
    return click.option(
        "--upstream",
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
