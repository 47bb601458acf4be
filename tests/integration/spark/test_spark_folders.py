"""What Spark keeps in --data-dir: nothing of it is left by a JVM that was killed once the next one runs."""

import os
import subprocess
import sys
from pathlib import Path

from edges.process_marks import started_at

PROGRAM = """
import os, sys
from pathlib import Path
from pyspark import SparkContext
from compose.stack.spark_files import name_spark_files
from sorters.spark.session import create_session, forget_dead_session

def left():
    return sorted(file.name for file in folder.rglob("blockmgr-*"))

name_spark_files()
folder = Path(sys.argv[1])
for kill in ("jvm", "all"):
    session = create_session("local[1]", "folders", folder)
    session.sparkContext.broadcast(os.urandom(100_000))
    print(*left(), flush=True)
    if kill == "all":
        SparkContext._gateway.proc.kill()
        os.kill(os.getpid(), 9)
    SparkContext._gateway.proc.kill()
    SparkContext._gateway.proc.wait()
    forget_dead_session()
"""
"""Begins two JVMs, one after the other, kills both, and with the second one itself; says which stores of blocks there
are while each runs."""


def test_jvm_that_was_killed_leaves_nothing_once_the_next_one_runs(tmp_path: Path) -> None:
    started = started_at(os.getpid())
    assert started is not None
    of_our_id = tmp_path / "spark" / f"{os.getpid()}-{started - 1}"
    ours = tmp_path / "spark" / f"{os.getpid()}-{started}"
    for folder in (of_our_id, ours, tmp_path / "spark" / "somebodys"):
        folder.mkdir(parents=True)
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=300)
        for _ in range(2)
    ]
    stores = [line.split() for run in runs for line in run.stdout.splitlines()]
    assert [len(each) for each in stores] == [1, 1, 1, 1], stores
    assert len({each[0] for each in stores}) == 4
    assert not of_our_id.exists() and ours.exists() and (tmp_path / "spark" / "somebodys").exists()
