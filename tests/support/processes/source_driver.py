"""A user's own PySpark program that reads the source on a standalone cluster, whose machines have Spark and a bare
Python.

It is what docs/spark.md says a user does: settings in ``spark-defaults.conf``, the libraries in ``spark.archives``.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose.stack.children import Child, Nursery
from tests.support.processes.spark_cluster import SparkCluster

SLOW_S = 2.0
PROGRAM = """
import json, os, sys, time, uuid
from pathlib import Path
from pyspark.sql import SparkSession
from tidebus.spark import register

given, slow_s = json.loads(sys.argv[1]), float(sys.argv[2])
target, begun = Path(given["target"]), Path(given["begun"])
spark = SparkSession.builder.appName("a user's").getOrCreate()
register(spark)

def noted(batches):
    for batch in batches:
        (begun / uuid.uuid4().hex).write_text(os.getcwd())
        time.sleep(slow_s)
        yield batch

reader = spark.readStream if given["stream"] else spark.read
frame = reader.format("tidebus").options(**given["options"]).load()
frame = frame.mapInArrow(noted, frame.schema)
if not given["stream"]:
    frame.write.json(str(target))
else:
    query = frame.writeStream.format("json").option("checkpointLocation", given["checkpoint"]).start(str(target))
    query.processAllAvailable()
    query.stop()
spark.stop()
"""
"""Writes rows as JSON files. Each task notes, before it hands out a batch of rows, in which folder it works."""


@dataclass
class SourceDriver:
    """Runs the program, as often as it is told."""

    folder: Path
    cluster: SparkCluster
    archive: Path
    """Of ``tidebus executor-archive``."""

    def __post_init__(self) -> None:
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        settings = {
            "spark.master": self.cluster.master,
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.cluster.secret,
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.authEngineVersion": "2",
            "spark.io.encryption.enabled": "true",
            "spark.archives": f"{self.archive}#tidebus-executors",
            "spark.executorEnv.PYTHONPATH": "tidebus-executors",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        file = conf / "spark-defaults.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        self.begun.mkdir()

    @property
    def begun(self) -> Path:
        """Where tasks note that they have begun."""
        return self.folder / "begun"

    def start(
        self, nursery: Nursery, options: Mapping[str, str], *, stream: bool = False, slow_s: float = 0.0
    ) -> Child:
        """Start it on the changes that ``options`` of the source name."""
        given = {
            "stream": stream,
            "options": dict(options),
            "target": str(self.target(stream=stream)),
            "checkpoint": str(self.folder / "checkpoint"),
            "begun": str(self.begun),
        }
        env = {
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            # The one here has all libraries, the one that machines of the cluster find has none.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": "python3",
        }
        command = [sys.executable, "-c", PROGRAM, json.dumps(given), str(slow_s)]
        return nursery.start("spark program", command, log=self.folder / "program.log", env=env, cwd=self.folder)

    def worked_in(self) -> list[str]:
        """Return in which folders tasks have begun to hand out rows, a line for each batch of rows."""
        return [file.read_text() for file in self.begun.iterdir()]

    def target(self, *, stream: bool) -> Path:
        """Return the folder that rows are written to."""
        return self.folder / ("stream" if stream else "read")

    def rows(self, *, stream: bool = False) -> list[dict[str, Any]]:
        """Return what was written; of a stream what its sink has committed."""
        folder = self.target(stream=stream)
        files = _committed(folder) if stream else list(folder.glob("*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def batches(self) -> int:
        """Return how many batches the stream has committed."""
        return len([file for file in (self.folder / "checkpoint" / "commits").iterdir() if file.name.isdigit()])

    def forget_begun(self) -> None:
        """Let go of the notes."""
        shutil.rmtree(self.begun)
        self.begun.mkdir()


def _committed(folder: Path) -> list[Path]:
    """Return the files that a stream's file sink lists: those of a batch that was not committed are none of it."""
    logs = [file for file in (folder / "_spark_metadata").iterdir() if file.name.partition(".")[0].isdigit()]
    added = [json.loads(line) for file in logs for line in file.read_text().splitlines()[1:]]
    return sorted({Path(each["path"].removeprefix("file://")) for each in added if each["action"] == "add"})
