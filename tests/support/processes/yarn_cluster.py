"""A YARN cluster on loopback: a resource manager and node managers as Hadoop's own tests run them, in one JVM.

Py4J starts it.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from compose.ports import LOOPBACK
from compose.stack.jars import pyspark_jars
from compose.stack.java import find_java
from tests.support.processes.ivy_jars import fetched_jars

_IVY_FILE = Path(__file__).with_name("ivy-yarn.xml")
_CLIENT_JARS = (
    *("hadoop-client-*", "py4j-*", "slf4j-api-*", "jcl-over-slf4j-*", "commons-logging-*"),
    *("log4j-*", "metrics-*", "jakarta.activation-*"),
)
"""Of pyspark's."""
_SETTINGS = {
    "yarn.resourcemanager.hostname": LOOPBACK,
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "3072",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    # A machine of tests may be full, and JVMs reserve more than they use.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
}


@dataclass(frozen=True)
class YarnCluster:
    """One that runs. Its processes end with it."""

    configuration: Path
    """What a client finds in ``HADOOP_CONF_DIR``."""
    pid: int

    def executors(self) -> list[int]:
        """Return the process ids of the executors' JVMs that run now."""
        return self._running("YarnCoarseGrainedExecutorBackend")

    def application_masters(self) -> list[int]:
        """Return those of the JVMs that ask for a driver's executors."""
        return self._running("deploy.yarn.ExecutorLauncher")

    def _running(self, main: str) -> list[int]:
        pids = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                # A shell of the same words is the parent of each.
                if child.name() == "java" and any(main in word for word in child.cmdline()):
                    pids.append(child.pid)
        return pids


@contextlib.contextmanager
def yarn_cluster(folder: Path, machines: int = 2) -> Iterator[YarnCluster]:
    """Run a cluster of so many node managers, whose files stand in ``folder``."""
    servers = fetched_jars("yarn", _IVY_FILE, "yarn", "executors on YARN")
    jars = [*servers, *(jar for each in _CLIENT_JARS for jar in pyspark_jars().glob(f"{each}.jar"))]
    configuration, hosts = folder / "configuration", folder / "hosts"
    configuration.mkdir(parents=True)
    # The cluster listens where the machine's name leads.
    hosts.write_text(f"{LOOPBACK} localhost {socket.gethostname()}\n")
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    options += [f"-Djdk.net.hosts.file={hosts}", f"-Dtest.build.data={folder / 'data'}"]
    with (folder / "yarn.log").open("wb") as log:
        port, token, process = launch_gateway(
            classpath=":".join(map(str, jars)),
            javaopts=options,
            java_path=str(find_java()),
            redirect_stdout=log,
            redirect_stderr=log,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
        try:
            yarn = gateway.jvm.org.apache.hadoop.yarn
            settings = yarn.conf.YarnConfiguration()
            for name, value in _SETTINGS.items():
                settings.set(name, value)
            cluster = yarn.server.MiniYARNCluster("tidebus", machines, 1, 1)
            cluster.init(settings)
            cluster.start()
            writer = gateway.jvm.java.io.FileWriter(str(configuration / "yarn-site.xml"))
            cluster.getConfig().writeXml(writer)
            writer.close()
            yield YarnCluster(configuration, process.pid)
        except Py4JJavaError as error:
            pytest.fail(str(error))  # which is asked for in the JVM that ends below
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the JVM and its containers, which would outlive it."""
    parent = psutil.Process(process.pid)
    for each in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(each.pid, signal.SIGKILL)
    process.wait(60)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
