"""A Spark standalone cluster on loopback: a master and workers from pyspark's own jars, each a process group."""

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from compose.ports import LOOPBACK, free_ports, is_listening
from compose.stack.children import Child, Nursery
from compose.stack.jars import pyspark_jars
from compose.stack.java import find_java
from sorters.spark.session import LOCAL_JVM_OPTIONS

READY_S = 300.0


@dataclass(frozen=True)
class SparkCluster:
    """``workers`` end with their executors and those executors' Python workers when they are killed."""

    master: str
    master_process: Child
    workers: tuple[Child, ...]
    secret: str = field(repr=False)
    secret_file: Path
    """What drivers are given."""

    def executors(self) -> list[int]:
        """Return the process ids of the executors' JVMs that run now."""
        pids = []
        for worker in self.workers:
            if not worker.is_running():
                continue
            for child in psutil.Process(worker.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        pids.append(child.pid)
        return pids

    def start_master_again(self) -> None:
        """Start a master that was killed; it knows of no worker, and of no driver."""
        self.master_process.start()
        port = int(self.master.rpartition(":")[2])
        self.master_process.wait_ready(lambda: is_listening(port), READY_S)


def make_bare_python(folder: Path) -> Path:
    """Make a Python without any library, as a machine of a cluster may have it, and return its program."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    bare = folder / "python" / "bin" / "python"
    lacks = subprocess.run([str(bare), "-c", "import numpy"], capture_output=True, cwd=folder, check=False)
    assert lacks.returncode == 1
    return bare


@contextlib.contextmanager
def spark_cluster(
    folder: Path, workers: int = 2, *, path: str = "", java_options: str = LOCAL_JVM_OPTIONS
) -> Iterator[SparkCluster]:
    """Yield a running cluster of workers with one core each, which lets only those in who know its secret.

    Args:
        path: where its machines look for programs; empty: where this process does.
        java_options: what all of its JVMs are started with.
    """
    folder.mkdir(parents=True)
    secret, secret_file, properties = secrets.token_hex(32), folder / "secret", folder / "spark.properties"
    settings = f"spark.authenticate true\nspark.authenticate.secret {secret}\n"
    settings += "spark.network.crypto.enabled true\nspark.network.crypto.authEngineVersion 2\n"
    for file, text in ((secret_file, f"{secret}\n"), (properties, settings)):
        file.touch(mode=0o600)
        file.write_text(text)
    port, *web_ports = free_ports(2 + workers)
    address = f"spark://{LOOPBACK}:{port}"
    env = {
        # What starts executors looks for jars below the one, and for no build of Spark's own given the other.
        "SPARK_HOME": str(pyspark_jars().parent),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "spills"),
        "PATH": path or os.environ["PATH"],
        "JDK_JAVA_OPTIONS": java_options,  # which executors have of their workers
    }
    java = [str(find_java()), "-Xmx256m", "-cp", f"{pyspark_jars()}{os.sep}*"]
    # Spark 4 on Java 17 reaches into these; its own launcher scripts say the same.
    java += [
        f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")
    ]
    with Nursery() as nursery:
        host = ["--properties-file", str(properties), "--host", LOOPBACK]
        master = nursery.start(
            "spark master",
            [
                *java,
                "org.apache.spark.deploy.master.Master",
                *host,
                "--port",
                str(port),
                "--webui-port",
                str(web_ports[0]),
            ],
            log=folder / "master.log",
            env=env,
        )
        master.wait_ready(lambda: is_listening(port), READY_S)
        started = []
        for number, web_port in enumerate(web_ports[1:], 1):
            limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            command = [
                *java,
                "org.apache.spark.deploy.worker.Worker",
                *host,
                "--webui-port",
                str(web_port),
                *limits,
                address,
            ]
            started.append(
                nursery.start(f"spark worker {number}", command, log=folder / f"worker-{number}.log", env=env)
            )
        for worker in started:
            worker.wait_ready(lambda worker=worker: bool(_REGISTERED.search(worker.log.read_text())), READY_S)  # type: ignore[misc]
        yield SparkCluster(address, master, tuple(started), secret, secret_file)


_REGISTERED = re.compile(r"Successfully registered with master")
