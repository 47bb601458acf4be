"""Options by which commands get into Kafka, ZooKeeper, registries, PD and the cluster."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from compose.cli.options.kinds import Command

KEY_FILE_VARIABLE = "TIDEBUS_SECRET_KEY_FILE"
ACCEPT_VARIABLE = "TIDEBUS_ACCEPT_UNSEALED"
"""As in :mod:`edges.secrets`, which is slow to load."""


def _address_option(name: str, metavar: str, words: str, *, required: bool) -> Callable[[Command], Command]:
    # For click, any default fulfils `required`, an empty one too.
    absent: dict[str, Any] = {} if required else {"default": ""}
    variable = f"TIDEBUS_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(name, required=required, envvar=variable, metavar=metavar, help=words, **absent)


def kafka_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--kafka`` and ``--kafka-config``; the command gets a KafkaAccess as ``kafka``."""

    def read(given: str, file: Path | None) -> object:
        from edges.kafka.access import KafkaAccess

        return KafkaAccess.read(given, file)

    return _access_option("--kafka", "HOST:PORT,…", "Kafka brokers.", read, "librdkafka's settings", required=required)


def zookeeper_option(*, required: bool) -> Callable[[Command], Command]:
    """Return ``--zookeeper`` and ``--zookeeper-config``; the command gets a ZooKeeperAccess as ``zookeeper``."""

    def read(given: str, file: Path | None) -> object:
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
        def read(given: str, file: Path | None) -> object:
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
    read: Callable[[str, Path | None], object],
    settings: str,
    *,
    required: bool,
) -> Callable[[Command], Command]:
    """Return an address with the file that says how one gets in there; either may name the servers."""
    parameter = name.removeprefix("--").replace("-", "_")

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**given: Any) -> object:
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


def tls_options(command: Command) -> Command:
    """Add TiCDC's ``--ca``, ``--cert``, ``--key`` and ``--cert-allowed-cn``; the command gets them as ``tls``."""

    @functools.wraps(command)
    def wrapper(*, ca: str, cert: str, key: str, cert_allowed_cn: str, **others: object) -> object:
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


def cluster_secret_option(command: Command) -> Command:
    """Add ``--cluster-secret-file``."""
    return click.option(
        "--cluster-secret-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TIDEBUS_CLUSTER_SECRET_FILE",
        help="A secret that captures prove to each other that they know; more lines: former or next ones.",
    )(command)
