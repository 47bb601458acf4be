"""Runs between the two steps of a Spark job: a folder that takes none is named, with what the system says of it."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from edges.process_marks import started_at
from schemas.errors import Action
from sorters.log.failures import RunFolderError, WorkerError, bus_error, worker_error
from sorters.spark.tasks.run_folder import RunFile, RunFiles, clear_run_folders, run_folder


def test_runs_are_read_where_they_were_written(tmp_path: Path) -> None:
    with run_folder(tmp_path / "runs") as folder:
        with RunFile(folder) as file:
            references = [file.add(pa.py_buffer(block)) for block in (b"first", b"", b"third" * 100)]
        files = RunFiles(folder)
        assert [files.block(each).to_pybytes() for each in references] == [b"first", b"", b"third" * 100]
        files.release()
    assert list((tmp_path / "runs").iterdir()) == []


def test_folders_of_processes_that_are_gone_are_removed_also_of_one_that_had_our_id(tmp_path: Path) -> None:
    """In a container a service often has the id that the one before had."""
    mine, started = os.getpid(), started_at(os.getpid())
    assert started is not None
    gone = [f"{mine}-{started - 1}-aaaa1111", f"{2**22 + 1}-5-aaaa1111", f"{mine}-aaaa1111", f"{2**22 + 1}-12345678"]
    for name in gone:
        (tmp_path / f"tidebus-runs-{name}").mkdir()
        (tmp_path / f"tidebus-runs-{name}" / "runs").write_bytes(b"block")
    parents = tmp_path / f"tidebus-runs-{os.getppid()}-aaaa1111"
    parents.mkdir()  # of a version that named no start, and whose process lives
    with run_folder(tmp_path) as folder:
        clear_run_folders(tmp_path)
        assert set(tmp_path.iterdir()) == {Path(folder), parents}


def test_full_disk_is_named_and_tried_again(tmp_path: Path) -> None:
    """The device takes no byte and says so as a full disk does."""
    nonce = "a1" * 16
    with run_folder(tmp_path) as folder, RunFile(folder) as file:
        file._file.close()
        file._file = Path("/dev/full").open("wb", buffering=0)  # type: ignore[assignment] # noqa: SIM115 # closed by RunFile
        with pytest.raises(RunFolderError) as refused:
            file.add(pa.py_buffer(b"block"))
        assert refused.value.fields == {"folder": folder, "reason": os.strerror(errno.ENOSPC)}
    assert refused.value.action is Action.RETRY
    carried = worker_error(RuntimeError(f"Job aborted\n{WorkerError(refused.value, nonce)}\n\tat org.apache"), nonce)
    assert isinstance(carried, RunFolderError) and carried.fields == refused.value.fields


def test_folder_that_cannot_be_made_and_one_that_is_gone_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"--data-dir.*/file/runs"), run_folder(tmp_path / "file" / "runs"):
        pytest.fail("there is no such folder")
    with pytest.raises(RunFolderError, match="No such file"):
        RunFile(str(tmp_path / "gone"))


OF_A_WORKER = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 8.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 8.0 (TID 8) (localhost executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "writer.py", line 2, in add
    file.write(block)
OSError: [Errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Driver stacktrace:
"""


def test_what_a_worker_has_raised_is_the_reason_and_not_that_it_has() -> None:
    error = bus_error(RuntimeError(OF_A_WORKER.replace("[Errno 28] No space left on device", "[Errno 5] broken")))
    assert (error.code, error.fields["reason"]) == ("sorter.spark_job", "OSError: [Errno 5] broken")
    without = str(bus_error(RuntimeError(OF_A_WORKER.partition("  File")[0])).fields["reason"])
    assert without.startswith("org.apache.spark.SparkException: Job aborted")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OF_A_WORKER, "OSError: [Errno 28] No space left on device"),
        ("java.io.IOException: No space left on device", "java.io.IOException: No space left on device"),
        # Seen of pyspark, which writes what it sends to tasks into a file first.
        (
            "Could not serialize broadcast: OSError: [Errno 28] No space left on device",
            "Could not serialize broadcast: OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_full_disk_that_spark_met_itself_has_the_same_code(text: str, reason: str) -> None:
    error = bus_error(RuntimeError(text))
    assert isinstance(error, RunFolderError) and error.fields == {"reason": reason}
