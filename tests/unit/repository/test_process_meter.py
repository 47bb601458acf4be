"""The meter of benches counts what processes under Spark's JVM have spent, also of those that have ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.rig.process_meter import ProcessMeter

BUSY_S = 0.3
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WORKER = f"""
import time
while time.process_time() < {BUSY_S}: pass
print("done", flush=True)
"""
DAEMON = f"""
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
worker = os.fork()
if not worker:
    exec({WORKER!r})
    signal.pause()
for line in sys.stdin:
    os.kill(worker, signal.SIGKILL)
    try:
        os.waitpid(worker, 0)
    except ChildProcessError:
        pass  # the kernel has taken it, as it takes pyspark's workers
    print("ended", flush=True)
"""
JVM = """
import subprocess, sys
daemon = subprocess.Popen([sys.executable, "-c", sys.argv[2]])
daemon.wait()
print("daemon ended", flush=True)
sys.stdin.read()
"""


@contextmanager
def _jvm() -> Iterator[tuple[subprocess.Popen[str], ProcessMeter]]:
    command = [sys.executable, "-c", JVM, "SparkSubmit", DAEMON]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as jvm:
        try:
            yield jvm, ProcessMeter()
        finally:
            jvm.send_signal(signal.SIGKILL)


def _said(jvm: subprocess.Popen[str]) -> str:
    assert jvm.stdout is not None
    return jvm.stdout.readline().strip()


def test_meter_keeps_what_a_worker_has_spent_whom_nobody_waits_for() -> None:
    with _jvm() as (jvm, meter):
        assert _said(jvm) == "done"
        _, before_s = meter.cpu_now()
        assert before_s >= BUSY_S - 0.05, "in ticks of the clock"
        assert jvm.stdin is not None
        jvm.stdin.write("end\n")
        jvm.stdin.flush()
        assert _said(jvm) == "ended"
        assert meter.cpu_now()[1] >= before_s
        assert ProcessMeter().cpu_now()[1] < before_s, "one that has not seen the worker cannot know"


def test_meter_counts_each_worker_once_also_when_its_daemon_has_ended() -> None:
    with _jvm() as (jvm, meter):
        assert _said(jvm) == "done"
        _, before_s = meter.cpu_now()
        assert jvm.stdin is not None
        jvm.stdin.write("end\n")
        jvm.stdin.flush()
        assert _said(jvm) == "ended"
        jvm.stdin.close()
        assert _said(jvm) == "daemon ended"
        deadline = time.monotonic() + 10
        # The kernel rounds a process's own time and that of its ended children to ticks by themselves.
        while not before_s - 2 * TICK_S <= (after_s := meter.cpu_now()[1]) < before_s + BUSY_S:
            assert time.monotonic() < deadline, f"{before_s} s before, {after_s} s after"
