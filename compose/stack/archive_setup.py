"""Makes the archives of loaded classes (:mod:`compose.stack.class_archives`): each JVM is started, used and ended."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from compose.ports import free_ports
from compose.stack.children import Child, Nursery
from compose.stack.class_archives import make_archive, option_text
from compose.stack.jars import Say, kafka_jars, registry_home
from compose.stack.parts import (
    READY_S,
    KafkaPorts,
    kafka_ready,
    registry_ready,
    start_kafka,
    start_registry,
    start_zookeeper,
    zookeeper_class_path,
    zookeeper_ready,
)
from compose.stack.spark_files import name_spark_files, spark_class_path

END_S: Final = 120.0
"""How long a JVM may take to end: it writes its archive then, in some seconds on an idle machine."""


def make_archives(say: Say) -> None:
    """Make those of Spark and of the local stack that are not there."""
    with ThreadPoolExecutor(1) as beside:  # each keeps one core at most, and Spark takes as long as the others together
        stack = beside.submit(_make_stack_archives, say)
        make_archive("spark", spark_class_path(), _use_spark, say)
        stack.result()


def _make_stack_archives(say: Say) -> None:
    runner = next(registry_home(say).glob("*-runner.jar"))
    make_archive("zookeeper", zookeeper_class_path(), use_zookeeper, say)
    make_archive("kafka", kafka_jars(say), _use_kafka, say)
    make_archive("registry", [runner], _use_registry, say)


def use_zookeeper(archive_options: Sequence[str]) -> None:
    """Start, ask and end ZooKeeper, for :func:`~compose.stack.class_archives.make_archive`."""
    (port,) = free_ports(1)
    _use_part(
        lambda nursery, data: start_zookeeper(nursery, data, port, archive_options=archive_options),
        lambda: zookeeper_ready(port),
    )


def _use_kafka(archive_options: Sequence[str]) -> None:
    client, controller, internal = free_ports(3)
    ports = KafkaPorts(client=client, controller=controller, internal=internal)
    _use_part(
        lambda nursery, data: start_kafka(
            nursery, data, ports, heap="512m", say=_say_nothing, archive_options=archive_options
        ),
        lambda: kafka_ready(ports),
    )


def _use_registry(archive_options: Sequence[str]) -> None:
    (port,) = free_ports(1)
    _use_part(
        lambda nursery, data: start_registry(nursery, data, port, say=_say_nothing, archive_options=archive_options),
        lambda: registry_ready(port),
    )


def _use_part(start: Callable[[Nursery, Path], Child], is_ready: Callable[[], bool]) -> None:
    with tempfile.TemporaryDirectory(prefix="tidebus-setup-") as folder, Nursery() as nursery:
        part = start(nursery, Path(folder) / "part")
        part.wait_ready(is_ready, READY_S)
        part.stop(END_S)


def _use_spark(archive_options: Sequence[str]) -> None:
    from sorters.spark.jobs.first_job import run_first_job
    from sorters.spark.session import create_session, end_jvm, jvm_options

    name_spark_files()
    conf = {
        "spark.driver.extraJavaOptions": f"{jvm_options(local=True)} {option_text(archive_options)}",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with tempfile.TemporaryDirectory(prefix="tidebus-setup-") as folder:
        spark = create_session("local[2]", "tidebus-setup", Path(folder), conf=conf)
        run_first_job(spark)
        end_jvm(spark, END_S)


def _say_nothing(_text: str) -> None:
    """The jars are there."""
