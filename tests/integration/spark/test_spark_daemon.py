"""Python tasks by our daemon on a real Spark: on one machine, and with executors of their own and redacted logs."""

import base64
import os
import re
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from compose.stack.jars import pyspark_jars
from compose.stack.spark_files import name_spark_files
from compose.stack.spark_home import HOME_ENV
from schemas.errors import CorruptDataError
from schemas.redaction import Redaction, set_redaction
from sorters.spark.jobs.first_job import run_first_job
from sorters.spark.jobs.task_jobs import TaskJobs, errors_of_workers
from sorters.spark.session import create_session
from sorters.spark.worker.python_daemon import MODULE, WORKER_BYTES_MAX
from tests.support.processes import task_work
from tests.support.processes.sorter_fleet import eventually

LEAKED_MIB, LEAKS = 16, 24
PLANTED = "Alicia-Planted-41"
"""A user's value."""


@pytest.fixture(scope="module", params=["local[2]", "local-cluster[2,1,1024]"])
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskJobs]:
    name_spark_files()
    if SparkSession.getActiveSession() is not None:
        pytest.skip("this process has a session of another test")
    conf = {
        "spark.task.maxFailures": "4",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    set_redaction(Redaction.OFF if request.param.startswith("local[") else Redaction.ON)
    try:
        spark = create_session(request.param, "daemon", tmp_path_factory.mktemp("spark"), conf=conf)
        yield TaskJobs(spark)
        work = logs_of(spark.sparkContext)
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    finally:
        set_redaction(Redaction.OFF)


def logs_of(context: Any) -> Path:
    """Return where executors of local-cluster keep their logs."""
    return Path(os.environ.get(HOME_ENV, pyspark_jars().parent)) / "work" / str(context.applicationId)


def workers(jobs: TaskJobs) -> set[int]:
    return {int(answer.split()[0]) for answer in jobs.answers(task_work.process_id, 8)}


def test_first_job_leaves_workers_that_wait_on_this_machine_and_waits_for_no_executor(jobs: TaskJobs) -> None:
    spark = SparkSession.getActiveSession()
    run_first_job(spark)
    tracker = jobs.context.statusTracker()
    is_local = jobs.context.master.startswith("local[")
    assert bool(tracker.getJobIdsForGroup(None)) is is_local
    daemons = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and MODULE in process.cmdline()
    ]
    assert bool(daemons) is is_local


def test_answers_when_tasks_are_many_then_stand_by_number(jobs: TaskJobs) -> None:
    assert jobs.answers(task_work.nothing, 1) == [b"\0"]
    assert jobs.answers(task_work.nothing, 20) == [bytes([number]) for number in range(20)]


def test_worker_when_forked_then_has_what_tasks_need_and_is_frozen(jobs: TaskJobs) -> None:
    frozen, module, loaded = jobs.answers(task_work.module_facts, 1)[0].decode().split(" ")
    assert int(frozen) > 10_000
    assert module == "sorters.spark.worker.python_daemon"
    assert loaded == "confluent_kafka,pyarrow,sorters.core.rows.pipeline"


def test_worker_takes_no_module_from_the_folder_it_works_in(jobs: TaskJobs) -> None:
    assert jobs.answers(task_work.safe_path, 1) == [b"True"]


def test_worker_when_its_task_ends_then_runs_the_next(jobs: TaskJobs) -> None:
    for _ in range(4):
        answers = jobs.answers(task_work.process_id, 8)
    assert max(int(answer.split()[1]) for answer in answers) > 4
    assert len(workers(jobs) | workers(jobs)) <= 4


def test_error_of_ours_in_a_task_reaches_the_driver_and_the_next_job_runs(jobs: TaskJobs) -> None:
    with pytest.raises(CorruptDataError, match="planted") as raised:
        jobs.answers(task_work.fail, 2)
    assert raised.value.fields == {"partition": 1}
    assert jobs.answers(task_work.nothing, 2) == [b"\0", b"\1"]


def test_value_of_a_row_in_what_a_task_fails_with_is_in_no_redacted_log(jobs: TaskJobs) -> None:
    is_redacted = not jobs.context.master.startswith("local[")
    said = ""
    for kind in ("ours", "bug", "library"):
        with pytest.raises(Exception, match=r".") as raised:
            jobs.answers(partial(task_work.fail_with_row, kind, PLANTED), 1)
        said += "".join(traceback.format_exception(raised.value))
    # What Spark has of it, in its own words, is what it logs and shows.
    assert said.count("fail_with_row") >= 3
    assert (PLANTED in said) is not is_redacted
    if not is_redacted:
        return
    logs = logs_of(jobs.context)

    def logged() -> str:
        return "".join(file.read_text(errors="replace") for file in logs.rglob("std*"))

    # Each task logged its line, and the executor what each failed with.
    eventually(lambda: logged().count("sorters.of_a_test row does not go out") >= 3)
    eventually(lambda: logged().count("tidebus-error<") >= 2 and "RedactedWorkerError" in logged())
    carried = "".join(
        base64.b64decode(each).decode() for each in re.findall(r"tidebus-error<\w+:([\w+/=]+)>", logged())
    )
    assert "planted" in carried
    assert PLANTED not in logged() + carried


def test_worker_killed_between_tasks_is_replaced(jobs: TaskJobs) -> None:
    for worker in workers(jobs):
        os.kill(worker, signal.SIGKILL)
    # In local mode a task is tried once; a job may meet a worker that is gone, the next meets a new one.
    try:
        jobs.answers(task_work.nothing, 4)
    except Exception as error:
        assert "worker" in str(error)
    assert jobs.answers(task_work.nothing, 2) == [b"\0", b"\1"]


def test_worker_killed_in_its_task_fails_it_and_the_next_job_runs(jobs: TaskJobs, tmp_path: Path) -> None:
    work = partial(task_work.die_once, str(tmp_path / "died"))
    if jobs.context.master.startswith("local["):
        with pytest.raises(Exception, match="worker exited unexpectedly"):
            jobs.answers(work, 1)
    assert jobs.answers(work, 1) == [b"lived"]


def test_tasks_that_leave_garbage_are_collected_after_long_before_a_collection_is_due(jobs: TaskJobs) -> None:
    resident = [int(jobs.answers(task_work.leak, 1)[0]) for _ in range(LEAKS)]
    assert max(resident) - min(resident) < LEAKS * LEAKED_MIB / 2, resident


def test_worker_that_keeps_too_much_ends_with_its_task_and_fails_none(jobs: TaskJobs) -> None:
    session = SparkSession.getActiveSession()
    assert session is not None
    if session.sparkContext.master.startswith("local-cluster") and "NIGHTLY_CLUSTER" not in os.environ:
        pytest.skip("the same workers under executors take more than a minute: `make nightly`")
    leaked_mib = (WORKER_BYTES_MAX >> 20) // 4
    for _ in range(12):
        worker = int(jobs.answers(partial(task_work.keep, leaked_mib), 1)[0])
        if not psutil.pid_exists(worker):
            break
    eventually(lambda: not psutil.pid_exists(worker))
    assert jobs.answers(task_work.nothing, 2) == [b"\0", b"\1"]


def test_two_steps_when_run_then_each_frame_reaches_its_task(jobs: TaskJobs, tmp_path: Path) -> None:
    with errors_of_workers() as nonce:
        jobs.two_steps(task_work.halves, partial(task_work.keep_in, str(tmp_path)), 2, nonce)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "0": b"0 to 0\n1 to 0",
        "1": b"0 to 1\n1 to 1",
    }


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # pyspark leaves a socket to the collector
def test_broadcast_when_work_holds_it_then_each_worker_has_it(jobs: TaskJobs) -> None:
    broadcast = jobs.broadcast(b"value" * 1000)
    for _ in range(2):
        answers = jobs.answers(partial(task_work.broadcast_value, broadcast), 4, broadcasts=[broadcast])
        assert answers == [b"value" * 1000] * 4
    broadcast.destroy()


def test_job_when_its_objects_are_known_takes_four_calls_of_the_jvm(
    jobs: TaskJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.clientserver import ClientServerConnection

    jobs.answers(task_work.nothing, 3)
    calls, mine = list[str](), threading.get_ident()
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> object:
        if threading.get_ident() == mine and not command.startswith("m\nd\n"):
            calls.append(command.split("\n")[2])
        return send(connection, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    jobs.answers(task_work.nothing, 3)
    assert len(calls) == 4, calls
    jobs.describe(pool="one", description="a job")
    jobs.describe(pool="one", description="a job")
    assert len(calls) == 6, "what has not changed is not said again"
