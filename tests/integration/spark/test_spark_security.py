"""A sorter's Spark on one machine: who has not its secret is not let in, and command lines show no secret."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from compose.stack.spark_files import name_spark_files

HIDDEN = "hunter2-of-a-bucket"
READY_S = 180.0
_VICTIM = """
import json, sys, time
from pathlib import Path
from sorters.spark.session import create_session
conf = json.loads(sys.argv[2])
if "--hidden" in sys.argv:
    conf["spark.hadoop.fs.s3a.secret.key"] = sys.stdin.readline().strip()
context = create_session("local[1]", "victim", Path(sys.argv[1]), conf=conf).sparkContext
context.parallelize([1], 1).collect()
shown = dict(context.getConf().getAll())
shown["ui"] = context.uiWebUrl
shown["jvm"] = context._gateway.proc.pid
logger = context._jvm.org.apache.logging.log4j.LogManager.getLogger("forged")
logger.error("one\\n2026-01-01 00:00:00.000 ERROR two", context._jvm.java.lang.RuntimeException("a\\n2026-01-01 b"))
print(json.dumps(shown), flush=True)
for _ in sys.stdin:
    job = context.parallelize([7], 1).map(lambda number: time.sleep(3) or number)
    print(json.dumps(job.collect()), flush=True)
"""
_ATTACKER = """
import json, sys
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = session.config("spark.driver.host", "127.0.0.1").config("spark.rpc.lookupTimeout", "10s").getOrCreate()
rpc = session.sparkContext._jsc.sc().env().rpcEnv()
print(json.dumps("ready"), flush=True)
for port in sys.stdin:
    try:
        answer = rpc.setupEndpointRefByURI(f"spark://HeartbeatReceiver@127.0.0.1:{port.strip()}").toString()
    except Py4JJavaError as error:
        answer = "refused"
    print(json.dumps(answer), flush=True)
"""


class Process:
    """A Python process that answers lines with JSON."""

    def __init__(self, folder: Path, code: str, *arguments: str) -> None:
        folder.mkdir()
        self.log = folder / "stderr"
        with self.log.open("w") as log:
            command = [sys.executable, "-c", code, *arguments]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        return json.loads(line)

    def command_lines(self) -> str:
        own, lines = psutil.Process(self._process.pid), []
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a worker that has just ended
                lines.append(" ".join(process.cmdline()))
        return "\n".join(lines)

    def end(self) -> None:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            process.kill()
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    name_spark_files()
    processes: list[Process] = []

    def start(name: str, code: str, *arguments: str) -> Process:
        processes.append(Process(tmp_path / name, code, *arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def listens_at(jvm: int) -> set[str]:
    """Return the addresses at which a process takes connections, IPv4 addresses as such."""
    connections = psutil.Process(jvm).net_connections("tcp")
    return {at.laddr.ip.removeprefix("::ffff:") for at in connections if at.status == psutil.CONN_LISTEN}


def assert_ui_kills_nothing(victim: Process, ui: str) -> None:
    """Ask the UI to kill a job of three seconds, as a page in a browser could."""
    victim.say("job")
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(ui.removeprefix("http://"), timeout=10)
        connection.request("GET", "/jobs/job/kill/?id=1")
        assert connection.getresponse().status < 400
        connection.close()
        time.sleep(0.3)
    assert victim.hear() == [7]


def test_spark_of_a_sorter_lets_in_nobody_without_its_secret_and_shows_none(
    started: Callable[..., Process], tmp_path: Path
) -> None:
    attacker = started("attacker", _ATTACKER)
    closed = started("closed", _VICTIM, str(tmp_path / "closed"), '{"spark.ui.enabled": "true"}', "--hidden")
    closed.say(HIDDEN)
    opened = started("open", _VICTIM, str(tmp_path / "open"), '{"spark.authenticate": "false"}')
    settings, settings_open, _ = closed.hear(), opened.hear(), attacker.hear()

    attacker.say(settings_open["spark.driver.port"])
    assert "HeartbeatReceiver" in attacker.hear(), "the attack works where Spark is open"
    attacker.say(settings["spark.driver.port"])
    assert attacker.hear() == "refused"
    assert settings["ui"].startswith("http://127.0.0.1:")
    assert listens_at(settings["jvm"]) == {"127.0.0.1"}
    assert_ui_kills_nothing(closed, settings["ui"])

    assert settings["spark.hadoop.fs.s3a.secret.key"] == HIDDEN
    assert (settings["spark.authenticate"], settings["spark.network.crypto.enabled"]) == ("true", "true")
    assert "spark.authenticate=true" in closed.command_lines()
    assert HIDDEN not in closed.command_lines() + closed.log.read_text()
    forged = [line for line in closed.log.read_text().splitlines() if "2026-01-01" in line]
    assert len(forged) == 2, "the message, and the second line of the exception"
    assert not any(line.startswith("2026-01-01") for line in forged)
