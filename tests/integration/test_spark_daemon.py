"""Python tasks by our daemon on a real Spark: on one machine, and with executors as processes of their own."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compose.stack.jars import pyspark_jars
from compose.stack.spark_files import name_spark_files
from schemas.errors import CorruptDataError
from sorters.spark.session import create_session
from sorters.spark.task_jobs import TaskJobs, errors_of_workers
from tests.support import task_work

LEAKED_MIB, LEAKS = 16, 24


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
    spark = create_session(request.param, "daemon", tmp_path_factory.mktemp("spark"), conf=conf)
    yield TaskJobs(spark)
    work = pyspark_jars().parent / "work" / spark.sparkContext.applicationId
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)  # where executors of local-cluster keep their logs


def workers(jobs: TaskJobs) -> set[int]:
    return {int(answer.split()[0]) for answer in jobs.answers(task_work.process_id, 8)}


def test_answers_when_tasks_are_many_then_stand_by_number(jobs: TaskJobs) -> None:
    assert jobs.answers(task_work.nothing, 1) == [b"\0"]
    assert jobs.answers(task_work.nothing, 20) == [bytes([number]) for number in range(20)]


def test_worker_when_forked_then_has_what_tasks_need_and_is_frozen(jobs: TaskJobs) -> None:
    frozen, module, loaded = jobs.answers(task_work.module_facts, 1)[0].decode().split(" ")
    assert int(frozen) > 10_000
    assert module == "sorters.spark.python_daemon"
    assert loaded == "confluent_kafka,pyarrow,sorters.core.rows.pipeline"


def test_worker_when_its_task_ends_then_runs_the_next(jobs: TaskJobs) -> None:
    for _ in range(4):
        answers = jobs.answers(task_work.process_id, 8)
    assert max(int(answer.split()[1]) for answer in answers) > 4
    assert len(workers(jobs) | workers(jobs)) <= 4


def test_error_of_ours_in_a_task_reaches_the_driver_and_the_next_job_runs(jobs: TaskJobs) -> None:
    with pytest.raises(CorruptDataError, match="planted") as raised:
        jobs.answers(task_work.fail, 2)
    assert raised.value.fields == {"number": 1}
    assert jobs.answers(task_work.nothing, 2) == [b"\0", b"\1"]


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


def test_two_steps_when_run_then_each_frame_reaches_its_task(jobs: TaskJobs, tmp_path: Path) -> None:
    with errors_of_workers() as nonce:
        jobs.two_steps(task_work.halves, partial(task_work.keep_in, str(tmp_path)), 2, nonce)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "0": b"0 to 0\n1 to 0",
        "1": b"0 to 1\n1 to 1",
    }


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
